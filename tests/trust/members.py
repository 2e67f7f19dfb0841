"""Members of a mesh for tests of trust: honest ones, each with a real log in memory under bound rules, and a forger,
who has a member's key and signs whatever it likes.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any

import msgspec
import pytest

from hocket.families.jobs import claiming as accepting
from hocket.families.jobs import requests as jobs
from hocket.kernel import keys, ops
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.mesh_rules import HOCKET, Rules, encode_rules
from hocket.kernel.ops import NO_ID, Op, bind, encode, link_to, sign
from hocket.kernel.ops import decode as read_op
from hocket.kernel.ucan import ROOT, Capability, issue, read
from hocket.kernel.vocabulary import DelegateUcan, DesignateCoordinator, Payload
from hocket.log import RULES, Admission, Log, Transaction, author_check, citations, permissions, registers
from hocket.log.rebuild import rebuild, roster_digest
from hocket.store import MEMORY, JobEntry, Session, Store
from hocket.store import open as open_store
from tests.log.roster.world import Clock, randomness

USER = SigningKey(b"trust user ".ljust(32, b"!"))
DID = did_key(USER.public)
START = 1_700_000_000_000
DAY_MS = 86_400_000


# Every member has the same ops and tokens, and they do not change.
decode = lru_cache(10_000)(read_op)
_verified = lru_cache(100_000)(keys.verify)
_read = lru_cache(1_000)(read)


@contextmanager
def remembering() -> Iterator[None]:
    """Each signature is verified once, and each token and op is read once, however many nodes ask."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "verify", _verified)
        for room in (author_check, permissions, registers):
            patch.setattr(room, "read_ucan", _read)
        patch.setattr(citations, "decode", decode)
        yield


@lru_cache(100)
def key(name: str) -> SigningKey:
    return SigningKey(content_hash(name.encode()))


def job(action: str, *prefixes: str) -> Capability:
    return Capability("Job", action, {"kind_prefix": list(prefixes)} if prefixes else {})


WORKER = (*(job(action) for action in ("Schedule", "Claim", "Complete")), Capability("Artifact", "Write", {}))
READS = (Capability("Ops", "Read", {}),)


class CountingStore:
    """Counts the write transactions: as long as there are no more of them, a store shows the same."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read, self.close, self.trim = store.read, store.close, store.trim
        self.server_clock, self.mac_rows, self.check_rows = store.server_clock, store.mac_rows, store.check_rows
        self.writes = 0

    def write(self, author: bytes | None = None, *, at_end: bool = False) -> AbstractContextManager[Session]:
        self.writes += 1
        return self._store.write()


class Member:
    """A node with a log. The first one is the user's own and the coordinator."""

    def __init__(self, name: str, rules: Rules = HOCKET) -> None:
        self.name, self.key, self.clock = name, key(name), Clock(START)
        self.node = node_id(self.key.public)
        self.store = CountingStore(open_store(MEMORY))
        with self.store.write() as session:
            session.set_meta(RULES, encode_rules(rules))
        self.log = Log(self.store, self.key, DID, wall=self.clock, randomness=randomness(self.key.public))
        self.token = b""

    def enter(self, token: bytes, *above: bytes) -> "Member":
        """Its own delegation first, then those that it leans on."""
        self.token = token

        def request(tx: Transaction) -> None:
            for each in (token, *above):
                assert isinstance(tx.author(DelegateUcan(content_hash(each), each)), Op)

        self.log.run(request)
        return self

    def invite(
        self, other: "Member | Forger", *granted: Capability, starts: int | None = None, ends: int | None = None
    ) -> bytes:
        """A delegation of what this member holds; times in seconds."""
        begins = START // 1000 - 10 if starts is None else starts
        return issue(self.key, other.key.public, granted or WORKER + READS, begins, ends, [content_hash(self.token)])

    def say(self, payload: Payload, deps: tuple[bytes, ...] = (), about: int | None = None) -> Op:
        self.clock.now += 1
        op = self.log.run(lambda tx: tx.author(payload, deps, about))
        assert isinstance(op, Op), op
        return op

    def submit(self, kind: str = "acme.x", **policy: Any) -> bytes:
        self.clock.now += 1
        draft = jobs.Draft(kind, b"{}", jobs.Policy(**policy))
        return self.log.run(lambda tx: jobs.submit(tx, [draft]))[0].job_id

    def receive(self, sent: Iterable[tuple[bytes, Op]], sender: int | None = None) -> Admission:
        return self.log.admit(list(sent), decide=accepting.accept, sender=sender)

    def pull(self, other: "Member") -> Admission:
        return self.receive(other.ops(), other.node)

    def ops(self) -> list[tuple[bytes, Op]]:
        with self.log.store.read() as session:
            sent = [self.log.signed(row.body) for row in session.entries_after(0, 100_000)]
        return [(raw, decode(raw)) for raw in sent]

    def entry(self, job_id: bytes) -> JobEntry | None:
        self.log.settle()
        with self.log.store.read() as session:
            return session.job(job_id)

    def reason(self, op: Op) -> int | None:
        """0 when it counts, None when it is not here."""
        self.log.settle()
        with self.log.store.read() as session:
            row = session.op(op.id)
            return None if row is None else row.reason

    def digest(self) -> bytes:
        self.log.settle()
        with self.log.store.read() as session:
            return roster_digest(session)

    def rebuilt(self) -> bool:
        self.log.settle()
        return rebuild(self.log.store, self.log.permissions_reader, self.clock.now).unchanged


class Forger:
    """Somebody who has a member's key. It knows what that member wrote, and signs what it likes after it, at any time
    and under any id.
    """

    def __init__(self, name: str) -> None:
        self.name, self.key = name, key(name)
        self.node = node_id(self.key.public)
        self.last = NO_ID

    def enter(self, token: bytes, *above: bytes, wall: int = START) -> list[tuple[bytes, Op]]:
        return [
            self.say(DelegateUcan(content_hash(each), each), wall, logical)
            for logical, each in enumerate((token, *above))
        ]

    def say(
        self,
        payload: Payload,
        wall: int,
        logical: int = 0,
        deps: tuple[bytes, ...] = (),
        after: bytes | None = None,
        op_id: bytes | None = None,
    ) -> tuple[bytes, Op]:
        """An op with its bytes. `after` is the op that it claims to follow, its last one if that is not said; an
        `op_id` is taken as it is, whatever the op says.
        """
        stamp = Hlc(wall, logical, self.node)
        link = link_to(self.last if after is None else after)
        op, _ = bind(Op(NO_ID, stamp, self.node, (*deps, link), payload))
        if op_id is not None:
            op = msgspec.structs.replace(op, id=op_id)
        signed = sign(op, self.key)
        if after is None:
            self.last = signed.id
        return encode(signed), signed


def owner(name: str = "owner") -> Member:
    member = Member(name).enter(issue(USER, key(name).public, ROOT, START // 1000 - 10, None))
    member.say(DesignateCoordinator(member.node))
    return member


def meet(*members: Member) -> None:
    """Everybody hears of everything."""
    for _ in range(2):
        for one in members:
            for other in members:
                if one is not other:
                    one.pull(other)
    now = max(member.clock.now for member in members)
    for member in members:
        member.clock.now = now


def root_of(member: Member) -> bytes:
    return read(member.token).cid
