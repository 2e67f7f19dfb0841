"""The HTTP API for programs, over the same service as the command line. `table` lists the routes; each group has a
module with their functions. `routes` reads a request by the types of its function, `api` judges and runs it, and
`openapi` describes them all.
"""
