"""The kernel decides: everything in it is a pure function or a value. It opens no file and no socket, reads no clock,
draws no random number and awaits nothing; the caller passes those in as arguments and acts on the answer. It imports
nothing of ours but itself.
"""

__version__ = "0.1.0"
