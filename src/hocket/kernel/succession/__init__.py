"""Succession as the kernel knows it: which tenures are in force (`chain`), and who may promise what (`quorums`)."""
