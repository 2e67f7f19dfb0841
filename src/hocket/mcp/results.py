"""What tools answer, as results of the protocol."""

from collections.abc import Sequence

import mcp_types as types

from hocket.errors import HocketError
from hocket.kernel.texts import clean
from hocket.mcp.answers import ToolAnswer


def tool_result(answer: ToolAnswer, notices: Sequence[str] = ()) -> types.CallToolResult:
    """`notices` are sentences of ours that the agent must read first."""
    structured = answer.structured() | ({"notices": [*notices]} if notices else {})
    return types.CallToolResult(content=[_text(*notices, answer.text())], structured_content=structured)


def refusal(error: HocketError, notices: Sequence[str] = ()) -> types.CallToolResult:
    return types.CallToolResult(content=[_text(*notices, clean(error))], is_error=True)


def _text(*lines: str) -> types.TextContent:
    return types.TextContent(type="text", text="\n".join(lines))
