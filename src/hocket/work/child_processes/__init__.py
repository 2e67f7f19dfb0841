"""Child processes that end with the process that started them, with everything below them. They run on a bare
interpreter.
"""
