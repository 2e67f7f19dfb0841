"""Ops are signed and sealed after their commit: nobody waits for it, nothing unsigned leaves the node, and what a dead
process left unsigned is signed by another.
"""

import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from hocket import store as stores
from hocket.errors import StoreError
from hocket.kernel.clock import pack
from hocket.kernel.keys import did_key
from hocket.kernel.ops import Op, bind, decode, link_to, verify_op
from hocket.kernel.rules import HOCKET, encode_rules
from hocket.kernel.signing import OpSigner, is_marked
from hocket.kernel.vocabulary import RouteKind, number_of
from hocket.log import RULES, Log, Transaction
from hocket.log.archive import OpReader, export_ops
from hocket.log.audit import verify
from hocket.log.sealing import BackgroundSealer
from hocket.mesh.outgoing import page, reader
from hocket.node.runtime import Runtime
from hocket.store import Head, NewOp, OpRow, Session, Store
from tests.log.processes import eventually, go, start
from tests.log.roster.world import READER, STRANGER, USER, Clock, introduction, new_log, randomness


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


def rows(log: Log) -> list[OpRow]:
    with log.store.read() as session:
        return session.ops_after(0, 1_000)


def is_sealed(log: Log) -> bool:
    return head(log).sealed == head(log).seq


def audited(log: Log) -> list[str]:
    audit = verify(log.store, user=log.user, signed=log.signed, is_bound=True)
    return [finding.what for finding in audit.findings]


class Stuck:
    """Keeps a signer from signing until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        signed = OpSigner.signed_unchecked

        def wait(signer: OpSigner, op: bytes) -> bytes:
            assert self.go.wait(60)
            return signed(signer, op)

        monkeypatch.setattr(OpSigner, "signed_unchecked", wait)


@pytest.mark.req("LW-07", "VX-07")
def test_a_commit_does_not_wait_for_its_signature(
    tmp_path: Path, helpers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path, helpers)
    stuck = Stuck(monkeypatch)
    introduce(log)
    log.append_plain("k", b"{}")
    assert head(log).seq == 2 and head(log).sealed == 0
    assert all(is_marked(row.body) for row in rows(log))
    stuck.go.set()
    eventually(lambda: is_sealed(log))
    assert not any(is_marked(row.body) for row in rows(log))
    assert audited(log) == []
    log.close()


@pytest.mark.req("LW-07")
def test_nothing_leaves_the_node_unsigned(
    tmp_path: Path, helpers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path, helpers)
    stuck = Stuck(monkeypatch)
    introduce(log)
    route(log, "k")
    monkeypatch.undo()  # what is sent is signed in the thread that sends it
    sent = page(log, reader(log, log.node), {}, limit=9).bodies
    file = io.BytesIO()
    export_ops(log, file)
    file.seek(0)
    exported = [raw for raw, _ in OpReader(file)]
    assert sent == exported and len(sent) == 2 and head(log).sealed == 0
    assert all(verify_op(raw, decode(raw), READER.public) for raw in sent)
    stuck.go.set()
    log.close()
    assert [row.body for row in rows(log)] == sent, "what was sent is what is kept"


@pytest.mark.req("VX-07")
def test_closing_seals(tmp_path: Path, helpers: ThreadPoolExecutor) -> None:
    log = opened(tmp_path, helpers)
    introduce(log)
    for number in range(20):
        route(log, f"k{number}")
    log.close()
    assert is_sealed(log) and audited(log) == []


@pytest.mark.req("VX-07")
def test_an_op_that_its_process_left_unsigned_is_signed_by_another(
    tmp_path: Path, helpers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = opened(tmp_path, helpers)
    with monkeypatch.context() as patch:
        patch.setattr(BackgroundSealer, "added", lambda sealer, first, ops: None)
        introduce(dead)
        route(dead, "a")
    alive = opened(tmp_path, helpers)
    route(alive, "b")
    assert not is_sealed(alive)
    eventually(lambda: is_sealed(alive))
    assert audited(alive) == []
    alive.close()


@pytest.mark.req("VX-07")
def test_two_processes_seal_in_the_order_of_the_log(tmp_path: Path, helpers: ThreadPoolExecutor) -> None:
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
    assert head(logs[0]).seq == 121 and is_sealed(logs[0]) and audited(logs[0]) == []


@pytest.mark.req("VX-07", "LW-22")
def test_what_a_killed_process_has_committed_is_sealed_by_the_next(tmp_path: Path) -> None:
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
        assert is_sealed(runtime.log)
        assert runtime.verify().findings == []


class FailsOnce:
    """A store of which one write fails, as on a full disk."""

    server_clock = None

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read, self.close, self.trim = store.read, store.close, store.trim
        self.mac_rows, self.check_rows = store.mac_rows, store.check_rows
        self.fails_at = 0

    def write(self, author: bytes | None = None, *, at_end: bool = False) -> AbstractContextManager[Session]:
        self.fails_at -= 1
        if self.fails_at == 0:
            raise StoreError("the disk is full")
        return self._store.write()


@pytest.mark.touches("VX-07")
def test_a_commit_stands_when_its_sealing_fails_and_the_next_one_seals_both() -> None:
    log = new_log()
    store = FailsOnce(log.store)
    log = new_log(store)
    introduce(log)
    store.fails_at = 2
    route(log, "a")
    assert (head(log).seq, head(log).sealed) == (2, 1)
    route(log, "b")
    assert is_sealed(log) and not any(is_marked(row.body) for row in rows(log))


def forge(log: Log) -> None:
    """Writes an op into the store, as a program does that can write there but has no key."""
    with log.store.write() as session:
        end = session.head()
        stamp = decode(rows(log)[-1].body).timestamp._replace(wall=end.wall + 1)
        op, body = bind(Op(bytes(16), stamp, log.node, (link_to(end.last),), RouteKind("mine", log.node)))
        marked = OpSigner(STRANGER, log.node).marked(body)
        seq = session.add_ops([NewOp(op.id, pack(stamp), number_of(RouteKind), "job", None, 0, 1, marked)])
        session.put_head(end._replace(seq=seq, settled=seq, wall=stamp.wall, last=op.id))


@pytest.mark.req("LW-07")
@pytest.mark.parametrize(
    "use", [Log.seal, lambda log: page(log, reader(log, log.node), {}, limit=9)], ids=["seal", "send"]
)
def test_an_op_that_another_program_wrote_into_the_store_is_never_signed(
    tmp_path: Path, use: Callable[[Log], object]
) -> None:
    log = opened(tmp_path)
    introduce(log)
    forge(log)
    with pytest.raises(StoreError, match="was not written with this node's key"):
        use(log)
    assert head(log).sealed == 1 and is_marked(rows(log)[-1].body)
    assert any("was not written with this node's key" in what for what in audited(log))


@pytest.mark.touches("VX-07")
def test_a_link_beyond_the_end_of_the_chain_is_found(tmp_path: Path) -> None:
    log = opened(tmp_path)
    introduce(log)
    route(log, "k")
    with log.store.write() as session:
        session.put_head(session.head()._replace(sealed=1, chain=rows(log)[0].chain))
    assert audited(log) == ["it has a link, but the chain ends before it"]


@pytest.mark.touches("VX-07")
def test_signatures_that_another_transaction_stores_at_the_same_moment_are_no_trouble(
    tmp_path: Path, helpers: ThreadPoolExecutor
) -> None:
    log = opened(tmp_path, helpers)
    introduce(log)
    eventually(lambda: is_sealed(log))
    store, sealer = log.store, log._sealer

    class Racing:
        """The other transaction comes between the thread's look at its signatures and its look at the head."""

        write, close = store.write, store.close

        def read(self) -> AbstractContextManager[Session]:
            sealer._signed.clear()
            return store.read()

    sealer._signed[1], sealer._moved_at = rows(log)[0].body, 0.0
    sealer._store = Racing()
    sealer._look_after()
    assert is_sealed(log) and audited(log) == []
    sealer._store = store
    log.close()


