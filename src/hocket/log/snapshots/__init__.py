"""Snapshots: what remains of the log up to a horizon, in a folder of chunks that anyone can verify, and from which a
node that lacks what was pruned begins.
"""
