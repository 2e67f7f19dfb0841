"""Checkpoints of authors: a node keeps a Merkle tree over the entries of each author (`trees`), signs its own and
cosigns those of others that it has computed itself (`keeper`), exchanges them with peers (`sharing`), and compares them
with the log (`verification`).
"""
