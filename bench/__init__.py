"""Our figures beside the peers', measured in one run on one machine. Start with `python -m bench --help`."""
