"""A client that takes locks, shared and exclusive, one and several, and by pattern; with and without waiting. It writes
under the fences of its exclusive ones. It goes on until it is killed.

    python -m tests.histories.locker HOME DIRECTORY TTL_MS
"""

import asyncio
import random
import sys
from pathlib import Path

from hocket.errors import HocketError
from hocket.events import ignore
from hocket.families.locks.requests import LockHeld, LockLost, Wanted, wanted
from hocket.families.locks.rules import Hold
from hocket.node.locks import lock_client
from hocket.node.node import Node
from tests.histories.guarded import Guarded
from tests.histories.opening import patiently_opened
from tests.histories.recording import GAVE_UP, Recorder

# The keys that conflict with each way to ask for them.
KEYS = ("file:a", "file:b", "other")
CHOICES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("file:a",): ("file:a",),
    ("file:b",): ("file:b",),
    ("other",): ("other",),
    ("file:a", "file:b"): ("file:a", "file:b"),
    ("file:**",): ("file:a", "file:b"),
}
AGENTS = ("editor", "tester")


class Locker:
    def __init__(self, node: Node, directory: Path, ttl_ms: int) -> None:
        self._client, self._ttl_ms = lock_client(node, node.lock_processes), ttl_ms
        self._node = f"{node.log.node:016x}"
        self._recorder, self._guarded = Recorder(directory), Guarded(directory)
        self._chance = random.Random()

    async def run(self) -> None:
        chance = self._chance
        while True:
            asked = wanted(
                chance.choice(list(CHOICES)),
                chance.choice(AGENTS),
                self._ttl_ms,
                shared=chance.random() < 0.4,
                wait_ms=chance.choice((0, 0, 200, 1_000)),
            )
            try:
                held = await self._acquire(asked)
                if held is not None:
                    await self._hold(asked, held)
            except HocketError as error:
                self._recorder.note(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)
            await asyncio.sleep(chance.uniform(0, 0.02))

    def _details(self, asked: Wanted) -> dict[str, object]:
        return {"keys": list(CHOICES[asked.keys]), "agent": f"{asked.agent}@{self._node}"}

    async def _acquire(self, asked: Wanted) -> Hold | None:
        is_bound = self._chance.random() < 0.7
        call = self._recorder.call("acquire", **self._details(asked), shared=bool(asked.mode), bound=is_bound)
        try:
            hold = (await self._client.acquire(asked, is_bound=is_bound)).hold
        except LockHeld:
            self._recorder.answer(call, GAVE_UP if asked.wait_ms else None)
            return None
        self._recorder.answer(call, hold.fence, hold.deadline)
        return hold

    async def _hold(self, asked: Wanted, held: Hold) -> None:
        for _ in range(self._chance.randint(1, 3)):
            await asyncio.sleep(self._chance.uniform(0, 0.1))
            if not asked.mode and not all(self._guarded.write(key, held.fence) for key in CHOICES[asked.keys]):
                self._recorder.note("a stale write was refused")
            if self._chance.random() < 0.3 and not await self._renew(asked, held.fence):
                return
        if self._chance.random() < 0.95:
            await self._release(asked, held.fence)
        # Else it forgets the lock, whose time has to pass.

    async def _renew(self, asked: Wanted, fence: int) -> bool:
        call = self._recorder.call("renew", **self._details(asked), fence=fence)
        try:
            hold = await self._client.renew(asked.scope, None, asked.agent, fence, self._ttl_ms)
        except LockLost:
            self._recorder.answer(call, False)
            return False
        self._recorder.answer(call, True, hold.deadline)
        return True

    async def _release(self, asked: Wanted, fence: int) -> None:
        call = self._recorder.call("release", **self._details(asked), fence=fence)
        try:
            await self._client.release(asked.scope, None, asked.agent, fence)
        except LockLost:
            self._recorder.answer(call, False)
        else:
            self._recorder.answer(call, True)


async def run(home: str, directory: str, ttl_ms: str) -> None:
    async with patiently_opened(home) as node, node.in_touch(ignore):
        await Locker(node, Path(directory), int(ttl_ms)).run()


def main() -> None:
    asyncio.run(run(*sys.argv[1:]))


if __name__ == "__main__":
    main()
