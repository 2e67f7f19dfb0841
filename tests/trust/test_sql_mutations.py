"""A sharer with SQL changes any row of any table between any two transactions, at random. The owner's node may stop or
lose what was deleted; it runs, signs and grants nothing because of it.
"""

import random
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from hocket.errors import StoreError
from hocket.families.jobs import cron, rescue
from hocket.families.jobs.cron import NewSchedule
from hocket.families.jobs.requests import Draft
from hocket.kernel.ids import node_text
from hocket.kernel.ops import decode, verify_op
from hocket.kernel.policy import DEFAULT, Policy
from hocket.kernel.postcard import Malformed
from hocket.kernel.vocabulary import (
    DelegateUcan,
    DesignateCoordinator,
    RevokeUcan,
    RouteKind,
    ScheduleJob,
    SetSchedule,
    discriminant,
)
from hocket.log import state_check
from hocket.mesh.grants import parse_grants
from hocket.mesh.membership import revoke
from tests.trust.agents_judge import FAILURES, AgentsJudge, Violated
from tests.trust.sharer import SharedMesh

STEPS = 14
MUTATIONS = 3
SEEDS = 3
SOAK_SEEDS = 300
PLANTED_SEEDS = 10
STATE_STEPS = 40
NAMING = (DelegateUcan, DesignateCoordinator, RevokeUcan, RouteKind, SetSchedule)
# The tables of states, with the columns that name a row.
_STATES = {"subjects": ("family", "key"), "messages": ("id",), "deliveries": ("queue", "message"), "artifacts": ("id",)}
_COLUMNS = (
    "SELECT table_name, column_name, data_type, NULL FROM information_schema.columns WHERE table_schema = 'hocket'"
    " ORDER BY 1, ordinal_position"
)
_SQLITE_COLUMNS = (
    "SELECT m.name, c.name, c.type, CASE WHEN m.sql LIKE '%WITHOUT ROWID%' THEN c.pk END"
    " FROM sqlite_master AS m JOIN pragma_table_info(m.name) AS c"
    " WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite%' AND m.name NOT LIKE 'libsql%' ORDER BY 1, c.cid"
)
ROW_NAME = ("rowid", "ctid")
# What the sharer and the revoked node must never be granted.
PROBES = (
    *(("Job", "Schedule", "hocket.run"), ("Job", "Claim", "hocket.run"), ("Registration", "Write", "")),
    *(("Lock", "Acquire", "x"), ("Job", "Define", "hocket.run")),
)


class Judge:
    """What the owner's node has been asked to do, and what it may not have done besides."""

    def __init__(self, mesh: SharedMesh, rng: random.Random) -> None:
        self.mesh, self.rng = mesh, rng
        self.asked: dict[bytes, tuple[str, bytes, Policy]] = {}
        self.payloads: set[bytes] = {b'{"tick":1}'}
        self.stopped = 0
        self.agents = AgentsJudge(mesh, rng)
        former = mesh.invite("former", parse_grants(["all"]))
        self.former = former.log.node
        former.close()
        revoke(mesh.owner.log, node_text(self.former))
        plan = NewSchedule("always", "* * * * *", "UTC", Draft("hocket.run", b'{"tick":1}', DEFAULT))
        mesh.owner.log.run(lambda tx: cron.add(tx, plan))
        self.named = self._owners_ops()[1]

    def step(self) -> None:
        owner = self.mesh.owner
        jobs = (self._submit, self._submit, self._run, self._run, self._tick, self._sweep, self._admit)
        self.agents.look_around()
        act = self.rng.choice(jobs if self.agents.is_over else (*jobs, *self.agents.acts, *self.agents.acts))
        try:
            act()
        except FAILURES as error:
            if isinstance(error, Violated):
                raise
            self.stopped += 1
            if isinstance(error, psycopg.Error | apsw.Error):
                owner = self.mesh.reopened()
        assert owner is self.mesh.owner
        self.agents.note()
        self.check()

    def _submit(self) -> None:
        kind = self.rng.choice(("hocket.run", "acme.render"))
        payload = b'{"n":%d}' % self.rng.getrandbits(40)
        policy = Policy(priority=self.rng.choice((0, 3)))
        self.payloads.add(payload)
        self.asked[self.mesh.submit(kind, payload, policy)] = kind, payload, policy

    def _run(self) -> None:
        for each in self.mesh.taken(limit=self.rng.choice((1, 4))):
            payload = decode(each.schedule).payload
            assert isinstance(payload, ScheduleJob)
            if payload.payload not in self.payloads:
                raise Violated(f"the owner runs {payload.payload!r}, which it never submitted")
            if each.job.id in self.asked and self.asked[each.job.id] != (
                each.job.kind,
                payload.payload,
                each.job.policy,
            ):
                raise Violated(f"the owner runs job {each.job.id.hex()} on other terms than it submitted it")
            if self.rng.random() < 0.7:
                self.mesh.finish(each)

    def _tick(self) -> None:
        self.mesh.owner.log.run(cron.make_due)

    def _sweep(self) -> None:
        self.mesh.owner.log.run(lambda tx: rescue.expire(tx, 10))

    def _admit(self) -> None:
        self.mesh.owner.log.release()

    def check(self) -> None:
        try:
            permissions = self.mesh.owner.log.permissions()
        except FAILURES:
            self.stopped += 1
            return
        wall = self.mesh.owner.log.reading().wall
        for node in (self.mesh.sharer.log.node, self.former):
            for probe in PROBES:
                if permissions.authority.may(node, *probe, wall) is not None:
                    raise Violated(f"{node_text(node)} is granted {probe}")
        if {node for _, node in permissions.coordinators} - {self.mesh.owner.log.node}:
            raise Violated("another node is the coordinator")
        submitted, named = self._owners_ops()
        if submitted - self.payloads:
            raise Violated(f"the owner has signed {submitted - self.payloads}")
        if named - self.named:
            raise Violated(f"the owner has signed {named - self.named}")

    def _owners_ops(self) -> tuple[set[bytes], set[bytes]]:
        """The payloads of the jobs that the owner has signed, and its ops about the mesh."""
        node, public = self.mesh.owner.log.node, self.mesh.owner.home.node_key().public
        submitted, named = set(), set()
        for (body,) in self.mesh.sql("SELECT body FROM ops"):
            try:
                op = decode(bytes(body))
            except Malformed:
                continue
            if op.node_id == node and verify_op(bytes(body), op, public):
                if isinstance(op.payload, ScheduleJob):
                    submitted.add(op.payload.payload)
                elif isinstance(op.payload, NAMING):
                    named.add(bytes([discriminant(op.payload) % 251]) + op.id)
        return submitted, named


