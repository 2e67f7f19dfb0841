"""Beats shared by a cluster: which beat it is, pulses that send the beats, what agents do bar by bar, and what goes by
beats.
"""
