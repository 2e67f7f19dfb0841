"""What a release of Hocket consists of: the source package, the wheel, the list of what they need, and a proof of how
they were built.
"""
