"""Received bundles: a node judges their facts together (`log.set_judges`), or one by one. Both must leave the same: the
admissions, the log, the roster, whom they wake, and what their authors are charged; and a rebuild must change nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hocket.families.availability.facts import Availability, SetAvailability
from hocket.families.jobs import claiming as accepting
from hocket.families.jobs import requests as jobs
from hocket.families.kinds.facts import DefineKind
from hocket.kernel.bundles import facts_of
from hocket.kernel.clock import Hlc
from hocket.kernel.ops import NO_ID, Op, encode, link_to, sign
from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.ucan import ROOT, Capability, Quota, issue, read
from hocket.kernel.vocabulary import (
    AcceptWork,
    Bundle,
    CancelJob,
    ClaimWork,
    CompleteJob,
    DesignateCoordinator,
    IngestEvidence,
    Payload,
    RevokeUcan,
    RouteKind,
    ScheduleJob,
    Telemetry,
)
from hocket.log import Admission, Transaction, set_judges
from hocket.store import Session
from tests.bundled import bundled
from tests.trust.members import READS, START, USER, Forger, Member, job, key, meet, owner, remembering

# The guests may do nothing about the second.
KINDS = ("acme.a", "other.b")
MINUTE_MS = 60_000
UNKNOWN = b"\x01" * 16
OPTIONS: tuple[dict[str, Any], ...] = (
    *({} for _ in range(5)),
    {"open": True},
    {"ttl_ms": 30},
    {"not_before": START + 60},
    {"concurrency": 1},
    {"after": True},
)
ODD = ("", "", "other claimer", "no lease", "cites", "unknown job", "other kind", "long lease", "other offer")
numbers = st.integers(0, 9)
chosen = st.lists(numbers, min_size=2, max_size=6)
sides = st.sampled_from(("owner", "worker", "rival"))
forged = st.sampled_from(("schedule", "claim", "complete", "accept"))
steps = st.one_of(
    st.tuples(st.just("submit"), sides, st.lists(st.sampled_from(OPTIONS), min_size=2, max_size=4), st.booleans()),
    *(st.tuples(st.just("claim"), sides, chosen) for _ in range(3)),
    *(st.tuples(st.just("complete"), sides, chosen) for _ in range(3)),
    *(st.tuples(st.just("forge"), forged, chosen, st.integers(-40, 40), st.sampled_from(ODD)) for _ in range(2)),
    st.tuples(st.just("define"), st.sampled_from(KINDS), st.sampled_from([None, 1])),
    st.tuples(st.just("cancel"), numbers),
    st.tuples(st.just("route"), st.sampled_from(KINDS), sides),
    st.tuples(st.just("available"), sides, st.sampled_from(Availability)),
    st.tuples(st.just("revoke"), st.sampled_from(["worker", "rival", "forger"])),
    st.tuples(st.just("designate"), st.sampled_from(["owner", "second", "forger"])),
    st.tuples(st.just("appoint"), st.sampled_from(["owner", "second"]), st.sampled_from(["owner", "second", "forger"])),
    st.tuples(st.just("fork"), numbers),
    *(st.tuples(st.just("send"), st.sampled_from(["worker", "rival", "forger"]), st.just("owner")) for _ in range(4)),
    *(st.tuples(st.just("send"), st.just("owner"), st.sampled_from(["worker", "rival"])) for _ in range(3)),
    st.tuples(st.just("wait"), st.sampled_from([1, 40, 100_000])),
)
# How a node that was away gets everything: whose next entries, how many of them at a time, and from whom.
authors = st.sampled_from(("owner", "owner", "second", "worker", "rival", "forger"))
# A negative number is of the last ones.
counts = st.sampled_from((1, 2, 3, -1))
orders = st.lists(st.tuples(authors, counts, st.sampled_from([None, "owner", "author"])), max_size=12)
histories = st.tuples(
    st.lists(steps, min_size=3, max_size=14), orders, st.sampled_from([None, 12]), *[st.booleans()] * 3
)


class Mesh:
    """The coordinator, two guests, a forger with a guest's key, and what each was told."""

    def __init__(self, forger_ops: int | None, is_sharing: bool) -> None:
        self.said: list[object] = []
        self.owner, self.worker, self.rival = owner(), Member("worker"), Member("rival")
        self.second = Member("second").enter(issue(USER, key("second").public, ROOT, START // 1000 - 10, None))
        granted = (*(job(each, "acme.") for each in ("Schedule", "Claim", "Complete")), *READS)
        shares = Capability("Store", "Decide", {"key_prefix": [f"{self.owner.node:016x}"]})
        self.tokens: dict[str, bytes] = {}
        for guest in (self.worker, self.rival):
            extra = (shares,) if is_sharing and guest is self.worker else ()
            self.tokens[guest.name] = self.owner.invite(guest, *granted, *extra)
            guest.enter(self.tokens[guest.name], self.owner.token)
        self.members = {each.name: each for each in (self.owner, self.worker, self.rival, self.second)}
        meet(*self.members.values())
        self.forger = Forger("forger")
        above, until = [read(self.owner.token).cid], None
        limit = Quota(ops=forger_ops) if forger_ops is not None else Quota()
        token = issue(self.owner.key, self.forger.key.public, granted, START // 1000 - 10, until, above, quota=limit)
        self.tokens["forger"] = token
        self.forged = self.forger.enter(token, self.owner.token, wall=START + 1)
        self.receive(self.owner, self.forged, None)
        self.coordinator = self.owner.node
        self.jobs: list[bytes] = []
        self.claims: dict[bytes, list[bytes]] = {}
        self.step = 0

    def receive(self, member: Member, sent: Sequence[tuple[bytes, Op]], sender: int | None) -> Admission:
        """Notes what the admission says, what became of each op, and whom it wakes."""

        def decide(tx: Transaction, taken: Sequence[Op]) -> None:
            self.said.append(accepting.accept(tx, taken))
            self.said.append([tx.projection.reason(op.id) for op in taken])
            tx.projection.flush()
            self.said.append(tx.changes)

        admission = member.log.admit(list(sent), decide=decide, sender=sender)
        self.said.append(admission)
        return admission

    def ids(self, numbers: Sequence[int]) -> list[bytes]:
        return [self.jobs[number % len(self.jobs)] for number in numbers] if self.jobs else []

    def write(self, member: Member, asked: list[tuple[Payload, tuple[bytes, ...]]]) -> list[Any]:
        member.clock.now += 1
        found = member.log.run(lambda tx: tx.author_all(asked))
        self.said.append(found)
        return found

    def take(self, step: tuple[Any, ...]) -> None:
        self.step += 1
        match step:
            case ("submit", who, options, is_mixed):
                asked = []
                for number, each in enumerate(options):
                    after = {"after": (self.jobs[0].hex(),)} if "after" in each and self.jobs else {}
                    policy = {name: value for name, value in each.items() if name != "after"} | after
                    kind = KINDS[number % 2 if is_mixed else 0]
                    asked.append((ScheduleJob(NO_ID, kind, b"{}", encode_policy(Policy(**policy))), ()))
                self.jobs += [op.id for op in self.write(self.members[who], asked) if hasattr(op, "is_offer")]
            case ("claim", who, numbers):
                member = self.members[who]
                asked = [(ClaimWork(each, member.node, MINUTE_MS), ()) for each in self.ids(numbers)]
                found = self.write(member, asked)
                for (payload, _), op in zip(asked, found, strict=True):
                    if hasattr(op, "is_offer"):
                        self.claims.setdefault(payload.job_id, []).append(op.id)
                        with member.store.write() as session:
                            session.put_offer(op.id, payload.job_id, 7)
            case ("complete", who, numbers):
                member = self.members[who]
                held = [(each, entry.job.claim_op) for each in self.ids(numbers) if (entry := member.entry(each))]
                self.write(member, [(_completion(each), (claim,) if claim else ()) for each, claim in held])
            case ("forge", what, numbers, ms, odd):
                self.forge(what, self.ids(numbers), ms, odd)
            case ("define", kind, concurrency):
                self.owner.say(DefineKind(kind, encode_policy(Policy(concurrency=concurrency))))
            case ("cancel", number):
                for each in self.ids([number]):
                    self.owner.clock.now += 1
                    self.said.append(self.owner.log.run(lambda tx, each=each: tx.author(CancelJob(each, ""))))
            case ("route", kind, who):
                self.owner.say(RouteKind(kind, self.members[who].node))
            case ("available", who, availability):
                self.owner.say(SetAvailability(self.members[who].node, availability, ""))
            case ("revoke", who):
                self.owner.say(RevokeUcan(read(self.tokens[who]).cid))
            case ("designate", who):
                before = self.coordinator
                self.coordinator = self.forger.node if who == "forger" else self.members[who].node
                self.owner.say(DesignateCoordinator(self.coordinator), about=before)
            case ("appoint", by, who):
                # It says nothing about the coordinator before.
                self.coordinator = self.forger.node if who == "forger" else self.members[who].node
                self.members[by].say(DesignateCoordinator(self.coordinator))
            case ("fork", number):
                self.fork(number)
            case ("send", "forger", to):
                self.receive(self.members[to], self.forged, None)
            case ("send", who, to):
                self.receive(self.members[to], self.members[who].ops(), self.members[who].node)
            case ("wait", ms):
                for member in self.members.values():
                    member.clock.now += ms

    def forge(self, what: str, ids: list[bytes], ms: int, odd: str) -> None:
        """A bundle that no honest node would write."""
        node = self.forger.node
        claimer = node + 1 if odd == "other claimer" else node
        lease = {"no lease": 0, "long lease": 2**60}.get(odd, MINUTE_MS)
        cited = (UNKNOWN,) if odd == "cites" else ()
        ids = [*ids, UNKNOWN] if odd == "unknown job" else ids
        facts: list[tuple[tuple[bytes, ...], Payload]] = []
        for number, each in enumerate(ids):
            named = ids[(number + 1) % len(ids)] if odd == "other offer" else each
            claim = self.claims.get(named, [UNKNOWN])[-1]
            kind = KINDS[number % 2 if odd == "other kind" else 0]
            payloads: dict[str, tuple[tuple[bytes, ...], Payload]] = {
                "schedule": (cited, ScheduleJob(NO_ID, kind, b"", b"")),
                "claim": (cited, ClaimWork(each, claimer, lease)),
                "complete": ((claim, *cited), _completion(each)),
                "accept": (cited, AcceptWork(each, claim)),
            }
            facts.append(payloads[what])
        if not facts:
            return
        wall = max(self.owner.clock.now + ms, START + 2)
        last = self.forged[-1][1].timestamp
        # Its own history goes on: a later time than that of all its facts before.
        stamp = Hlc(max(wall, last.wall + 1), 0, node)
        op, _ = bundled(stamp, (link_to(self.forger.last),), facts)
        op = sign(op, self.forger.key)
        self.forger.last = op.id
        self.forged.append((encode(op), op))

    def fork(self, number: int) -> None:
        """An op of the forger at the time of a fact."""
        bundles = [op for _, op in self.forged if isinstance(op.payload, Bundle)]
        if bundles:
            facts = list(facts_of(bundles[number % len(bundles)]))
            at = facts[number % len(facts)].op.timestamp
            self.forged.append(self.forger.say(IngestEvidence(bytes(16), bytes(32), "note", "x"), at.wall, at.logical))


def _completion(job_id: bytes) -> CompleteJob:
    return CompleteJob(job_id, (), (), Telemetry(1, None, None, None))


def rows(session: Session, nodes: Sequence[int]) -> Iterator[object]:
    yield from session.ops_after(0, 10_000)
    yield from session.entries_after(0, 10_000)
    yield from session.each_job()
    yield session.head()
    yield session.offers()
    yield session.written([node.to_bytes(8, "big") for node in nodes])


def late_comer(mesh: Mesh, order: Sequence[tuple[str, int, str | None]], is_late: bool, is_partial: bool) -> Member:
    """A node that gets the histories of all authors in pieces, in that order. One that may read only a part does not
    check whether an op follows another.
    """
    late = Member("late")
    if is_partial:
        late.enter(mesh.owner.invite(late, job("Read", "acme.")), mesh.owner.token)
    else:
        late.enter(issue(USER, key("late").public, ROOT, START // 1000 - 10, None))
    late.clock.now = mesh.owner.clock.now
    queues: dict[int, list[tuple[bytes, Op]]] = {}
    seen: set[bytes] = set()
    everything = [item for member in mesh.members.values() for item in member.ops()]
    for raw, op in [*everything, *(mesh.forged if is_late else [])]:
        if op.id not in seen:
            seen.add(op.id)
            queues.setdefault(op.node_id, []).append((raw, op))
    # The delegations: the others have theirs and the owner's.
    heads = [queue[: 1 if author == mesh.second.node else 2] for author, queue in queues.items()]
    mesh.receive(late, [item for head in heads for item in head], None)
    nodes = {name: member.node for name, member in mesh.members.items()} | {"forger": mesh.forger.node}
    for name, count, sender in order:
        author = nodes[name]
        queue = queues[author]
        part, queues[author] = (queue[:count], queue[count:]) if count > 0 else (queue[count:], queue[:count])
        by = {"owner": mesh.owner.node, "author": author}.get(sender or "")
        mesh.receive(late, part, by)
    mesh.receive(late, everything, None)
    return late


def played(history: Any) -> list[object]:
    taken, order, forger_ops, is_late, is_sharing, is_partial = history
    mesh = Mesh(forger_ops, is_sharing)
    for step in taken:
        mesh.take(step)
    late = late_comer(mesh, order, is_late, is_partial)
    found: list[object] = [*mesh.said]
    everybody = (*mesh.members.values(), late)
    nodes = [*(each.node for each in everybody), mesh.forger.node]
    for member in everybody:
        member.log.settle()
        with member.log.store.read() as session:
            found += rows(session, nodes)
        assert member.rebuilt()
    return found


PLAIN: tuple[Any, ...] = ("submit", "owner", [{}, {}, {}], False)
OUT = (("send", "owner", "worker"), ("send", "owner", "rival"))
CLAIMED = (PLAIN, *OUT, ("claim", "worker", [0, 1, 2]), ("send", "worker", "owner"), ("send", "owner", "worker"))
OFFERED = (PLAIN, *OUT, ("claim", "worker", [0, 1, 2]))
RIVALS = (PLAIN, *OUT, ("claim", "worker", [0, 1, 2]), ("wait", 1), ("claim", "rival", [0, 1, 2]))


# The offers come before the jobs, and the decisions after all offers.
UNORDERED = [("worker", 3, None), ("owner", 1, None), ("rival", 3, None), ("owner", 9, None)]
OFFERS_FIRST = [("owner", 3, None), ("worker", 5, None), ("rival", 5, None), ("owner", 9, None)]
FORK_FIRST = [("owner", 9, None), ("forger", -1, None), ("forger", 9, None)]
FORK_LATER = [("owner", 9, None), ("forger", 3, None), ("forger", 9, None)]
MIXED: tuple[Any, ...] = ("submit", "owner", [{}, {}, {}], True)
# Later than the jobs, so that it is judged as a set.
FORGED: tuple[Any, ...] = ("forge", "claim", [0, 1, 2], 1, "")
TO_OWNER = ("send", "forger", "owner")
ENDS = (("complete", "worker", [0, 1, 2]), ("send", "worker", "owner"))
ENDED = [*CLAIMED, *ENDS]
OWN_CLAIM = ("claim", "owner", [0, 1, 2])
# The forger is the coordinator when the offers come.
REPLACED = (*OFFERED, ("designate", "forger"), ("send", "worker", "owner"))
# Its successor knew of nothing that it wrote then.
OVERTAKEN = (*REPLACED, ("wait", 40), ("designate", "owner"))
# What the last designation pins bounds the tenure of the forger, and the owner's before it if that is not known.
APPOINTED = (("wait", 40), ("appoint", "owner", "forger"), ("wait", 40), ("designate", "owner"))
APPOINTED_BY_SECOND = (("wait", 40), ("appoint", "second", "forger"), ("wait", 40), ("designate", "owner"))
# The forger is the coordinator between two facts of one bundle.
AT_ONCE: tuple[Any, ...] = ("wait", -1)
DEFINE = ("define", "other.b", None)
DIVIDED = (DEFINE, AT_ONCE, DEFINE, AT_ONCE, ("designate", "forger"), AT_ONCE, ("designate", "owner"))
HONEST, LATE = (False, False, False), (True, False, False)


@pytest.mark.slow
@pytest.mark.req("LW-51")
@given(histories)
@example((ENDED, UNORDERED, None, *HONEST))
@example(([*RIVALS, ("send", "worker", "owner"), *OUT], UNORDERED, None, *HONEST))
@example(([*RIVALS, ("send", "rival", "owner"), ("send", "worker", "owner"), *OUT], UNORDERED, None, *HONEST))
@example(([*CLAIMED, ("wait", 40), ("claim", "rival", [0, 1, 2])], UNORDERED, None, *HONEST))
@example(([*CLAIMED, ("wait", 40), ("claim", "rival", [0, 1, 2])], OFFERS_FIRST, None, *HONEST))
@example(([PLAIN, FORGED, TO_OWNER], [], 4, *LATE))
@example(([PLAIN, FORGED, ("fork", 1), TO_OWNER], [("owner", 9, None)], None, *LATE))
@example(([PLAIN, FORGED, ("fork", 1)], [("owner", 9, None), ("forger", 9, None)], None, True, False, True))
@example(([PLAIN, FORGED, ("fork", 1)], FORK_FIRST, None, True, False, True))
@example(([PLAIN, FORGED, ("fork", 1)], FORK_LATER, None, True, False, True))
@example(([PLAIN, FORGED, TO_OWNER, ("fork", 1), TO_OWNER], [], None, *LATE))
@example(([PLAIN, ("forge", "schedule", [0, 1, 2], 1, "other kind"), TO_OWNER], [], None, *LATE))
@example(([MIXED, FORGED, TO_OWNER], [], None, *LATE))
@example(([("submit", "owner", [{}, {"open": True}, {}], False), FORGED, TO_OWNER], [], None, *LATE))
@example(([*CLAIMED, ("forge", "accept", [0, 1, 2], 1, ""), TO_OWNER], [], None, *LATE))
@example(([*REPLACED, ("forge", "claim", [0, 1, 2], 1, ""), TO_OWNER], [], None, *LATE))
@example(([*REPLACED, ("forge", "accept", [0, 1, 2], 1, ""), TO_OWNER], [], None, *LATE))
@example(([*REPLACED, ("forge", "accept", [0, 1, 2], 1, "other offer"), TO_OWNER], [], None, *LATE))
@example(([*OVERTAKEN, ("forge", "claim", [0, 1, 2], -20, ""), TO_OWNER], [], None, *LATE))
@example(([*OVERTAKEN, ("forge", "accept", [0, 1, 2], -20, ""), TO_OWNER], [], None, *LATE))
@example(([PLAIN, *DIVIDED, ("forge", "claim", [0, 1, 2, 0, 1], 0, ""), TO_OWNER], [], None, *LATE))
@example(([*CLAIMED, *APPOINTED], [], None, *HONEST))
@example(([*CLAIMED, *APPOINTED_BY_SECOND], [("owner", 99, None), ("worker", 99, None)], None, *HONEST))
@example(([*CLAIMED, ("revoke", "worker"), *ENDS], [], None, *HONEST))
@example(([PLAIN, ("route", "acme.a", "worker"), OWN_CLAIM], [], None, *HONEST))
@example(([PLAIN, ("available", "owner", Availability.DRAINING), OWN_CLAIM], [], None, *HONEST))
@example(([("define", "acme.a", 1), *ENDED], [], None, *HONEST))
def test_a_received_set_is_judged_as_its_facts_one_by_one(history: Any) -> None:
    with remembering():
        together = played(history)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(set_judges, "judge_of", lambda *_, **__: None)
            assert played(history) == together


@pytest.mark.req("LW-43")
def test_a_node_that_lost_a_bundle_gets_it_back_and_goes_on() -> None:
    first, second = owner(), Member("second")
    second.enter(first.invite(second, *(job(each) for each in ("Schedule", "Claim", "Complete")), *READS), first.token)
    meet(first, second)
    backup = second.ops()
    second.clock.now += 1
    drafts = [jobs.Draft("acme.a", b"{}", Policy()) for _ in range(3)]
    second.log.run(lambda tx: jobs.submit(tx, drafts))
    assert isinstance(second.ops()[-1][1].payload, Bundle)
    first.pull(second)
    restored = Member("second")
    restored.token, restored.clock.now = second.token, second.clock.now
    restored.receive(backup)
    restored.receive(first.ops())
    fresh = restored.submit()
    admission = first.pull(restored)
    assert admission.forked == frozenset() and admission.rejected == 0
    assert first.entry(fresh) is not None and first.digest() == restored.digest()
