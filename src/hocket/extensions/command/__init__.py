"""Commands as jobs: a program runs under supervision, its resource use is metered, and none of its processes is left
behind.
"""

# The kind of the jobs that run a command.
KIND = "hocket.run"
