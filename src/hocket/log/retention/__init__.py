"""Lets go what a log need not keep: what remains at a horizon, the step from one horizon to the next, and what shows
that nothing else has gone.
"""