def test_signing_goes_on_after_the_store_was_unavailable(
    tmp_path: Path, helpers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path, helpers)
    failures = []

    def fail(sealer: BackgroundSealer) -> None:
        failures.append(time.monotonic())
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(BackgroundSealer, "_put", fail)
        introduce(log)
        eventually(lambda: len(failures) > 1)
    eventually(lambda: is_sealed(log))
    log.close()


@pytest.mark.touches("VX-07")
def test_what_another_transaction_has_stored_is_forgotten_without_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    introduce(log)
    writes: list[object] = []
    sealer = log._sealer
    monkeypatch.setattr(BackgroundSealer, "_put", writes.append)
    sealer._signed[1], sealer._moved_at = rows(log)[0].body, 0.0
    sealer._look_after()
    assert not writes and not sealer._signed
    monkeypatch.undo()
    log.close()
    log.store.close()


@pytest.mark.touches("VX-07")
def test_signatures_wait_for_a_transaction_that_is_on_its_way(
    tmp_path: Path, helpers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transaction of its own would keep the workers of all processes waiting once more."""
    log = opened(tmp_path)
    introduce(log)
    sealer = log._sealer
    assert isinstance(sealer, BackgroundSealer)
    puts: list[object] = []
    with log.store.write() as session:
        session.put_head(session.head()._replace(sealed=0))
    sealer._signed[1] = rows(log)[0].body
    monkeypatch.setattr(BackgroundSealer, "_put", lambda sealer: puts.append(sealer))
    writing, may_go_on = threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        writing.set()
        assert may_go_on.wait(10)

    held = helpers.submit(log.run, hold)
    assert writing.wait(10)
    sealer._moved_at = 0.0
    sealer._look_after()
    assert not puts
    may_go_on.set()
    held.result(10)
    sealer._signed[1], sealer._moved_at = rows(log)[0].body, 0.0
    with log.store.write() as session:
        session.put_head(session.head()._replace(sealed=0))
    sealer._look_after()
    assert len(puts) == 1
    monkeypatch.undo()
    log.close()
    log.store.close()
