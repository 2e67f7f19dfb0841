"""What every family of subjects owes the engine, asked of each that is registered: the same states and reasons in
whatever order ops arrive, with late ones, revocations, acceptances and rebuilds. Payloads are generated from their
fields, with few names and small numbers, so that they meet; a new family needs no line here.
"""

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hocket.families.retention.facts import AuthorHead
from hocket.kernel.family import FAMILIES
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import NO_ID, SELF_NAMED
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import ABOUT, JOB, AcceptOffer, DesignateCoordinator, RevokeUcan, subject_of
from hocket.log import Log
from hocket.log.audit import verify
from hocket.log.projectors import family_names, rules_of
from hocket.log.rebuild import rebuild
from tests.log.roster.test_cascades import shown
from tests.log.roster.world import INTRODUCTIONS, KEYS, NODES, NOW, USER, Script, new_log, sent
from tests.log.test_families import Node

STATE_BYTES_MAX = 1_000_000
INTRODUCED = sent(INTRODUCTIONS)

# What a field of this name holds; any other field goes by its type.
BY_NAME: dict[str, Sequence[Any]] = {
    "row": ("t/a", "t/b", "bad"),
    "scope": ("", "repo"),
    "key": ("file:a", "file:b"),
    "keys": (("file:a",), ("file:b",), ("file:a", "file:b"), ("file:**",), ()),
    "kind": ("acme.", "acme.render", ""),
    "policy_envelope": (b"", b'{"concurrency":1}', b"bad"),
    "agent": ("ann", "bob", ""),
    "sender": ("ann", "bob"),
    "to": ("ann", f"bob@{NODES[1]:016x}", "team/", "all", ""),
    "value": (None, b"1", b"2", b'{"a":1}', b'{"a":1,"b":2}', b'{"a":3,"b":1}', b"bad"),
    "body": (b"", b'"hello"'),
    "reason": ("", "because"),
    "message_type": ("", "note"),
    "attachments": ((),),
    "thread": (None,),
    "match": ("", "acme.", "acme.render"),
    "heads": ((), (AuthorHead(NODES[0], 1, 0, bytes(16)),)),
    "kept": ((), ((JOB, bytes(16)),)),
    "root": (bytes(32),),
    "is_archived": (False,),
    "waives_archive": (True, False),
    "keep_ms": (None, 3_600_000),
    "at_ms": (0, 1, 5),
}
NUMBERS = (0, 1, 2, 3, 1_000, 5_000_000)


def drawn(hint: Any, name: str, ids: Sequence[bytes]) -> st.SearchStrategy[Any]:
    if name in BY_NAME:
        return st.sampled_from(BY_NAME[name])
    if get_origin(hint) in (Union, type(int | None)):
        return st.one_of(*(drawn(each, "", ids) for each in get_args(hint)))
    if hint is type(None):
        return st.none()
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    if hint is bytes:
        return st.sampled_from([*ids, bytes(15) + b"\1"])
    if hint is int:
        return st.sampled_from(NODES if name == "node" else NUMBERS)
    assert hint is str, f"say in BY_NAME what a field {name} of type {hint} holds"
    return st.sampled_from(("", "a"))


def payloads(family: str) -> list[type]:
    """The payloads of a family: those that name a subject of it."""
    examples = {payload: example(payload) for payload in ABOUT if payload is not AcceptOffer}
    return [payload for payload, value in examples.items() if ABOUT[payload](value).family == family]


def example(payload: type) -> Any:
    """The simplest one."""
    blank: dict[Any, Any] = {str: "", bytes: NO_ID, int: 0}
    hints = get_type_hints(payload)
    return payload(**{name: blank.get(hint) for name, hint in hints.items()})


def fields_of(payload: type, ids: Sequence[bytes]) -> st.SearchStrategy[Any]:
    return st.builds(
        payload,
        **{
            name: st.just(NO_ID) if SELF_NAMED.get(payload) == name else drawn(hint, name, ids)
            for name, hint in get_type_hints(payload).items()
        },
    )


# Also those that keep their states in tables of their own; their reasons are compared. Jobs have suites of their own.
KNOWN = sorted({*family_names()} - {JOB})
families = pytest.mark.parametrize("family", KNOWN)


def test_every_family_has_payloads() -> None:
    assert FAMILIES.keys() <= set(KNOWN) and all(payloads(family) for family in KNOWN)


class Step(NamedTuple):
    """What a node does: `say` a payload, `accept` an offer, or `pull` from another node."""

    what: str
    node: int
    wall: int
    choice: int
    other: int


steps = st.builds(
    Step,
    st.sampled_from(("say", "say", "say", "accept", "revoke", "designate")),
    st.integers(0, 2),
    st.integers(1, 30),
    st.integers(0, 1_000),
    st.integers(0, 2),
)


