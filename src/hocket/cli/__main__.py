"""`python -m hocket.cli` is the same program as `hocket`."""

from hocket.cli import main

main()
