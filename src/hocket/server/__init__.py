"""The HTTP server of a node: Starlette and uvicorn around the mesh's gate. It enforces the limits on sockets: how long
a request may take, how much of it is read, how many connections there are. The gate decides what a request means and
who may send it. For programs, `routes` makes the
operations of `hocket.api` to routes and reads requests by their types, `api` judges and runs them, `openapi` describes
them.
"""
