"""Snapshots between nodes: how a server gives them, and how a node that lacks what was pruned takes one."""
