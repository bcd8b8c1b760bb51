"""`python -m evercount` is the command `evercount`."""

from evercount.cli import main

main()
