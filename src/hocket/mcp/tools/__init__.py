"""The tools. At most eight: a model reads all of them with every request."""

from hocket.mcp.tools.coordination_tools import COORDINATION_TOOLS
from hocket.mcp.tools.declared import Tool
from hocket.mcp.tools.job_tools import JOB_TOOLS
from hocket.mcp.tools.looking_tools import LOOKING_TOOLS

TOOLS: tuple[Tool, ...] = (*JOB_TOOLS, *LOOKING_TOOLS, *COORDINATION_TOOLS)