class Mutations:
    """Changes random rows, as a role with the least rights can."""

    def __init__(self, mesh: SharedMesh, rng: random.Random, is_only_states: bool = False) -> None:
        self._mesh, self._rng = mesh, rng
        self._is_postgres = mesh.kind == "postgres"
        self._columns: dict[str, list[tuple[str, str]]] = {}
        # What names a row of each table.
        self._places: dict[str, list[str]] = {}
        for table, column, kind, has_key in mesh.sql(_COLUMNS if self._is_postgres else _SQLITE_COLUMNS):
            self._columns.setdefault(table, []).append((column, kind.lower()))
            place = self._places.setdefault(table, [] if has_key is not None else [ROW_NAME[self._is_postgres]])
            if has_key:
                place.append(column)
        # Often those that matter.
        often = ("ops", "jobs", "delegations", "revocations", "head", "schedules", "coordinators", "nodes")
        states = ("subjects", "messages", "deliveries", "artifacts")
        self._tables = [*self._columns, *often, *often, *states, *states]
        if is_only_states:
            self._tables = [*states, "subjects"]
        # Rows as they were at some time.
        self._past: dict[str, list[tuple[Any, ...]]] = {}
        self._tables = [each for each in self._tables if each in self._columns and each != "hocket_version"]

    def one(self) -> str:
        table = self._rng.choice(self._tables)
        if table in _STATES and self._rng.random() < 0.4:
            return self._put_back(table)
        column, kind = self._rng.choice(self._columns[table])
        names = self._places[table]
        where = " AND ".join(f"{name} = ?{'::tid' * (name == 'ctid')}" for name in names)
        try:
            places = sorted(self._mesh.sql(f"SELECT {', '.join(names)} FROM {table}"), key=str)
            if not places:
                return "nothing"
            place = self._rng.choice(places)
            if table not in ("head", "ops") and self._rng.random() < 0.2:
                self._mesh.sql(f"DELETE FROM {table} WHERE {where}", *place)
                return f"DELETE {table}"
            ((old,),) = self._mesh.sql(f"SELECT {column} FROM {table} WHERE {where}", *place)
            new = self._changed(table, column, kind, old)
            self._mesh.sql(f"UPDATE {table} SET {column} = ? WHERE {where}", new, *place)
        except (psycopg.Error, apsw.Error, StoreError) as error:
            return f"refused by the database: {error}"
        return f"UPDATE {table}.{column}: {old!r} -> {new!r}"

    def note(self) -> None:
        """Remembers the rows as they are."""
        for table in _STATES:
            columns = ", ".join(column for column, _ in self._columns[table])
            self._past.setdefault(table, []).extend(self._mesh.sql(f"SELECT {columns} FROM {table}"))

    def _put_back(self, table: str) -> str:
        """Puts a row as it was at some time in the place of the one that is there."""
        if not self._past.get(table):
            return "nothing"
        row = self._rng.choice(self._past[table])
        names = [column for column, _ in self._columns[table]]
        key = _STATES[table]
        where = " AND ".join(f"{column} = ?" for column in key)
        try:
            self._mesh.sql(f"DELETE FROM {table} WHERE {where}", *[row[names.index(column)] for column in key])
            overriding = "OVERRIDING SYSTEM VALUE " if self._is_postgres and "number" in names else ""
            marks = ", ".join("?" * len(names))
            self._mesh.sql(f"INSERT INTO {table} ({', '.join(names)}) {overriding}VALUES ({marks})", *row)
        except (psycopg.Error, apsw.Error, StoreError) as error:
            return f"refused by the database: {error}"
        return f"put back in {table}: {row!r}"

    def _changed(self, table: str, column: str, kind: str, old: Any) -> Any:
        if self._rng.random() < 0.4:
            others = sorted((row[0] for row in self._mesh.sql(f"SELECT {column} FROM {table}")), key=repr)
            return self._rng.choice(others)
        if kind in ("bytea", "blob"):
            data = bytearray(old or bytes(16))
            if not data:
                return self._rng.randbytes(8)
            if b'{"n":' in data and self._rng.random() < 0.7:
                return bytes(data).replace(b'{"n":', b'{"m":')
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            return bytes(data)
        if kind in ("bigint", "integer"):
            return self._rng.choice((0, 1, 3, 4, (old or 0) + 1, (old or 0) - 1))
        return self._rng.choice(("acme.render", "hocket.run", "job", "", "always"))