def told(data: st.DataObject, family: str, script: Script, step: Step) -> None:
    """Adds one op to the history, at any time, whether or not it comes before those that are there."""
    about = [op for op in script.ops if (found := subject_of(op.payload)) is not None and found.family == family]
    if step.what == "designate":
        script.say(step.node, step.wall, DesignateCoordinator(NODES[step.other]))
    elif step.what == "revoke" and step.node != step.other:
        introduction = INTRODUCTIONS[step.other].payload
        script.say(step.node, step.wall, RevokeUcan(introduction.ucan_cid))  # type: ignore[union-attr]
    elif step.what == "accept" and about:
        offer = about[step.choice % len(about)]
        subject = subject_of(offer.payload)
        assert subject is not None
        script.say(step.node, step.wall, AcceptOffer(*subject, offer.id))
    else:
        kinds = payloads(family)
        ids = [op.id for op in script.ops]
        payload = data.draw(fields_of(kinds[step.choice % len(kinds)], ids or [bytes(16)]))
        deps = (ids[-1],) if step.choice % 7 == 0 and ids else ()
        op = script.say(step.node, step.wall, payload, deps, logical=len(script.ops))
        if (named := SELF_NAMED.get(type(payload))) is not None:
            script.ops[-1] = replace(op, payload=replace(payload, **{named: op.id}))


@families
@settings(max_examples=settings.default.max_examples // 2)
@given(st.data(), st.lists(steps, min_size=1, max_size=14))
def test_the_order_of_arrival_makes_no_difference(family: str, data: st.DataObject, history: list[Step]) -> None:
    script = Script()
    for step in history:
        told(data, family, script, step)
    seen, whole = [], sent(script.ops)
    for _ in range(2):
        order, log = data.draw(st.permutations(whole)), new_log()
        log.admit(INTRODUCED)
        size = data.draw(st.integers(1, 5))
        for start in range(0, len(order), size):
            log.admit(order[start : start + size])
        seen.append(shown(log))
        rebuild(log.store, log.permissions_reader, NOW)
        seen.append(shown(log))
    assert all(each == seen[0] for each in seen)
    check_states(log, family)


def check_states(log: Log, family: str) -> None:
    """A state is bounded, has one form as bytes, and has an op."""
    if FAMILIES[family].table is not None:
        return
    rules = rules_of(family)
    with log.store.read() as session:
        for row in session.each_subject():
            if row.subject.family == family:
                assert rules.encode(rules.decode(row.state)) == row.state and len(row.state) < STATE_BYTES_MAX
                assert session.ops_about(row.subject)


class Agreeing(Node):
    """A node that writes by itself and exchanges with others."""

    def say(self, payload: Any) -> None:
        self.log.run(lambda tx: tx.author(payload))

    def ids(self) -> list[bytes]:
        with self.log.store.read() as session:
            return [row.id for row in session.last_ops(8)]


acts = st.builds(
    Step,
    st.sampled_from(("say", "say", "say", "pull", "pull", "revoke")),
    st.integers(0, 2),
    st.just(0),
    st.integers(0, 1_000),
    st.integers(0, 2),
)


@families
@settings(max_examples=settings.default.max_examples // 4)
@given(st.data(), st.booleans(), st.lists(acts, max_size=16))
def test_nodes_that_have_heard_everything_agree(
    family: str, data: st.DataObject, has_arbiter: bool, history: list[Step]
) -> None:
    nodes = [Agreeing(number) for number in range(3)]
    for node in nodes[1:]:
        node.pull(nodes[0])
    if has_arbiter:
        nodes[0].say(DesignateCoordinator(nodes[0].log.node))
    kinds = payloads(family)
    for step in history:
        node = nodes[step.node]
        if step.what == "pull":
            node.pull(nodes[step.other])
        elif step.what == "revoke":
            # Nobody revokes the arbiter: the nodes would wait for its word.
            if step.other != 0 and step.choice % 3 == 0:
                node.say(RevokeUcan(content_hash(issue(USER, KEYS[step.other].public, ROOT, 0, None))))
        else:
            node.say(data.draw(fields_of(kinds[step.choice % len(kinds)], node.ids() or [bytes(16)])))
    for _ in range(3):
        for node in nodes:
            for other in nodes:
                node.pull(other)
    states = []
    for node in nodes:
        check_states(node.log, family)
        with node.log.store.read() as session:
            states.append(session.each_subject())
        assert not verify(node.log.store, user=node.log.user, is_bound=False).findings
        rebuild(node.log.store, node.log.permissions_reader, NOW)
        with node.log.store.read() as session:
            states.append(session.each_subject())
    assert all(state == states[0] for state in states)
