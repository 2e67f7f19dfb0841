"""Who calls a tool."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from mcp.server.context import ServerRequestContext

from hocket.api import Program
from hocket.api.inbox import MessageShown
from hocket.node.node import Node
from hocket.server.api import Api
from hocket.server.program_caller import ProgramCaller

# The name of the worker by which an agent over HTTP claims jobs.
WORKER_OVER_HTTP = "mcp"
# The lease of what an agent over HTTP holds.
LEASE_MS_OVER_HTTP = 600_000


class AgentHolds(Protocol):
    """What an agent holds for as long as its process lives: see `process_holds`."""

    worker: str
    lease_ms: int

    def heard(self) -> None: ...
    def notices(self) -> list[str]: ...
    def add_job(self, job_id: str, fence: int) -> None: ...
    def drop_job(self, job_id: str) -> None: ...
    async def acquire(
        self, caller: "McpCaller", keys: Sequence[str], scope: str, wait_s: float, *, shared: bool = False
    ) -> int: ...
    async def release(self, scope: str, fence: int) -> bool: ...
    async def claim_messages(self, caller: "McpCaller", count: int, lease_ms: int) -> list[MessageShown]: ...
    async def drop_message(self, id: str) -> None: ...


class McpCaller(ProgramCaller):
    """One agent, for the time of a request. What an agent over stdio holds is in `holds`: it ends with this process.
    Without them it ends with its lease.
    """

    def __init__(self, api: Api, node: Node, program: Program, holds: "AgentHolds | None" = None) -> None:
        super().__init__(api, node, program)
        self.holds = holds

    @property
    def worker(self) -> str:
        return WORKER_OVER_HTTP if self.holds is None else self.holds.worker

    @property
    def lease_ms(self) -> int:
        return LEASE_MS_OVER_HTTP if self.holds is None else self.holds.lease_ms

    def counted(self) -> AbstractContextManager[None]:
        """While a call is in work. Over HTTP its request counts already."""
        return nullcontext() if self.holds is None else self.api.counted(self.program.name)


Context = ServerRequestContext[Any, Any]
# Tells who sends a request.
MakeCaller = Callable[[Context], Awaitable[McpCaller]]
