"""Coordination that is not a job: locks, messages, presence and contested rows. The modules here make requests and wait
for answers; the kernel has the rules.
"""
