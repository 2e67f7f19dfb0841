"""Hints: something has changed, look. A hint may be lost or come twice; nobody depends on one for more than
being quick. `bells` carries them between the processes of one machine.
"""
