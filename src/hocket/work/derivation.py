"""Derivations: pure functions over the ops of the log, which the coordinator runs. A pass is a job of a kind that only
the coordinator may run: it calls the function with the ops that no pass has read yet, in the order of their times, and
what the function returns goes on the log with the job's end. The job's result says which ops the pass has read and what
came of them, so that the next pass goes on there, and any node that has these ops can repeat the pass and compare.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from blake3 import blake3

from hocket.bus.hints import LOG, about
from hocket.errors import Failed, Usage
from hocket.families.access import NodeAccess
from hocket.families.jobs import view
from hocket.families.jobs.requests import submit_one
from hocket.families.jobs.rules import Job, Outcome
from hocket.kernel.clock import Hlc
from hocket.kernel.decoding import convert
from hocket.kernel.ids import ulid_text
from hocket.kernel.mesh_rules import DERIVATION_KINDS
from hocket.kernel.ops import decode
from hocket.kernel.postcard import Malformed, encode
from hocket.kernel.vocabulary import JOB, NAMES, PAYLOAD, Payload, number_of
from hocket.log import Transaction
from hocket.store import JobFilter, OpRow, Session
from hocket.work import handlers
from hocket.work.context import Context, products_of
from hocket.work.handlers import REGISTRY, Handlers, JobType
from hocket.work.run_outputs import GRAPH_OPS

(PREFIX,) = DERIVATION_KINDS
# How many ops one pass hands to the function, and how many of one author it reads from the store at once.
OPS_MAX = 1_000
OPS_STEP = 200
# How many ops one pass derives, at most.
DERIVED_MAX = 500
# How long a worker waits between two looks at the log, at least, and at most if nothing tells it of new ops.
REST_S = 1.0
LOOK_S = 60.0

Frontier = dict[bytes, bytes]


class LoggedOp(NamedTuple):
    """An op that counts, as a derivation sees it."""

    id: bytes
    node: int
    timestamp: Hlc
    payload: Any

    def derived_id(self, label: str = "") -> bytes:
        """An id for what is derived from this op: the same on every node. Different labels give different ids."""
        return blake3(self.id + label.encode()).digest()[:16]


DerivationFunction = Callable[[dict[str, Any], LoggedOp], Iterable[Payload]]


class DerivationPass(msgspec.Struct, frozen=True):
    """The result of a pass. It has read the ops of each author later than `since` and up to `through`, both as packed
    times in hex. `inputs` is the hash of the ids of the `read` ops that it handed to the function, and `outputs` that
    of the `derived` payloads. `memory` is what the function keeps for the next pass.
    """

    previous: str | None
    since: dict[str, str]
    through: dict[str, str]
    read: int
    inputs: str
    derived: int
    outputs: str
    memory: dict[str, Any]


class Derivation(NamedTuple):
    name: str
    over: tuple[type[Payload], ...]
    function: DerivationFunction

    @property
    def kind(self) -> str:
        return PREFIX + self.name

    def calls(self, memory: dict[str, Any], op: LoggedOp) -> list[Payload]:
        found = list(self.function(memory, op) or ())
        for payload in found:
            if not isinstance(payload, GRAPH_OPS):
                raise Usage(f"the derivation {self.name} may not derive {type(payload).__name__}")
            if isinstance(payload, self.over):
                raise Usage(
                    f"the derivation {self.name} reads {type(payload).__name__} ops and derives them, too, so it would"
                    " never end"
                )
        if len(found) > DERIVED_MAX:
            raise Usage(f"the derivation {self.name} derives {len(found)} ops from one, at most {DERIVED_MAX}")
        return found


REGISTERED: dict[str, Derivation] = {}


def derivation(name: str, *, over: Iterable[type[Payload]]) -> Callable[[DerivationFunction], JobType]:
    """Registers a function for the derivation pass, which workers on the coordinator run whenever ops have come.

    The function gets a dict that it may change, kept as JSON from op to op and from pass to pass, and the next op whose
    payload is one of `over`. It returns or yields the payloads that follow from it. It must be pure: the same dict and
    op give the same payloads on every node, so it reads no clock, file or random number, and takes new ids from
    `op.derived_id`. It may not derive what it reads.
    """
    wanted = tuple(over)
    for each in wanted:
        if each.__name__ not in NAMES.values():
            raise Usage(f"bad over: {each.__name__} is not the payload of an op")
    if not wanted:
        raise Usage(f"the derivation {name} must say over which ops it goes: over=(IngestEvidence,)")

    def register(function: DerivationFunction) -> JobType:
        made = Derivation(name, wanted, function)

        def run(ctx: Context) -> dict[str, Any]:
            outcome = products_of(ctx).kit.read(lambda session: next_pass(session, made))
            for payload in outcome.payloads:
                ctx.emit(payload)
            return dict(msgspec.to_builtins(outcome.record))

        # Where an error message says that it is.
        run.__module__, run.__qualname__ = function.__module__, function.__qualname__
        job_type = handlers.job(made.kind, unique=made.kind)(run)
        REGISTERED[made.kind] = made
        return job_type

    return register


def registered(names: Iterable[str] = ()) -> list[Derivation]:
    """The derivations of this process, or those of these names."""
    wanted = list(names)
    for name in wanted:
        if PREFIX + name not in REGISTERED:
            known = ", ".join(sorted(each.name for each in REGISTERED.values())) or "none"
            raise Usage(f"no derivation {name!r} in these modules; there are {known}")
    return [each for _, each in sorted(REGISTERED.items()) if not wanted or each.name in wanted]


# One pass.


class PassOutcome(NamedTuple):
    payloads: list[Payload]
    record: DerivationPass


class DonePass(NamedTuple):
    job: Job
    record: DerivationPass


def next_pass(session: Session, made: Derivation) -> PassOutcome:
    """Runs the function over the ops that no pass has read, up to OPS_MAX of them."""
    before = next(done_passes(session, made, newest_first=True), None)
    if before is None:
        return _run(session, made, {}, session.frontier(), {}, None)
    done = before.record
    return _run(session, made, _read(done.through), session.frontier(), done.memory, ulid_text(before.job.id))


def repeated(session: Session, made: Derivation, done: DerivationPass, memory: dict[str, Any]) -> PassOutcome:
    """Runs the function over the ops that a pass has read, as far as they are here."""
    return _run(session, made, _read(done.since), _read(done.through), memory, done.previous)


def _run(
    session: Session,
    made: Derivation,
    since: Frontier,
    until: Frontier,
    memory: dict[str, Any],
    previous: str | None,
) -> PassOutcome:
    variants = frozenset(map(number_of, made.over))
    through = dict(since)
    payloads: list[Payload] = []
    inputs, outputs, read = blake3(), blake3(), 0
    for row in _rows(session, since, until):
        if read == OPS_MAX:
            break
        if is_read(session, row, variants):
            op = decode(row.body)
            changed = _as_kept(made, memory)
            found = made.calls(changed, LoggedOp(op.id, op.node_id, op.timestamp, op.payload))
            if len(payloads) + len(found) > DERIVED_MAX:
                break
            memory = changed
            payloads += found
            inputs.update(op.id)
            read += 1
        through[row.hlc[12:]] = row.hlc
    for payload in payloads:
        try:
            outputs.update(encode(PAYLOAD, payload))
        except (Malformed, TypeError, ValueError, AttributeError) as error:
            raise Usage(f"the derivation {made.name} cannot derive this {type(payload).__name__}: {error}") from None
    digests = read, inputs.hexdigest(), len(payloads), outputs.hexdigest()
    return PassOutcome(
        payloads, DerivationPass(previous, _shown(since), _shown(through), *digests, _as_kept(made, memory))
    )


def _rows(session: Session, since: Frontier, until: Frontier) -> Iterator[OpRow]:
    """The ops of all authors between two frontiers, in the order of their times."""

    def of_author(author: bytes, after: bytes, last: bytes) -> Iterator[OpRow]:
        while after < last and (rows := session.ops_of_author(author, after, OPS_STEP)):
            for row in rows:
                if row.hlc > last:
                    return
                yield row
            after = rows[-1].hlc

    authors = [of_author(author, since.get(author, b""), last) for author, last in until.items()]
    return merge(*authors, key=attrgetter("hlc"))


def is_read(session: Session, row: OpRow, variants: frozenset[int]) -> bool:
    """Whether a derivation over these ops reads this one: it counts, and is not about a derivation's own job."""
    if row.reason or row.variant not in variants:
        return False
    entry = None if row.family != JOB or row.key is None else session.job(row.key)
    return entry is None or not entry.job.kind.startswith(PREFIX)


