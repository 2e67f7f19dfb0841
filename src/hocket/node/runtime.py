"""The parts of one node in one process: home, store, log and bus, and the blocking calls on them. It has no event loop;
`node` offers the same to async and to synchronous programs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hocket.errors import Conflict, StoreError, Usage
from hocket.families.jobs.tracing import flush_traces
from hocket.kernel.capabilities import OURS, knowledge_text, named_in, payloads, read_knowledge
from hocket.kernel.extension import extensions, loaded, part, parts
from hocket.kernel.ids import content_hash, node_id, node_text, ulid_text
from hocket.kernel.mesh_rules import HOCKET, SKEW_MS_DEFAULT, STRICT, Rules, decode_kept_rules, encode_rules
from hocket.kernel.texts import BeatsLong, parse_length
from hocket.log import RULES, Log
from hocket.log.machine_clock import MachineClock, SteadyWall
from hocket.log.parallel import HelperThreads
from hocket.log.permissions import PermissionsReader, RevocationFile
from hocket.node import home_store
from hocket.node.home import Home, Remembered, default_home, read_user_key, switched_on
from hocket.node.running import StoreBreaker
from hocket.node.variables import (
    DB_CIRCUIT_BREAKER,
    MESH_CONTROL_ADDR,
    MESH_NODE_ID,
    MESH_SCOPE_ID,
    STORE,
    check_scope,
    chosen_name,
    follow_mesh_variables,
    given,
    is_on,
    read_address,
)
from hocket.store import backend
from hocket.store import open as open_store
from hocket.store.guarded import GuardedStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from hocket.families.blobs import Blobs
    from hocket.families.jobs.requests import Draft, Submitted
    from hocket.families.liveness import Liveness
    from hocket.families.locks.requests import Length
    from hocket.log import Transaction
    from hocket.log.audit import Audit
    from hocket.log.parallel import Helpers
    from hocket.log.rebuild import Rebuilt
    from hocket.log.transaction import Wall
    from hocket.mesh.waiting import Waiting, WaitReader
    from hocket.node.home import Ask
    from hocket.node.spool import Spool
    from hocket.store import Compacted, Session, Store
    from hocket.store.artifact_rows import BlobPlace
    from hocket.work.output_files import OutputFiles
    from hocket.work.pacing import MakePacer
    from hocket.work.presence import Serving

Progress = Callable[[int, int], None]
# The store key of what the last program to judge all ops knew.
KNOWN = "known"


def _no_progress(done: int, total: int) -> None:
    pass


class Runtime:
    """Open one with `Runtime.open`; close it when done. Safe to use from several threads. Time, randomness and
    executors are arguments, so that tests can choose them. `time_of_day` gives the seconds since the epoch: by the
    server's clock if nodes share the store, and otherwise by the `machine_clock`, unless a `wall` was chosen. There is
    a `store_breaker` unless the environment turns it off.
    """

    machine_clock: MachineClock | None = None
    store_breaker: StoreBreaker | None = None
    kept: str | None = None
    """Why the last request of this process was kept in the home; None if the database has it."""
    beat_ms: Callable[[], int | None] | None = None
    """One beat of the cluster's tempo as this process knows it, on a node with a tempo."""

    def __init__(
        self,
        home: Home,
        store: Store,
        helpers: Helpers | None,
        *,
        wall: Wall | None = None,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.home = home
        self.replica = None if home.server is None else home_store.replica_in(store)
        url = read_address(home.server)
        follow = None if url is None else backend(url).replica
        self._read_replica = None if url is None or follow is None else follow(store, url, home.path / "read_position")
        if is_on(DB_CIRCUIT_BREAKER):
            self.store_breaker = StoreBreaker(home.processes)
            store = GuardedStore(store, self.store_breaker)
        self.store = store
        self.spool = spool_of(home) if home.keeps_requests else None
        self.bus = home_store.bus_of(home)
        self._blobs: Blobs | None = None
        self._blobs_lock = Lock()
        self.helpers = helpers
        server_clock = store.server_clock if wall is None else None
        self.machine_clock = _clock(store) if wall is None and server_clock is None else None
        self.time_of_day: Callable[[], float] = server_clock or self.machine_clock or time.time
        self._wall = wall or SteadyWall(self.time_of_day)
        self.log = Log(
            store,
            home.node_key(),
            home.user_did(),
            wall=self._wall,
            physical=SteadyWall(self.time_of_day) if wall is None else None,
            randomness=randomness,
            helpers=helpers,
            bus=self.bus,
            ended=None if home.server is None else home_store.ended_rows(home),
            revocations=RevocationFile(home.revocations),
            checked=None if home.server is None else home_store.checked_states(home),
            written=None if home.server is None else home_store.written_entries(home),
        )
        self.log.keep_apart = self._keep_apart
        self._randomness = randomness
        self.pacers: dict[str, MakePacer] = {}
        """What paces every run of this process, by extension."""
        for extension in switched_on(home):
            if extension.runtime:
                loaded(extension.runtime)(self)

    @classmethod
    def open(cls, path: Path | str | None = None) -> Runtime:
        home = Home(path or default_home())
        home.check()
        home.shut_out_others()
        check_scope(home.user_did())
        store = home_store.opened_store(home)
        home_store.check_whole(home, store)
        try:
            home_store.check_rules(home, store)
        except BaseException:
            store.close()
            raise
        runtime = cls(home, store, helper_threads())
        try:
            runtime._check_store_and_variables()
            if runtime.machine_clock is not None:
                runtime.machine_clock.compare()
            runtime.catch_up()
        except BaseException:
            runtime.close()
            raise
        return runtime

    @classmethod
    def init(
        cls,
        path: Path | str | None = None,
        user_key: Path | None = None,
        *,
        passphrase: str | None = None,
        ask: Ask | None = None,
        strict: bool = False,
        ranked_open: bool = False,
        name: str | None = None,
        server: str | None = None,
        blobs: BlobPlace | None = None,
    ) -> Runtime:
        """Creates a home: the user's key, the node's key, and the user's root delegation to the node as the first op.
        A `server` is the address of a store in a database server; the home remembers it without its password. `blobs`
        is where all nodes of a new store keep their blobs.
        The node is called `name`, or else as its machine. A `passphrase` locks the user's key. If `user_key` is locked,
        `ask` is called for its passphrase, which also locks the copy. A `strict` home keeps to Likewise v0.1: no node
        writes a Hocket extension op in its mesh. In a mesh with `ranked_open`, jobs that workers claim by rank are open
        by default.
        """
        from hocket.kernel.keys import did_key
        from hocket.store.artifact_rows import BlobPlace

        home = Home(path or default_home())
        if strict and ranked_open:
            raise Usage("--ranked-open is not for a strict mesh, in which every job is open")
        if blobs is BlobPlace.STORE and backend(server or home.server or home.database).blobs is None:
            raise Usage(
                "--blobs store is for a store in PostgreSQL; give its address with --store"
                f" postgresql://user@host/database, or set {STORE}"
            )
        called = chosen_name(name)
        known = Remembered(ask)
        user = None if user_key is None else read_user_key(user_key, known)
        if passphrase is not None:
            known.passphrase = passphrase
        if given(MESH_SCOPE_ID) is not None:
            check_scope("a new one" if user is None else did_key(user.public))
        with home.creation() as fresh:
            if not fresh:
                raise Conflict(f"the home {home.path} already exists; nothing was changed")
            home.ensure_keys(user, known.passphrase)
            store = open_store(home.new_store(server), create=True)
            home_store.check_database(home, store)
            home_store.put_rules(home, store, STRICT if strict else replace(HOCKET, ranked_open=ranked_open))
            home_store.put_blob_place(home, store, blobs)
            home_store.check_rules(home, store)
            runtime = cls(home, store, helper_threads())
            try:
                runtime.log.run(lambda tx: runtime.introduce(tx, known, called))
                if runtime.log.is_shared:
                    runtime.check_sharing()
                runtime.catch_up()
            except BaseException:
                runtime.close()
                raise
        return runtime

    def introduce(self, tx: Transaction, ask: Ask | None = None, name: str | None = None) -> None:
        """Puts the user's root delegation to this node on the log, once. The user's first node becomes the coordinator.
        In a store that has a log already, the node shares it.
        """
        if tx.node.to_bytes(8, "big") in tx.session.nodes():
            return
        from hocket.kernel.capabilities import sharing
        from hocket.kernel.ucan import ROOT, issue
        from hocket.kernel.vocabulary import DelegateUcan, DesignateCoordinator
        from hocket.log.permissions import founder
        from hocket.log.transaction import NEWCOMER

        began = founder(tx.session) if self.log.is_shared else None
        if began is not None and self.home.made_user():
            raise Conflict(
                f"the shared store has the log of node {node_text(began)} already; to share it, join with an"
                " invitation of that node, or give its user's key with --user-key. For another mesh choose another"
                " database, or on PostgreSQL another schema with ?schema=NAME"
            )
        grants = ROOT if began is None else (*ROOT, sharing(began))
        token = issue(self.home.user_key(ask), self.home.node_key().public, grants, tx.now // 1000, None, name=name)
        tx.author(DelegateUcan(content_hash(token), token))
        if self.home.made_user():
            tx.author(DesignateCoordinator(tx.node))
        elif began is None:
            tx.session.set_own_meta(NEWCOMER, b"1")
        else:
            home_store.check_sharing(tx.session, tx.node, tx.projection.permissions, tx.now)
            if not tx.projection.permissions.coordinators:
                tx.session.set_own_meta(NEWCOMER, b"1")

    @cached_property
    def output(self) -> OutputFiles:
        from hocket.work.output_files import OutputFiles

        return OutputFiles(self.home.output)

    @property
    def blobs(self) -> Blobs:
        with self._blobs_lock:
            if self._blobs is None:
                self._blobs = home_store.blobs_of(self.home, self.store)
            return self._blobs

    def _keep_apart(self, content: bytes) -> tuple[bytes, int]:
        from hocket.families.jobs.apart import SALT_BYTES

        staged = self.blobs.stage(self._randomness(SALT_BYTES) + content)
        self.blobs.keep(staged)
        return staged.hash, staged.size

    def close(self) -> None:
        self.bus.close()
        if self._blobs is not None:
            self._blobs.close()
        self.log.close()
        flush_traces()
        if self.helpers is not None:
            self.helpers.shutdown()
        if self._read_replica is not None:
            self._read_replica.close()
        self.store.close()
        if self.store_breaker is not None:
            self.store_breaker.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> AbstractContextManager[Session]:
        """A view whose projections include every op on the log."""
        self.log.settle()
        return self.store.read()

    @contextmanager
    def view(self) -> Iterator[Session]:
        """A view for lists and pages: a replica may answer, if it has what this process wrote."""
        if self.replica is not None and self.replica.refresh():
            with self.replica.copy() as session:
                yield session
                return
        found = None if self._read_replica is None else self._read_replica.read()
        if found is not None:
            with found as session:
                # A replica cannot fold what is not folded yet.
                if session.head().unsettled == 0:
                    yield session
                    return
        with self.read() as session:
            yield session

    def submit(self, drafts: Sequence[Draft]) -> list[Submitted]:
        """Submits all jobs in one transaction, or none."""
        from hocket.families.jobs import requests as jobs

        return self.log.run(lambda tx: jobs.submit(tx, drafts), beside=True)

    def find(self, prefix: str) -> bytes:
        """The id of the one job whose id begins or ends with this text."""
        from hocket.families.jobs import view

        with self.view() as session:
            return view.find(session, prefix).job.id

    def show(self, prefix: str) -> dict[str, Any]:
        from hocket.families.jobs import view

        with self.view() as session:
            return view.full(session, view.find(session, prefix), self.blobs)

    def brief(self, job_id: bytes) -> dict[str, Any]:
        from hocket.families.jobs import view

        with self.view() as session:
            entry = session.job(job_id)
            if entry is None:
                raise Usage(f"no job {ulid_text(job_id)}")
            return view.brief(session, entry)

    def waiting_of(self, job_id: bytes, here: Sequence[Serving] = (), *, is_connected: bool = False) -> Waiting | None:
        """What a job waits for, as far as this node knows; None if it has ended or is not known. `here` are workers of
        this process that others are not told about; `is_connected` is whether this process syncs while it waits.
        """
        with self.read() as session:
            entry = session.job(job_id)
            return None if entry is None else self.wait_reader(session, here, is_connected=is_connected)(entry)

    def wait_reader(self, session: Session, here: Sequence[Serving] = (), *, is_connected: bool = False) -> WaitReader:
        """Says of many jobs what they wait for."""
        from hocket.families.liveness import ProcessTurn
        from hocket.mesh.waiting import WaitReader

        is_in_touch = is_connected or ProcessTurn.is_taken(self.home.processes)
        return WaitReader(self.log, session, self.liveness(), is_in_touch, here)

    def verify(
        self,
        expected: tuple[int, bytes] | None = None,
        progress: Progress = _no_progress,
        checkpoints: Sequence[bytes] = (),
    ) -> Audit:
        """Checks every signature, and the chain including its head; the checkpoints that are stored, and these, which
        were kept elsewhere; and if nodes share the store, the derived rows. Raises Malformed for a checkpoint that
        cannot be read.
        """
        from hocket.log.audit import verify
        from hocket.log.checkpoints import verification

        with suppress(StoreError):  # the check below finds what is wrong with the end
            self.log.seal()
        audit = verify(
            self.store,
            user=self.log.user,
            marks=self.log.signer,
            is_bound=self.log.permissions_reader.rules.bounds is not None,
            expected=expected,
            helpers=self.helpers,
            progress=progress,
        )
        with self.store.read() as session:
            is_whole = self.log.checkpoints.is_whole(session)
        log = self.log
        found = verification.check(self.store, log.node, log.user, checkpoints, is_whole=is_whole)
        return audit._replace(findings=audit.findings + found + log.audit_rows(self.home.node_key()))

    def set_rules(self, rules: Rules, progress: Progress = _no_progress) -> Rebuilt:
        """Changes the mesh rules of this node, and judges every op again by them."""
        self._nobody_works("this")
        with self.store.write() as session:
            session.set_meta(RULES, encode_rules(rules))
        if self.home.server is not None:
            self.home.note_rules(content_hash(encode_rules(rules)).hex())
        kept = RevocationFile(self.home.revocations) if self.log.is_shared else None
        self.log.permissions_reader = PermissionsReader(self.log.user, rules, kept)
        return self.rebuild(progress)

    def rebuild(self, progress: Progress = _no_progress) -> Rebuilt:
        """Drops the roster and everything else that is derived, and derives it again from the ops."""
        from hocket.log.rebuild import rebuild

        self._nobody_works("a rebuild")
        return rebuild(self.store, self.log.permissions_reader, self._wall(0), progress)

    def compact(self, progress: Progress = _no_progress) -> Compacted:
        """Makes the file of the store anew without its free space. Raises Usage if a server has the store."""
        where = backend(self.home.store_address)
        if where.compact is None:
            raise Usage(f"{where.name} gives back its own space; `hocket store compact` is for the file of a home")
        self._nobody_works("compacting")
        return where.compact(str(self.home.store_address), progress)

    def catch_up(self) -> None:
        """Judges everything again if the last program here knew more or less than this one and that matters. While
        workers run, the next program that opens the home does it.
        """
        with self.store.read() as session:
            said = session.meta(KNOWN)
            if said == knowledge_text(OURS).encode():
                return
            known = OURS if said is None else read_knowledge(said.decode())
            changed = OURS ^ known
            permissions = self.log.permissions(session)
            matters = bool(changed & named_in(permissions.delegations) or session.has_variants(payloads(changed)))
            if matters and not self.log.is_shared:
                self._check_own_ops(session, payloads(known - OURS))
        if matters and self.log.is_shared and known > OURS:
            # Two programs would judge the same ops in turn, each in its own way.
            raise Conflict(
                "a newer Hocket uses this store, and this one does not know all of its ops; upgrade this one"
            )
        if matters:
            try:
                self.rebuild()
            except Conflict:
                return
        with self.store.write() as session:
            session.set_meta(KNOWN, knowledge_text(OURS).encode())

    def _check_own_ops(self, session: Session, unknown: list[int]) -> None:
        """Raises StoreError if this node has written ops that this program does not know. Unknown ops of other
        nodes it can read by the signatures at their ends, which a node's own ops do not have in its store.
        """
        if any(row.hlc[12:] == self.log.author for row in session.ops_of_variants(unknown)):
            raise StoreError(
                f"a newer version of Hocket has written ops to {self.home.path} that this version cannot read; upgrade"
                " this one, nothing was changed"
            )

    def _check_store_and_variables(self) -> None:
        """Checks that the store has this node's log, and follows the variables that name this node and its mesh. Raises
        Conflict or Usage if they name others.
        """
        home_store.check_database(self.home, self.store)
        if self.log.is_shared:
            self.check_sharing()
        if given(MESH_NODE_ID) is not None or given(MESH_CONTROL_ADDR) is not None:
            follow_mesh_variables(self.log)

    def check_sharing(self) -> None:
        """Raises Conflict unless this node may use its shared store, or if another home with its key does."""
        try:
            with self.store.read() as session:
                now_ms = max(self.log.physical(), session.head().wall)
                home_store.check_sharing(session, self.log.node, self.log.permissions(session), now_ms)
        except Conflict:
            if self.replica is not None:
                self.replica.check()
            raise
        try:
            home_store.note_home(self.home, self.log)
        except StoreError:
            if self.replica is None:  # which answers reads while the server is away
                raise

    def _nobody_works(self, before: str) -> None:
        with self.read() as session:
            home_store.check_idle(session, self.liveness(), self.log.physical(), before)

    def liveness(self) -> Liveness:
        """Which workers are alive, as seen from this process."""
        from hocket.families.liveness import machine_liveness

        return machine_liveness(self.home.processes, time.monotonic)

    def hold_length(self, length: str | float) -> Length:
        """How long a hold lasts: a duration, or beats such as "4b" of the tempo in force, which end at a beat. Raises
        ValueError, and Usage if beats are given and this node has no tempo.
        """
        found = parse_length(length)
        if isinstance(found, BeatsLong):
            held: Length = part("node", "hold_length")(self, length, found.beats)
            return held
        return found

    def submit_checks(self, drafts: Sequence[Draft]) -> list[Callable[[], None]]:
        """What extensions check before these jobs are submitted. A check raises what is wrong."""
        names = {name for each in extensions() for name in each.submits}
        named = [name for name in names if any(getattr(each.policy, name) is not None for each in drafts)]
        return [partial(check, self, drafts) for name in named for check in parts("submits", name)]


def _clock(store: Store) -> MachineClock:
    with store.read() as session:
        kept = session.meta(RULES)
    extensions = (HOCKET if kept is None else decode_kept_rules(kept)).extensions
    bound_ms = SKEW_MS_DEFAULT if extensions is None else extensions.skew_ms
    return MachineClock(store, f"{os.getpid()}-{os.urandom(4).hex()}", bound_ms)


def spool_of(home: Home) -> Spool:
    """Where the home keeps requests while its database server is away."""
    from hocket.node.spool import Spool

    return Spool(home.spool, node_id(home.node_key().public))


def helper_threads() -> HelperThreads:
    """Threads that verify and seal ops beside the caller."""
    return HelperThreads(max(1, (os.cpu_count() or 1) - 1), "hocket-sign")
