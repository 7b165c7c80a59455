"""`python -m hyphash` is the same as `hyphash`."""

from hyphash.cli import main

main()