def done_passes(session: Session, made: Derivation, newest_first: bool = False) -> Iterator[DonePass]:
    wanted = JobFilter(outcome=Outcome.SUCCEEDED, kind=made.kind, newest_first=newest_first)
    while found := session.jobs(wanted, 1):
        job = found[0].job
        try:
            record = convert(view.result(session, job), DerivationPass)
        except (msgspec.ValidationError, ValueError) as error:
            raise Failed(f"job {ulid_text(job.id)} has not the result of a derivation pass: {error}") from None
        yield DonePass(job, record)
        wanted = wanted._replace(beyond=job.id)


def missing(session: Session, done: DerivationPass) -> int | None:
    """A node of which this one has not all the ops that a pass has read."""
    here = session.frontier()
    behind = (author for author, hlc in _read(done.through).items() if here.get(author, b"") < hlc)
    return next((int.from_bytes(author, "big") for author in behind), None)


def _as_kept(made: Derivation, memory: dict[str, Any]) -> dict[str, Any]:
    """The memory as the next pass will read it, so that it does not matter where a pass ends."""
    try:
        return dict(msgspec.json.decode(msgspec.json.encode(memory, order="deterministic")))
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise Usage(f"the derivation {made.name} keeps something that is not JSON: {error}") from None


def _shown(frontier: Frontier) -> dict[str, str]:
    return {author.hex(): hlc.hex() for author, hlc in sorted(frontier.items())}


