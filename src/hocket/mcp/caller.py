"""Who calls a tool, and how a tool does operations: with the checks and errors of a request over HTTP."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import msgspec

from hocket.api import Program
from hocket.errors import Usage
from hocket.kernel.decoding import convert
from hocket.node.node import Node
from hocket.server.api import Api
from hocket.server.routes import ROUTES, ApiCall, ApiRoute

_ROUTES = {each.name: each for each in ROUTES}
# The name of the worker by which an agent over HTTP claims jobs.
WORKER_OVER_HTTP = "mcp"
# How long what an agent over HTTP holds lasts, unless it says that it goes on.
LEASE_MS_OVER_HTTP = 600_000


class AgentHolds(Protocol):
    """What an agent holds for as long as its process lives: see `process_holds`."""

    worker: str
    lease_ms: int

    def heard(self) -> list[str]: ...
    def add_job(self, job_id: str, fence: int) -> None: ...
    def drop_job(self, job_id: str) -> None: ...
    async def acquire(
        self, caller: "McpCaller", keys: Sequence[str], scope: str, wait_s: float, *, shared: bool = False
    ) -> int: ...
    async def release(self, scope: str, fence: int) -> bool: ...
    async def add_messages(self, ids: Iterable[str], lease_ms: int) -> None: ...
    async def drop_message(self, id: str) -> None: ...


class McpCaller:
    """One agent, for the time of a request. What an agent over stdio holds is in `holds`: it ends with this process.
    Without them it ends with its lease.
    """

    def __init__(self, api: Api, node: Node, program: Program, holds: "AgentHolds | None" = None) -> None:
        self.api, self.node, self.program, self.holds = api, node, program, holds
        self.call: ApiCall = api.call(program)
        self.service = self.call.service

    @property
    def agent(self) -> str:
        return self.service.agent(None)

    @property
    def worker(self) -> str:
        return WORKER_OVER_HTTP if self.holds is None else self.holds.worker

    @property
    def lease_ms(self) -> int:
        return LEASE_MS_OVER_HTTP if self.holds is None else self.holds.lease_ms

    def counted(self) -> AbstractContextManager[None]:
        """While a call is in work. Over HTTP its request counts already."""
        return nullcontext() if self.holds is None else self.api.counted(self.program.name)

    def may(self, resource: str, action: str) -> bool:
        """Whether it may do this to something."""
        return self.program.may_some(resource, action)

    async def do(self, operation: str, /, **fields: Any) -> Any:
        """Does an operation of the API. A field that is None is left out."""
        route = _ROUTES[operation]
        given = {name: value for name, value in fields.items() if value is not None}
        return await self.api.perform(route, self.call, _arguments(route, given))


def _arguments(route: ApiRoute, fields: Mapping[str, Any]) -> dict[str, Any]:
    rest, found = dict(fields), dict[str, Any]()
    for name in route.parameters:
        try:
            found[name] = convert(rest.pop(name), route.parameter(name))
        except (msgspec.ValidationError, ValueError):
            raise Usage(f"{fields[name]!r} is no {name}; give the whole id, as answers have it") from None
    try:
        for place, struct in (("query", route.query), ("body", route.body)):
            if struct is not None:
                found[place] = convert(rest, struct)
    except (msgspec.ValidationError, ValueError) as error:
        raise Usage(f"the arguments are wrong: {str(error)[:1].lower()}{str(error)[1:]}") from None
    return found
