"""Ops are linked when they are put on the log, and the end of the chain is marked at once and signed soon: nothing
unsigned leaves the node, and a writer without the key adds no op.
"""

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path

import pytest

from hocket import store as stores
from hocket.errors import StoreError
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.kernel.clock import pack
from hocket.kernel.jws import detached
from hocket.kernel.keys import did_key
from hocket.kernel.mesh_rules import HOCKET, encode_rules
from hocket.kernel.ops import Op, bind, decode, link_to, unsigned, verify_op, with_signature
from hocket.kernel.policy import DEFAULT
from hocket.kernel.signing import OpSigner, is_marked
from hocket.kernel.vocabulary import RouteKind, number_of
from hocket.log import RULES, Log
from hocket.log.audit import verify
from hocket.log.copies import OpReader, export_ops
from hocket.log.sealing import OwnSealer, link
from hocket.mesh.outgoing import page, reader
from hocket.node.runtime import Runtime
from hocket.store import NO_LINK, NO_SEAL, EndSeal, Head, NewOp, OpRow, SealedOp, Session
from tests.log.processes import eventually, go, start
from tests.log.roster.world import READER, STRANGER, USER, Clock, introduction, randomness


@pytest.fixture
def helpers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as helpers:
        yield helpers


def opened(path: Path, helpers: ThreadPoolExecutor | None = None) -> Log:
    """A log as a process of the node has it, in a database that others have open too."""
    store = stores.open(path / "log.db", create=True)
    with store.write() as session:
        session.set_meta(RULES, encode_rules(HOCKET))
    clock = Clock()
    return Log(store, READER, did_key(USER.public), wall=clock, randomness=randomness(b""), helpers=helpers)


def introduce(log: Log) -> None:
    log.run(lambda tx: tx.author(introduction(READER).payload))


def route(log: Log, kind: str) -> None:
    assert isinstance(log.run(lambda tx: tx.author(RouteKind(kind, None))), Op)


def head(log: Log) -> Head:
    with log.store.read() as session:
        return session.head()


def links(bodies: list[bytes]) -> list[bytes]:
    """The links of the first ops of a log."""
    return list(accumulate(bodies, link, initial=bytes(32)))[1:]


def rows(log: Log) -> list[OpRow]:
    with log.store.read() as session:
        return session.entries_after(0, 1_000)


def is_signed(log: Log) -> bool:
    return head(log).seal.signed == head(log).seq


def audited(log: Log, *, with_key: bool = True) -> list[str]:
    audit = verify(log.store, user=log.user, marks=log.signer if with_key else None, is_bound=True)
    return [finding.what for finding in audit.findings]


@pytest.mark.req("LW-07", "VX-07")
def test_a_commit_links_and_marks_and_the_end_is_signed_soon(tmp_path: Path, helpers: ThreadPoolExecutor) -> None:
    log = opened(tmp_path, helpers)
    introduce(log)
    log.append_plain("k", b"{}")
    end = head(log)
    assert end.seq == 2 and end.seal.mark
    assert all(is_marked(row.body) for row in rows(log))
    assert [row.chain for row in rows(log)] == links([row.body for row in rows(log)])
    eventually(lambda: is_signed(log))
    assert audited(log) == [] == audited(log, with_key=False)
    log.close()


@pytest.mark.req("VX-07")
def test_commits_in_quick_succession_share_a_signature(tmp_path: Path, helpers: ThreadPoolExecutor) -> None:
    log = opened(tmp_path, helpers)
    signer = log._sealer._signer
    made: list[int] = []
    sign = signer._sign_end

    def count(message: bytes) -> bytes:
        made.append(len(message))
        return sign(message)

    log._sealer._sign_s = 3_600.0
    signer._sign_end = count
    introduce(log)
    for number in range(20):
        route(log, f"k{number}")
    assert len(made) == 1 and head(log).seal.signed == 1
    assert audited(log) == []
    assert audited(log, with_key=False) == ["the ops after number 1 can be checked only with the key of their node"]
    log.close()
    assert len(made) == 2 and is_signed(log) and audited(log, with_key=False) == []


@pytest.mark.req("VX-07")
def test_the_thread_signs_only_an_end_that_no_commit_has_followed(
    tmp_path: Path, helpers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path, helpers)
    introduce(log)
    sealer, seal, was_signed = log._sealer, log._sealer.seal, list[bool]()
    assert isinstance(sealer, OwnSealer)
    sealer._sign_s = 3_600.0
    monkeypatch.setattr(sealer, "_start", lambda: None)

    def commit() -> bool:
        route(log, "b")
        sealer._signed_at = float("-inf")
        return False

    def look() -> bool:
        was_signed.append(is_signed(log))
        return len(was_signed) == 2

    rests = iter((commit, look, look))
    monkeypatch.setattr(sealer._closing, "wait", lambda timeout: next(rests)())
    monkeypatch.setattr(sealer, "seal", lambda: (seal(), sealer._wake.set()))
    route(log, "a")
    signing = threading.Thread(target=sealer._run, daemon=True)
    signing.start()
    signing.join(60)
    assert was_signed == [False, True] and audited(log, with_key=False) == []


