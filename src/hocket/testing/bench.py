"""A runtime in memory: real keys, a real log and real SQLite, a clock that moves only when told to, and the next run of
whatever can run. The nodes for tests are built on it.
"""

import random
from collections.abc import Iterable, Iterator
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hocket.errors import Conflict
from hocket.families.jobs import claiming, cron, rescue
from hocket.families.jobs import requests as jobs
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.keys import SigningKey, did_key
from hocket.log import Transaction
from hocket.node.home import Ask, Home
from hocket.node.local_node import run_services
from hocket.node.runtime import Runtime
from hocket.store import MEMORY
from hocket.store import open as open_store
from hocket.work.batch import settle
from hocket.work.context import Context
from hocket.work.handlers import REGISTRY, Handlers, JobType
from hocket.work.runner import Run

Types = Iterable[JobType] | None

RUNS_MAX = 10_000


class Clock:
    """The time of a test, `now`, in seconds since the epoch. It moves only when told to, never back."""

    def __init__(self, now: float) -> None:
        self.now: float = now

    def advance(self, seconds: float) -> None:
        self.now += max(0.0, seconds)

    def __call__(self, floor: int) -> int:
        self.now = max(self.now, floor / 1000)
        return round(self.now * 1000)


class Ran(NamedTuple):
    """One run of a handler. `error` is None if it succeeded."""

    job_id: str
    kind: str
    fence: int
    error: str | None


class _Home(Home):
    """Keys in memory. The directory holds the pipes of waiters, and is removed with the node."""

    def __init__(self, chance: random.Random) -> None:
        self.directory = TemporaryDirectory(prefix="hocket-test-")
        super().__init__(self.directory.name)
        self.processes.mkdir()
        self._user, self._node = SigningKey(chance.randbytes(32)), SigningKey(chance.randbytes(32))

    def user_did(self) -> str:
        return did_key(self._user.public)

    def user_key(self, ask: Ask | None = None) -> SigningKey:
        return self._user

    def node_key(self) -> SigningKey:
        return self._node


class Bench(Runtime):
    def __init__(self, seed: int, at: float) -> None:
        chance = random.Random(seed)
        self.clock = Clock(at)
        self._in_memory = _Home(chance)
        store = open_store(MEMORY)
        super().__init__(self._in_memory, store, None, wall=self.clock, randomness=chance.randbytes)
        self.log.run(self.introduce)

    def handler_node(self, is_async: bool) -> Any:
        """The node that a handler gets."""
        raise NotImplementedError

    def close(self) -> None:
        super().close()
        self._in_memory.directory.cleanup()

    def runs(self, types: Types, limit: int, ran: list[Ran]) -> Iterator[Run]:
        """Yields each next run; the caller executes it before it asks for the following one."""
        handlers = Handlers(REGISTRY.values() if types is None else types)
        while (run := self._claim(handlers)) is not None:
            if len(ran) >= limit:
                self.log.run(lambda tx, held=run.held: jobs.hand_back(tx, held, "beyond the limit"))  # type: ignore[misc]
                raise Conflict(f"{limit} runs without an end; check whether a job submits itself again")
            run.begin(self.clock.now)
            yield run
            run.end(self.clock.now)
            outcome = self.log.run(lambda tx, run=run: settle(tx, [run]))[0]  # type: ignore[misc]
            error = outcome.sentence if isinstance(outcome, Reason) else run.error
            ran.append(Ran(ulid_text(run.job.id), run.job.kind, run.job.fence, error))

    def _claim(self, handlers: Handlers) -> Run | None:
        """The next job; moves the clock to it if needed. None if nothing can run."""

        def request(tx: Transaction) -> claiming.Claims:
            rescue.expire(tx, RUNS_MAX)
            cron.make_due(tx)
            wants = lambda job, schedule: handlers.wants(tx.session, job.kind, schedule)  # noqa: E731
            return claiming.claim(tx, 0, 1, handlers.lease_of, wants=wants)

        while not (claims := self.log.run(request)).taken:
            if claims.again_at is None:
                return None
            self.clock.now = max(self.clock.now, claims.again_at / 1000)
        claim = claims.taken[0]
        job_type = handlers.find(claim.job.kind)
        assert job_type is not None
        kit = run_services(self, claim.job.kind, lambda: self.clock.now)._replace(node=self.handler_node)
        return Run(claim, job_type, job_type.lease_ms, self.clock.now, kit, Context)
