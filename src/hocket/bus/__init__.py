"""Carries hints and messages. `hints` says what a hint is, and carries it between the processes of one machine;
`memory` carries it within one process, and `shared` between machines that share a store. `messages` says what a message
is.
"""
