"""Workers in any language: how they claim jobs, renew their leases and end them. docs/http-workers.md explains the
protocol. The fence of a claim names the hold, and only the agent of the token that has claimed it may use it.
"""
