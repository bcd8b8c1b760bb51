"""A file for spark-submit, which takes the arguments of `evercount spark`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `evercount spark` with the arguments of this file."""
    from evercount.cli import main as command

    sys.argv[1:1] = ["spark"]
    command()


if __name__ == "__main__":
    main()
