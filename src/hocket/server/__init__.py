"""The HTTP server of a node: Starlette and uvicorn around the mesh's gate. It enforces the limits on sockets: how long
a request may take, how much of it is read, how many connections there are. The gate decides what a request means and
who may send it. For programs, `routes` makes routes of the operations of `hocket.api` and reads requests by their
types, and `api` judges and runs them.
"""
