"""The A2A server: this node as an agent for agents that speak the Agent2Agent protocol 1.0, over JSON-RPC. A task is a
job; who asks is the token.
"""