def _read(shown: Mapping[str, str]) -> Frontier:
    try:
        return {bytes.fromhex(author): bytes.fromhex(hlc) for author, hlc in shown.items()}
    except ValueError:
        raise Failed("a derivation pass says that it has read ops of no author") from None


# The coordinator asks for passes.


class DerivationWatch:
    """Asks for a pass of each of these derivations when ops have come that it reads, if this node is the
    coordinator.
    """

    def __init__(self, access: NodeAccess, served: Handlers) -> None:
        self._access = access
        self.derivations = [each for kind, each in REGISTERED.items() if served.find(kind) is not None]
        # How far the log was looked through without finding an op to read, for each derivation.
        self._seen: dict[str, Frontier] = {}

    async def run(self) -> None:
        """Runs until it is cancelled."""
        listener = self._access.listen(about(LOG))
        try:
            while True:
                await self.look()
                await asyncio.sleep(REST_S)
                await listener.wait(LOOK_S)
        finally:
            listener.close()

    async def look(self) -> bool:
        """Whether a pass was asked for."""
        if not self._seen:
            await self._access.run(lambda tx: tx.session.order_ops())
        due = await self._access.read(self._due)
        return bool(due) and any(await self._access.run(lambda tx: [ask(tx, each) for each in due]))

    def _due(self, session: Session) -> list[Derivation]:
        return [each for each in self.derivations if self._is_due(session, each)]

    def _is_due(self, session: Session, made: Derivation) -> bool:
        if (seen := self._seen.get(made.kind)) is None:
            before = next(done_passes(session, made, newest_first=True), None)
            seen = self._seen[made.kind] = {} if before is None else _read(before.record.through)
        variants = frozenset(map(number_of, made.over))
        for row in _rows(session, seen, session.frontier()):
            if is_read(session, row, variants):
                # The pass moves on; after it, everything before its end is known to be read.
                del self._seen[made.kind]
                return True
            seen[row.hlc[12:]] = row.hlc
        return False


def ask(tx: Transaction, made: Derivation) -> bool:
    """Submits a pass and returns True. It does nothing if this node is not the coordinator, and if the last pass waits
    or has failed: then the operator mends the function, and retries that pass.
    """
    newest = next(iter(tx.session.jobs(JobFilter(kind=made.kind), 1)), None)
    is_wanted = is_coordinator(tx) and (newest is None or newest.job.outcome is Outcome.SUCCEEDED)
    return is_wanted and submit_one(tx, REGISTRY[made.kind].draft({})).created


def is_coordinator(tx: Transaction) -> bool:
    permissions = tx.projection.permissions
    return not permissions.delegations or permissions.leader(tx.latest) == tx.node
