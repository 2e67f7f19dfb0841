"""What a tool is: a function of the caller and its arguments, with what a token needs for it."""

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from hocket.errors import Usage
from hocket.kernel.decoding import convert
from hocket.mcp.answers import ToolAnswer
from hocket.mcp.caller import McpCaller
from hocket.mcp.schemas import schema_of

# A client ends a call after 60 seconds; a wait ends before, and is then asked for again.
WAIT_S_MAX = 45

WaitSeconds = Annotated[int, Meta(ge=0, le=WAIT_S_MAX)]


class ToolArguments(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class ToolNeed(NamedTuple):
    """A grant by which a token may use the tool: for something at least."""

    resource: str
    action: str


class Tool:
    """A tool is offered to a caller who meets one of its `needs`. For a client that knows tasks, `task_of` does the
    call and returns the job that goes on as a task, or does nothing and returns None.
    """

    def __init__(
        self,
        name: str,
        help: str,
        function: Callable[[McpCaller, Any], Awaitable[ToolAnswer]],
        arguments: type[ToolArguments],
        answer: type[ToolAnswer],
        needs: tuple[ToolNeed, ...],
        *,
        is_reading: bool = False,
        task_of: Callable[[McpCaller, Any], Awaitable[str | None]] | None = None,
    ) -> None:
        self.name, self.help, self.needs, self.is_reading, self.task_of = name, help, needs, is_reading, task_of
        self._function, self._arguments, self._answer = function, arguments, answer

    def is_for(self, caller: McpCaller) -> bool:
        return any(caller.may(*need) for need in self.needs)

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        return schema_of(self._arguments, is_input=True)

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        return schema_of(self._answer, is_input=False)

    def read(self, arguments: dict[str, Any]) -> ToolArguments:
        try:
            return convert(arguments, self._arguments)
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            raise Usage(f"the arguments of {self.name} are wrong: {error}") from None

    async def answer(self, caller: McpCaller, arguments: dict[str, Any]) -> ToolAnswer:
        return await self._function(caller, self.read(arguments))
