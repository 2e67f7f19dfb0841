"""What an agent over stdio holds. Its jobs are those of a worker with an OS lock of this process, its locks and mail
are bound to this process: however the process ends, any other process of the node gives back at once what is left.
Meanwhile this module renews the leases, for as long as the agent calls tools: a model does not look at the clock.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from hocket.api.inbox import MessageShown, message_shown
from hocket.api.locks import ACQUIRE
from hocket.errors import HocketError, StoreError, Usage
from hocket.families.liveness import SignOfLife
from hocket.mcp.answers import joined
from hocket.mcp.caller import McpCaller
from hocket.node.locks import HeldLock, NodeLock
from hocket.node.node import Node
from hocket.work.remote.remote_holds import RemoteName

JOB_LEASE_MS = 60_000
# An agent that calls no tool for so long loses what it holds, though its process lives on.
IDLE_S = 3_600.0
# The locks and the messages of one agent.
LOCKS_MAX = 256
MESSAGES_MAX = 256
NOTICES_MAX = 32
# The characters of the name of a lock file.
ROW_CHARS_MAX = 240
# How long the end of the process waits for what is given back. What is left goes back when the process has ended.
END_S = 5.0
RETURNED = "its agent has left"


class ProcessHolds:
    """Use it on the event loop of the node. `caller` makes the caller of this process, with what it may do now."""

    lease_ms = JOB_LEASE_MS

    def __init__(self, node: Node, agent: str, caller: Callable[[], McpCaller]) -> None:
        self._node, self.agent, self._caller = node, agent, caller
        self.worker = node.environment.name("mcp")
        row = RemoteName(agent, self.worker, is_process=True).row(node.log.node)
        if len(row) > ROW_CHARS_MAX:
            raise Usage(f"the name {agent!r} is too long for an agent over stdio")
        self._sign: SignOfLife = node.environment.liveness.announce(row)
        self._inbox = node.inbox(agent)
        self._jobs: dict[str, int] = {}
        self._locks: dict[tuple[str, int], tuple[NodeLock, HeldLock[asyncio.Event]]] = {}
        self._messages: dict[str, bytes] = {}
        self._heard_at = node.environment.monotonic()
        self._notices: list[str] = []

    def heard(self) -> None:
        """The agent calls a tool, or asks for a task."""
        self._heard_at = self._node.environment.monotonic()

    def notices(self) -> list[str]:
        """What the agent must know: what it has lost since it was last told."""
        for place, (_, held) in list(self._locks.items()):
            if held.lost.is_set():
                del self._locks[place]
                self._tell(f"you have lost the lock on {joined(held.keys)} (fence {held.fence}): stop writing there")
        notices, self._notices = self._notices, []
        return notices

    def _tell(self, sentence: str) -> None:
        if len(self._notices) < NOTICES_MAX:
            self._notices.append(sentence)

    # Jobs.

    def add_job(self, job_id: str, fence: int) -> None:
        self._jobs[job_id] = fence

    def drop_job(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)

    async def run(self) -> None:
        """Renews until it is cancelled."""
        while True:
            await asyncio.sleep(JOB_LEASE_MS / 3000)
            if self._node.environment.monotonic() > self._heard_at + IDLE_S:
                await self._end_idleness()
            with suppress(HocketError):  # the next round tries again, before the lease ends
                await self._renew()

    async def _end_idleness(self) -> None:
        if self._jobs or self._locks or self._messages:
            await self.give_all_back()
            self._tell(f"you called no tool for {IDLE_S / 60:.0f} minutes: your jobs, locks and mail went back")

    async def _renew(self) -> None:
        holds = [{"job_id": job_id, "fence": fence} for job_id, fence in self._jobs.items()]
        if not holds:
            return
        caller = await self._node.call(self._caller)
        renewed = await caller.do("renew_jobs", worker=self.worker, holds=holds, lease_ms=JOB_LEASE_MS)
        for each in renewed.holds:
            if each.state != "held" and self._jobs.get(each.job_id) == each.fence:
                del self._jobs[each.job_id]
                why = "was cancelled" if each.state == "cancel" else "is no longer yours"
                self._tell(f"job {each.job_id} {why}: stop, and drop what you did for it")

    # Locks.

    async def acquire(
        self, caller: McpCaller, keys: Sequence[str], scope: str, wait_s: float, *, shared: bool = False
    ) -> int:
        """Returns the fence."""
        caller.service.check_writer()
        assert ACQUIRE.words is not None
        caller.service.check("Lock", "Acquire", *ACQUIRE.words(caller.service, {"keys": keys}), scope=scope)
        if len(self._locks) >= LOCKS_MAX:
            raise Usage(f"you hold {LOCKS_MAX} locks, and no more fit; release some first")
        lock = self._node.lock(*keys, agent=self.agent, scope=scope, wait=wait_s, shared=shared)
        held = await lock.__aenter__()
        self._locks[scope, held.fence] = lock, held
        return held.fence

    async def release(self, scope: str, fence: int) -> bool:
        """False if no call of this process has acquired it."""
        found = self._locks.pop((scope, fence), None)
        if found is None:
            return False
        await found[0].__aexit__(None)
        return True

    # Mail.

    async def claim_messages(self, caller: McpCaller, count: int, lease_ms: int) -> list[MessageShown]:
        """The claims of these messages end with this process."""
        caller.service.check_writer()
        caller.service.check("Inbox", "Claim", self.agent)
        claimed = await self._inbox.claim_bound(count, lease_ms)
        self._messages |= {each.id: each.claim_op for each in claimed}
        while len(self._messages) > MESSAGES_MAX:
            await self.drop_message(next(iter(self._messages)))
        return [message_shown(each.data) for each in claimed]

    async def drop_message(self, id: str) -> None:
        """The claim of the message has ended, or ends by its lease."""
        claim = self._messages.pop(id, None)
        if claim is not None:
            await self._inbox.let_go({id: claim})

    async def give_all_back(self) -> None:
        locks, self._locks = self._locks, {}
        for lock, _ in locks.values():
            with suppress(HocketError):
                await lock.__aexit__(None)
        messages, self._messages = self._messages, {}
        await self._inbox.let_go(messages, reason=RETURNED)
        self._jobs.clear()
        await self._node.remote_workers.goodbye(RemoteName(self.agent, self.worker, is_process=True))
        self._node.wrote()

    async def end(self) -> None:
        """Gives everything back. What that cannot do in time, another process of the node does."""
        with suppress(StoreError, HocketError, TimeoutError):
            async with asyncio.timeout(END_S):
                await self.give_all_back()
        self._sign.close()
