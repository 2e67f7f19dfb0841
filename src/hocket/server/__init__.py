"""The HTTP face of a node: Starlette and uvicorn around the gate of the mesh. Here are the bounds that concern sockets
(how long a request may take, how much of it is read, how many connections there are); what a request means and who may
ask it is decided by the gate.
"""
