"""Commands as jobs: a program is run under supervision, what it uses is metered, and none of its processes is left
behind.
"""
