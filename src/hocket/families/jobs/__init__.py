"""Jobs: what the ops about one mean (`rules`), which worker should try to claim one (`candidates`, `rendezvous`), and
how a result travels in parts (`parts`). All of it decides and reads nothing of the world.
"""
