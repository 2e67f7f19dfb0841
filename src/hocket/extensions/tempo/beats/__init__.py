"""Tempo: the beats that a cluster shares, and everything that is counted in them. Each module decides one question;
publishing, listening and waiting are left to others.
"""
