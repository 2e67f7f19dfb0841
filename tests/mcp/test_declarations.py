"""What a model reads before its first word: few tools, few tokens, and nothing that others can write."""

import json

from hocket.mcp.protocol import INSTRUCTIONS, listed_tool
from hocket.mcp.tools import TOOLS

TOKENS_MAX = 2_000
WORDS_MAX = 200
# JSON in English words has between 3 and 4.5 characters for each token; this counts too many rather than too few.
CHARS_PER_TOKEN = 3


def tokens(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def test_the_tools_are_few_and_short():
    listed = [listed_tool(each).model_dump(by_alias=True, exclude_none=True, mode="json") for each in TOOLS]
    assert len(listed) <= 8
    assert tokens(json.dumps({"tools": listed}, separators=(",", ":"))) <= TOKENS_MAX


def test_the_instructions_are_short():
    assert len(INSTRUCTIONS.split()) <= WORDS_MAX


def test_no_tool_has_an_argument_for_who_asks():
    names = {name for each in TOOLS for name in each.input_schema["properties"]}
    assert not names & {"agent", "as", "from", "sender", "holder", "name", "token", "worker", "node"}
