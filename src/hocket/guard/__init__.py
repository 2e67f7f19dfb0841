"""The guard at a resource: it compares the fence of a writer with the highest one that the resource has seen, and
refuses a lower one atomically with the write. `database` guards rows, `files` guards a file, `asgi` takes the fence out
of an HTTP request. The guard works on the resource alone: it reads no log and no lock.
"""
