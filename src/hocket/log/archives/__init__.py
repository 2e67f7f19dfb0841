"""Archives: the log in sealed files that anyone can verify. Each author has a folder, each of its days a file, and all
nodes that have the same ops write the same files.
"""
