"""One node put together: its home on disk (`home`), its parts for one process (`runtime`), the node as programs use it
(`node`), and the jobs that they wait for (`handles`).
"""
