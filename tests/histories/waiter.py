"""A client that waits for locks, one and then another while it holds the first, always in the same order: so no two
clients ever wait for each other. Some of its requests have little patience and are given up. It goes on until it is
killed; its successor has the same agent. No process sweeps for it.

    python -m tests.histories.waiter HOME DIRECTORY AGENT
"""

import asyncio
import os
import random
import sys
from pathlib import Path

import hocket
from hocket.errors import HocketError, Unreachable
from hocket.families.locks.requests import Granted, LockHeld, LockLost, wanted
from hocket.families.locks.rules import Hold
from hocket.kernel import retrying as breaker
from hocket.node.locks import lock_client
from hocket.node.node import Node
from tests.histories.guarded import Guarded
from tests.histories.recording import GAVE_UP, Recorder

KEYS = ("file:a", "file:b")
PATIENT_MS = 120_000
# Its circuit breakers are open for two seconds instead of thirty.
OPEN_MS = 2_000
DEADLOCK = "a deadlock that does not exist"


class Waiter:
    def __init__(self, node: Node, directory: Path, agent: str) -> None:
        self._client, self._agent = lock_client(node, node.lock_processes), agent
        self._recorder, self._guarded = Recorder(directory), Guarded(directory)
        self._chance = random.Random()
        # The time to live names the request, so that the log shows what became of it. No hold gets that old.
        self._ttl_ms = 3_600_000 + os.getpid() % 50_000 * 1_000

    async def run(self) -> None:
        while True:
            chance = self._chance
            keys = chance.choice((KEYS, KEYS[:1], KEYS[1:]))
            wait_ms = chance.choice((0, 50, 200, PATIENT_MS, PATIENT_MS, PATIENT_MS))
            held: list[tuple[str, Hold]] = []
            try:
                for key in keys:
                    hold = await self._acquire(key, wait_ms)
                    if hold is None:
                        break
                    held.append((key, hold))
                    await asyncio.sleep(chance.uniform(0, 0.1))
                    if not self._guarded.write(key, hold.fence):
                        self._recorder.note("a stale write was refused")
            finally:
                for key, hold in held:
                    await self._release(key, hold.fence)
            await asyncio.sleep(chance.uniform(0, 0.02))

    async def _acquire(self, key: str, wait_ms: int) -> Hold | None:
        self._ttl_ms += 1
        asked = wanted([key], self._agent, self._ttl_ms, wait_ms=wait_ms)
        call = self._recorder.call("acquire", keys=[key], agent=self._agent, bound=True, ttl_ms=self._ttl_ms)
        try:
            granted = await self._client.acquire(asked, is_bound=True)
            hold = granted.hold
            if hold.deadline - hold.since < self._ttl_ms:
                hold = await self._renew(granted)
        except (LockHeld, LockLost, Unreachable) as error:
            self._recorder.answer(call, GAVE_UP)
            self._recorder.note(DEADLOCK if "deadlock" in str(error) else type(error).__name__)
            return None
        self._recorder.answer(call, hold.fence, hold.deadline)
        return hold

    async def _renew(self, granted: Granted) -> Hold:
        """A grant from the queue lasts a few seconds until it is renewed; it ends if the server is away meanwhile."""
        try:
            return await self._client.renew("", None, self._agent, granted.hold.fence, self._ttl_ms)
        except HocketError:
            await self._client.give_up(granted.request)
            raise

    async def _release(self, key: str, fence: int) -> None:
        call = self._recorder.call("release", keys=[key], agent=self._agent, fence=fence)
        try:
            await self._client.release("", None, self._agent, fence)
        except HocketError as error:
            self._recorder.note(f"release: {type(error).__name__}: {error}")
        else:
            self._recorder.answer(call, True)


async def run(home: str, directory: str, agent: str) -> None:
    async with hocket.open(home) as node:
        await Waiter(node, Path(directory), agent).run()


def main() -> None:
    breaker.OPEN_MS = OPEN_MS
    asyncio.run(run(*sys.argv[1:]))


if __name__ == "__main__":
    main()
