"""One node: its home on disk (`home`), its parts in one process (`runtime`), the API for programs (`node`), and handles
on jobs (`handles`).
"""