@pytest.mark.req("VX-07")
def test_the_link_of_a_bundle_covers_its_facts_which_have_none(tmp_path: Path) -> None:
    log = opened(tmp_path)
    introduce(log)
    log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", DEFAULT)] * 3))
    first, bundle = rows(log)
    with log.store.read() as session:
        assert [fact.chain for fact in session.facts_of(bundle.seq)] == [b""] * 3
    assert head(log).chain == bundle.chain == link(first.chain, bundle.body)
    assert audited(log) == [] == audited(log, with_key=False)


@pytest.mark.req("LW-07")
def test_nothing_leaves_the_node_unsigned(tmp_path: Path, helpers: ThreadPoolExecutor) -> None:
    log = opened(tmp_path, helpers)
    introduce(log)
    route(log, "k")
    sent = page(log, reader(log, log.node), {}, limit=9).bodies
    file = io.BytesIO()
    export_ops(log, file)
    file.seek(0)
    exported = [raw for raw, _ in OpReader(file)]
    assert sent == exported and len(sent) == 2
    assert all(verify_op(raw, decode(raw), READER.public) for raw in sent)
    assert all(is_marked(row.body) for row in rows(log)), "what was sent need not be kept"
    log.close()


@pytest.mark.req("VX-07")
def test_two_processes_link_in_the_order_of_the_log(tmp_path: Path, helpers: ThreadPoolExecutor) -> None:
    logs = [opened(tmp_path, helpers) for _ in range(2)]
    introduce(logs[0])

    def write(log: Log, name: str) -> None:
        for number in range(60):
            route(log, f"{name}{number}")

    threads = [threading.Thread(target=write, args=each) for each in zip(logs, "ab", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.close()
    assert head(logs[0]).seq == 121 and is_signed(logs[0]) and audited(logs[0]) == []


@pytest.mark.req("VX-07", "LW-22")
def test_what_a_killed_process_has_committed_is_signed_by_the_next(tmp_path: Path) -> None:
    home = tmp_path / "home"
    Runtime.init(home).close()
    for _ in range(5):
        child = start("forever", home)
        assert child.stdout is not None
        go(child)
        for _ in range(30):
            assert child.stdout.readline()
        child.kill()
        child.wait()
    with Runtime.open(home) as runtime:
        runtime.log.append_plain("k", b"{}")
    with Runtime.open(home) as runtime:
        assert is_signed(runtime.log)
        assert runtime.verify().findings == []


@pytest.mark.touches("VX-07")
def test_signing_the_end_is_tried_again_after_the_store_was_unavailable(
    tmp_path: Path, helpers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path, helpers)
    introduce(log)
    failed = threading.Event()

    def fail(sealer: OwnSealer) -> None:
        failed.set()
        raise StoreError("the disk is full")

    def fails() -> bool:
        """Of two commits in quick succession the first may sign the end, and a thread the end that the second made."""
        route(log, "a")
        route(log, "a")
        return failed.wait(0.5)

    with monkeypatch.context() as patch:
        patch.setattr(OwnSealer, "seal", fail)
        eventually(fails)
    route(log, "b")
    eventually(lambda: is_signed(log))
    log.close()


@pytest.mark.req("VX-07")
def test_the_thread_signs_an_end_after_a_commit_that_would_have_signed_failed(
    tmp_path: Path, helpers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path, helpers)
    introduce(log)
    sealer, seal, was_signed = log._sealer, log._sealer.seal, list[bool]()
    assert isinstance(sealer, OwnSealer)
    monkeypatch.setattr(sealer, "_start", lambda: None)
    sealer._sign_s = 3_600.0
    route(log, "a")
    assert not is_signed(log)
    sealer._signed_at = float("-inf")

    def fail(session: Session, head: Head) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch, pytest.raises(StoreError):
        with log.store.write() as session:
            patch.setattr(type(session), "put_head", fail)
        route(log, "b")
    assert sealer._signed_at > 0

    def look() -> bool:
        was_signed.append(is_signed(log))
        return True

    rests = iter((lambda: False, look))
    monkeypatch.setattr(sealer._closing, "wait", lambda timeout: next(rests)())
    monkeypatch.setattr(sealer, "seal", lambda: (seal(), sealer._wake.set()))
    signing = threading.Thread(target=sealer._run, daemon=True)
    signing.start()
    signing.join(30)
    assert was_signed == [True] and audited(log, with_key=False) == []


@pytest.mark.req("VX-07")
@pytest.mark.parametrize("when", ["before it begins", "after it has signed"])
def test_closing_signs_the_end_wherever_the_thread_is(
    tmp_path: Path, helpers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The thread is held up at a place, the end moves on, and the log is closed meanwhile."""
    log = opened(tmp_path, helpers)
    introduce(log)
    is_there, may_go_on = threading.Event(), threading.Event()
    run, seal = OwnSealer._run, OwnSealer.seal

    def held_up() -> None:
        is_there.set()
        assert may_go_on.wait(60)

    def begins_late(sealer: OwnSealer) -> None:
        held_up()
        run(sealer)

    def returns_late(sealer: OwnSealer) -> None:
        seal(sealer)
        if not is_there.is_set():
            held_up()

    if when == "before it begins":
        monkeypatch.setattr(OwnSealer, "_run", begins_late)
    else:
        monkeypatch.setattr(OwnSealer, "seal", returns_late)

    def has_come() -> bool:
        route(log, "a")
        route(log, "a")
        return is_there.wait(0.5)

    eventually(has_come)
    log._sealer._sign_s = 3_600.0  # no commit signs from here on
    route(log, "b")
    closing = threading.Thread(target=log.close)
    closing.start()
    assert log._sealer._closing.wait(60)
    may_go_on.set()
    closing.join()
    assert is_signed(log)


def forge(log: Log, signer: OpSigner) -> None:
    """Writes an op into the store, as a program does that can write there but has no key."""
    with log.store.write() as session:
        end = session.head()
        stamp = decode(rows(log)[-1].body).timestamp._replace(wall=end.wall + 1)
        op, body = bind(Op(bytes(16), stamp, log.node, (link_to(end.last),), RouteKind("mine", log.node)))
        marked = signer.for_log(body)
        chain = link(end.chain, marked)
        new = NewOp(op.id, pack(stamp), number_of(RouteKind), "job", None, 0, 1, marked)
        seq = session.add_ops([new], [chain])
        seal = EndSeal(signer.end_mark(seq, chain), seq, signer.end_signature(seq, chain))
        session.put_head(end._replace(seq=seq, chain=chain, settled=seq, wall=stamp.wall, last=op.id, seal=seal))


@pytest.mark.req("LW-07")
def test_an_op_that_another_program_wrote_into_the_store_is_never_signed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    introduce(log)
    forge(log, OpSigner(STRANGER, log.node))
    with pytest.raises(StoreError, match="was not written with this node's key"):
        page(log, reader(log, log.node), {}, limit=9)
    with pytest.raises(StoreError, match="was not written with this node's key"):
        route(log, "k")
    assert is_marked(rows(log)[-1].body) and len(rows(log)) == 2
    assert "its mark does not fit its bytes and its author" in audited(log)
    assert audited(log, with_key=False) == ["the signature on the end of the chain does not fit op 2"]


@pytest.mark.req("VX-08")
def test_a_changed_op_under_a_chain_that_was_made_anew_is_found_without_the_key(tmp_path: Path) -> None:
    log = opened(tmp_path)
    introduce(log)
    route(log, "k")
    route(log, "l")
    with log.store.write() as session:
        bodies = [row.body for row in rows(log)]
        bodies[1] = bodies[1][:-1] + bytes([bodies[1][-1] ^ 1])
        linked = links(bodies)
        session.seal_ops([SealedOp(seq, *each) for seq, each in enumerate(zip(bodies, linked, strict=True), 1)])
        session.put_head(session.head()._replace(chain=linked[-1]))
    assert audited(log, with_key=False) == ["the signature on the end of the chain does not fit op 3"]
    assert "its mark does not fit its bytes and its author" in audited(log)


@pytest.mark.req("VX-08")
def test_a_tail_that_was_cut_with_its_end_stops_the_next_write(tmp_path: Path) -> None:
    log = opened(tmp_path)
    introduce(log)
    route(log, "k")
    with log.store.write() as session:
        session.drop_ops(2)
        session.put_head(session.head()._replace(seq=1, chain=rows(log)[0].chain))
    with pytest.raises(StoreError, match="the end of the log, op 1, was not written with this node's key"):
        route(log, "l")


def left_by_an_older_program(log: Log, signer: OpSigner) -> None:
    """Leaves the log as a process left it that was killed before version 12: the last op has a long mark, and no
    link.
    """
    with log.store.write() as session:
        last = rows(log)[-1]
        body = unsigned(decode(last.body))
        mark = blake2b(body, key=signer._secret, digest_size=32).digest() + bytes(32)
        session.seal_ops([SealedOp(last.seq, with_signature(body, detached(mark, log.node)), NO_LINK)])
        session.put_head(session.head()._replace(chain=rows(log)[-2].chain, seal=NO_SEAL))


@pytest.mark.req("VX-07")
def test_a_log_from_before_goes_on(tmp_path: Path) -> None:
    log = opened(tmp_path)
    introduce(log)
    route(log, "k")
    left_by_an_older_program(log, OpSigner(READER, log.node))
    route(log, "l")
    assert is_signed(log) and audited(log) == [] == audited(log, with_key=False)
    assert verify_op(rows(log)[1].body, decode(rows(log)[1].body), READER.public)


@pytest.mark.req("LW-07")
def test_what_another_program_wrote_into_a_log_from_before_is_not_signed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    introduce(log)
    route(log, "k")
    left_by_an_older_program(log, OpSigner(STRANGER, log.node))
    with pytest.raises(StoreError, match="was not written with this node's key"):
        route(log, "l")
