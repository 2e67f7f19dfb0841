"""Which part this node has: the coordinator, a named node, or none. The process that syncs follows it."""

import asyncio
from typing import TYPE_CHECKING

from hocket.cancelling import end_tasks
from hocket.events import Emit
from hocket.families.access import NodeAccess
from hocket.log.permissions import Permissions
from hocket.work.environment import Environment, supervised

if TYPE_CHECKING:
    from hocket.mesh.sync import Exchanges


class SuccessionRoles:
    """Call `follow` when the permissions may have changed, and `close` at the end."""

    def __init__(self, access: NodeAccess, exchanges: "Exchanges", environment: Environment, emit: Emit) -> None:
        self._access, self._exchanges, self._environment, self._emit = access, exchanges, environment, emit
        self._role: tuple[str, bytes] | None = None
        self._task: asyncio.Task[None] | None = None

    async def follow(self, permissions: Permissions | None) -> None:
        role = None if permissions is None else self._role_in(permissions)
        is_over = self._task is not None and self._task.done()
        if role == self._role and not is_over:
            return
        await self.close()
        self._role = role
        if role is not None:
            self._task = asyncio.create_task(self._run(*role))

    def _role_in(self, permissions: Permissions) -> tuple[str, bytes] | None:
        chain, node = permissions.chain, self._access.log.node
        if not chain.in_question or chain.head is None:
            return None
        if chain.head.node == node:
            return "the coordinator and those that may follow it", chain.head.op_id
        succession = chain.succession
        if succession is None or node not in succession.nodes:
            return None
        return "watching for the coordinator's silence", chain.head.op_id + succession.op_id

    async def _run(self, name: str, of: bytes) -> None:
        # Few meshes have a succession.
        from hocket.mesh.succession.leading import Leading
        from hocket.mesh.succession.standing import Candidate

        shared = self._access, self._exchanges, self._environment, self._exchanges.key

        async def run() -> None:
            if len(of) == 16:
                await Leading(*shared, of, self._emit).run()
            else:
                await Candidate(*shared, self._emit).run()

        await supervised(name, run, self._emit, self._environment)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await end_tasks([task])
