"""What remains of a log up to a horizon, as a sequence of leaves under one root: what a leaf is (`leaves`), and how
leaves travel (`chunks`).
"""
