"""Histories in bundles: whatever the order, the duplication and the batching in which the entries arrive, every job and
every fact stand as the naive model says of the facts as single ops. A rebuild says the same, and so does an audit.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.kernel.bundles import BUNDLED, facts_of
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.keys import did_key
from hocket.kernel.mesh_rules import HOCKET, encode_rules
from hocket.kernel.ops import NO_ID, Op, bound, link_to
from hocket.kernel.policy import decode_policy, encode_policy
from hocket.kernel.vocabulary import AcceptWork, CompleteJob, CreateArtifact, Payload, ScheduleJob, discriminant
from hocket.log import RULES, Log
from hocket.log.audit import verify
from hocket.log.rebuild import rebuild
from hocket.log.transaction import GAPS
from tests.bundled import bundled
from tests.log.roster.histories import deliveries, histories
from tests.log.roster.model import Mesh
from tests.log.roster.test_model import check
from tests.log.roster.world import INTRODUCTIONS, NOW, USER, new_log, sent
from tests.stores import new_store

MANY = settings(max_examples=settings().max_examples * 3 // 2)
AHEAD_MAX = 6


class Retold:
    """A history as the same authors would tell it with bound ids, some of it in bundles. `entries` is what they send;
    `facts` is what it says, op by op.
    """

    def __init__(self, draw: Any, ops: list[Op]) -> None:
        self._names: dict[bytes, bytes] = {}
        self._last = {op.node_id: op.id for op in INTRODUCED}
        self._taken: set[Hlc] = set()
        self.entries: list[Op] = []
        self.facts: list[Op] = []
        left = sorted(ops, key=lambda op: (op.timestamp, op.id))
        while left:
            first = left.pop(0)
            more = [op for op in left[:AHEAD_MAX] if self._fit(first, op)] if draw(st.booleans()) else []
            for op in more:
                left.remove(op)
            if more or (discriminant(first.payload) in BUNDLED and draw(st.integers(0, 9)) == 9):
                self._bundle([first, *more])
            else:
                self._single(first)

    def _fit(self, first: Op, op: Op) -> bool:
        number = discriminant(first.payload)
        return op.node_id == first.node_id and discriminant(op.payload) == number and number in BUNDLED

    def _single(self, told: Op) -> None:
        op, _ = bound(told.timestamp, (*self._deps(told), link_to(self._last[told.node_id])), self._payload(told))
        self._tell(told, op)
        self.entries.append(op)
        self._last[op.node_id] = op.id

    def _bundle(self, told: list[Op]) -> None:
        stamp = told[0].timestamp
        while any(stamp._replace(logical=stamp.logical + n) in self._taken for n in range(len(told) + 1)):
            stamp = stamp._replace(logical=stamp.logical + 1)
        facts = [(self._deps(op), self._payload(op)) for op in told]
        op, _ = bundled(stamp, (link_to(self._last[stamp.node]),), facts)
        self.entries.append(op)
        self._last[op.node_id] = op.id
        for each, fact in zip(told, facts_of(op), strict=True):
            self._tell(each, fact.op)

    def _tell(self, told: Op, op: Op) -> None:
        self._taken.add(op.timestamp)
        self._names[told.id] = op.id
        if isinstance(told.payload, ScheduleJob):
            self._names.setdefault(told.payload.job_id, op.id)
        self.facts.append(msgspec.structs.replace(op, causal_deps=op.cited))

    def _deps(self, told: Op) -> tuple[bytes, ...]:
        return tuple(self._names.get(dep, dep) for dep in told.causal_deps)

    def _payload(self, told: Op) -> Payload:
        payload = told.payload
        match payload:
            case ScheduleJob():
                policy = decode_policy(payload.policy_envelope)
                after = tuple(ulid_text(self._name(parse_ulid(each))) for each in policy.after)
                envelope = encode_policy(msgspec.structs.replace(policy, after=after))
                return msgspec.structs.replace(payload, job_id=NO_ID, policy_envelope=envelope)
            case CreateArtifact():
                source = None if payload.source_job is None else self._name(payload.source_job)
                return msgspec.structs.replace(payload, artifact_id=NO_ID, source_job=source)
            case AcceptWork():
                return AcceptWork(self._name(payload.job_id), self._name(payload.offer))
            case CompleteJob():
                artifacts = tuple(map(self._name, payload.output_artifacts))
                return msgspec.structs.replace(payload, job_id=self._name(payload.job_id), output_artifacts=artifacts)
        if (job_id := getattr(payload, "job_id", None)) is not None:
            return msgspec.structs.replace(payload, job_id=self._name(job_id))
        return payload

    def _name(self, name: bytes) -> bytes:
        return self._names.get(name, name)


INTRODUCED = [bound(op.timestamp, (link_to(NO_ID),), op.payload)[0] for op in INTRODUCTIONS]


@st.composite
def retold(draw: Any) -> Retold:
    return Retold(draw, draw(histories()))


def bound_log() -> Log:
    """A log that takes ops in any order: it does not expect to have all of them."""
    store = new_store()
    with store.write() as session:
        session.set_meta(RULES, encode_rules(HOCKET))
    log = new_log(store)
    with store.write() as session:
        session.lock_author(log.node.to_bytes(8, "big"))
        session.set_own_meta(GAPS, b"\1")
    assert log.admit(sent(INTRODUCED)).appended == len(INTRODUCED)
    return log


def received(batches: list[list[Op]]) -> Log:
    log = bound_log()
    for batch in batches:
        assert not log.admit(sent(batch)).refused
    return log


def said(log: Log, mesh: Mesh) -> object:
    digest, reasons = check(log, mesh, introductions=False)
    return digest, reasons


@pytest.mark.req("LW-51")
@MANY
@given(st.data())
def test_bundles_say_what_the_model_says_of_their_facts_in_every_order(data: st.DataObject) -> None:
    history = data.draw(retold())
    mesh = Mesh(history.facts)
    mesh.verdicts.update((op.id, set()) for op in INTRODUCED)
    first = received(data.draw(deliveries(history.entries)))
    expected = said(first, mesh)
    second = received(data.draw(deliveries(history.entries)))
    assert said(second, mesh) == expected
    assert rebuild(second.store, second.permissions_reader, NOW).unchanged
    assert said(second, mesh) == expected
    for log in (first, second):
        assert verify(log.store, user=did_key(USER.public), marks=log.signer, is_bound=True).findings == []
