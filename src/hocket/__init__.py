"""Hocket: many machines share one stream of jobs, and each job is held by exactly one of them."""
