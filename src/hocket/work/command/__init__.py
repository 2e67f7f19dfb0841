"""Commands as jobs: a program runs under supervision, its resource use is metered, and none of its processes is left
behind.
"""
