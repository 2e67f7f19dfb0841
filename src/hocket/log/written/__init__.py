"""What a node has written to a store that nodes share, as its home remembers it: a server that fails over to an
asynchronous standby, or is restored from a backup, goes back to an earlier state, and has lost the newest ops.
"""
