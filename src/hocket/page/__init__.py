"""The page: this node in a browser. HTML is made on the server, each view is an address, and each action a form, so
that all of it works without a script; the script only keeps an open page current.
"""