def play(directory: Path, seed: int, kind: str = "postgres") -> int:
    rng = random.Random(seed)
    mesh = SharedMesh(directory, kind)
    done: list[str] = []
    try:
        judge, mutations = Judge(mesh, rng), Mutations(mesh, rng)
        for _ in range(STEPS):
            done += [mutations.one() for _ in range(rng.randrange(MUTATIONS + 1))]
            judge.step()
            mutations.note()
            if rng.random() < 0.1:
                try:
                    mesh.reopened()
                except FAILURES:
                    return STEPS  # it does not even start
        return judge.stopped
    except Violated as violation:
        raise Violated(f"seed {seed}: {violation}; after {done}") from violation
    finally:
        mesh.close()


def play_states(directory: Path, seed: int, kind: str = "postgres") -> None:
    """Only rows change that are copies of what ops say, so the owner loses nothing, and only the database stops it."""
    rng = random.Random(seed)
    mesh = SharedMesh(directory, kind)
    done: list[str] = []
    try:
        agents, mutations = AgentsJudge(mesh, rng), Mutations(mesh, rng, is_only_states=True)
        for _ in range(STATE_STEPS):
            done += [mutations.one() for _ in range(rng.randrange(MUTATIONS + 1))]
            act = rng.choice(agents.acts)
            done.append(act.__name__)
            try:
                act()
            except (psycopg.Error, apsw.Error):
                mesh.reopened()  # such as a number that was given to another message
            mutations.note()
            if rng.random() < 0.1:
                mesh.reopened()
    except FAILURES as failure:
        raise Violated(f"seed {seed}: {failure!r}; after {done}") from failure
    finally:
        mesh.close()


@pytest.mark.slow
@pytest.mark.req("LW-48")
@pytest.mark.parametrize("kind", ["postgres", "libsql"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_states_are_changed_the_ops_decide(tmp_path: Path, seed: int, kind: str) -> None:
    play_states(tmp_path, seed, kind)


@pytest.mark.slow
@pytest.mark.req("LW-48")
@pytest.mark.parametrize("kind", ["postgres", "libsql"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_rows_are_changed_the_owner_does_only_what_it_was_asked(tmp_path: Path, seed: int, kind: str) -> None:
    play(tmp_path, seed, kind)


@pytest.mark.slow
@pytest.mark.req("LW-48")
def test_a_store_whose_states_are_believed_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_check.SessionStates, "state", lambda self, subject, row, latest: row)
    with pytest.raises(Violated):
        for seed in range(PLANTED_SEEDS):
            play_states(tmp_path / str(seed), seed)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.req("LW-48")
def test_many_histories_of_changed_rows(tmp_path: Path) -> None:
    stopped = [play(tmp_path / str(seed), seed) for seed in range(SOAK_SEEDS)]
    assert sum(each < STEPS for each in stopped) > SOAK_SEEDS // 2, "most of them go on"


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.req("LW-48")
@pytest.mark.parametrize("kind", ["postgres", "libsql"])
def test_many_histories_of_changed_states(tmp_path: Path, kind: str) -> None:
    for seed in range(SOAK_SEEDS):
        play_states(tmp_path / str(seed), seed, kind)
