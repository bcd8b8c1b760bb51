"""The command `evercount`, also as `python -m evercount`: the part of it that needs nothing but the
library."""

from __future__ import annotations

import sys

from evercount import __version__
from evercount.errors import MissingExtra


def main() -> None:
    """Run the command, or say what to install."""
    if sys.argv[1:] == ["--version"]:  # needs no command
        sys.stdout.write(f"evercount {__version__}\n")
        return
    try:
        from evercount.cli import main as command
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        missing = MissingExtra("The command", "cli")
        sys.stderr.write(f"error: {missing}\n")
        sys.exit(missing.exit_code)
    command()


if __name__ == "__main__":
    main()
