"""`python -m hocket` is the same program as `hocket`."""

from hocket.cli import main

if __name__ == "__main__":
    main()
