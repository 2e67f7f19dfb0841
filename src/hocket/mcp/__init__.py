"""The MCP server: this node for agents that speak the Model Context Protocol, over stdio and over HTTP. Eight tools do
operations of the API; who asks is the process or the token, never an argument. Needs the extra `hocket[mcp]`.
"""
