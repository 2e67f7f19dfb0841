"""A whole mesh in one process, on virtual time: see `loop` and `ground`."""
