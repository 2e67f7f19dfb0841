"""A member that shares the owner's store and has SQL: it may claim and complete `acme.` jobs, and change any row."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from hocket.families.jobs import requests as jobs
from hocket.families.jobs.claiming import Claim, claim
from hocket.families.jobs.requests import Draft, Held
from hocket.kernel.capabilities import sharing
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.ops import Op, bound, link_to
from hocket.kernel.policy import DEFAULT, Policy
from hocket.kernel.signing import OpSigner
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import JOB, Payload, discriminant, subject_of
from hocket.log.sealing import link
from hocket.mesh import enrolment
from hocket.mesh.grants import parse_grants
from hocket.mesh.wire import Reply, Request
from hocket.node.opening import join
from hocket.node.runtime import Runtime
from hocket.store import NewOp
from hocket.store.libsql.connecting import read_address
from hocket.store.libsql.connection import LibsqlConnection
from tests.libsql_server import new_server
from tests.postgres_server import prepared, server

ROLE = "sharer_with_sql"


class SharedMesh:
    """The owner's node and the sharer's, on one store, each with a home of its own. `sql` is the sharer's."""

    def __init__(self, directory: Path, kind: str = "postgres") -> None:
        self.directory, self.kind = directory, kind
        self.address = (
            server().new_database(template=prepared()) if kind == "postgres" else new_server(has_store=True).address
        )
        self.owner = Runtime.init(directory / "owner", server=self.address, name="base")
        self.sharer = self.invite("sharer", parse_grants((), worker=["acme."]))
        self.signer = OpSigner(self.sharer.home.node_key(), self.sharer.log.node, at_once=True)
        self._connection: LibsqlConnection | None = None
        self._role = self._least_rights() if kind == "postgres" else None

    def invite(self, name: str, grants: Sequence[Capability]) -> Runtime:
        log, key = self.owner.log, self.owner.home.node_key()

        def send(address: str, request: Request) -> Reply:
            return enrolment.answer(log, key, request)

        more = (sharing(log.node), Capability("Ops", "Read", {}))
        token = enrolment.invite(
            log, key, name, (*grants, *more), addresses=["http://owner:7315"], shares_store=True
        ).token
        return join(self.directory / name, token, send, server=self.address)

    def _least_rights(self) -> str:
        """A role with the rights of docs/postgres.md, and no more."""
        with psycopg.connect(self.address, autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone() is None:
                connection.execute(f"CREATE ROLE {ROLE} LOGIN")
            connection.execute(f"GRANT USAGE ON SCHEMA hocket TO {ROLE}")
            connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA hocket TO {ROLE}")
        return self.address.replace("postgres@", f"{ROLE}@", 1)

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        if self._role is None:
            return self._libsql(statement, *values)
        with psycopg.connect(self._role) as connection:
            connection.execute("SET search_path = hocket")
            done = connection.execute(statement.replace("?", "%s"), values)
            return [] if done.description is None else done.fetchall()

    def _libsql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Over one connection: the server has room for some, and keeps each for a while."""
        if self._connection is None:
            self._connection = LibsqlConnection(read_address(self.address))
        try:
            self._connection.begin_write()
            found: list[tuple[Any, ...]] = self._connection.execute(statement, values).fetchall()
            self._connection.commit()
        except BaseException:
            self._connection.roll_back()
            raise
        return found

    def reopened(self) -> Runtime:
        """The owner's home in another process, which remembers nothing."""
        self.owner.close()
        self.owner = Runtime.open(self.directory / "owner")
        return self.owner

    # What the owner does.

    def submit(self, kind: str = "hocket.run", payload: bytes = b'{"n":1}', policy: Policy = DEFAULT) -> bytes:
        return self.owner.submit([Draft(kind, payload, policy)])[0].job_id

    def taken(self, runtime: Runtime | None = None, limit: int = 10, *, beside: bool = False) -> list[Claim]:
        log = (runtime or self.owner).log
        return log.run(lambda tx: claim(tx, 1, limit, lambda kind: 60_000), beside=beside).taken

    def finish(self, taken: Claim, runtime: Runtime | None = None) -> object:
        assert taken.job.claim_op is not None
        held = Held(taken.job.id, taken.job.claim_op)
        return (runtime or self.owner).log.run(lambda tx: jobs.complete(tx, held, b'"done"', 1))

    def tables_found(self) -> set[str]:
        """The tables in which the owner has refused rows."""
        check = self.owner.log.store_check
        assert check is not None
        return {finding.table for finding in check.findings.values()}

    # What the sharer does.

    def op(self, payload: Payload, *deps: bytes) -> tuple[Op, bytes]:
        """An op of the sharer's, well signed, whatever it may write."""
        node = self.sharer.log.node
        with self.sharer.store.read() as session:
            head = session.head()
            _, last = session.latest_of(node.to_bytes(8, "big"))
        op, body = bound(Hlc(head.wall + 1, 0, node), (*deps, link_to(last)), payload)
        return op, self.signer.for_log(body)

    def put_op(self, op: Op, body: bytes, reason: int = 0) -> None:
        """Puts the op on the log, as one that counts."""
        family, key = subject_of(op.payload) or (JOB, None)
        new = NewOp(op.id, pack(op.timestamp), discriminant(op.payload), family, key, reason, 1, body)
        ((seq, chain),) = self.sql("SELECT seq, chain FROM head")
        after = link(bytes(chain), body)
        columns = "seq, id, hlc, variant, family, key, reason, settled, body, chain"
        self.sql(f"INSERT INTO ops ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", seq + 1, *new[:8], after)
        wall, logical, _ = op.timestamp
        self.sql(
            "UPDATE head SET wall = ?, logical = ?, seq = ?, settled = ?, chain = ?",
            *(wall, logical, seq + 1, seq + 1, after),
        )

    def close(self) -> None:
        self.owner.close()
        self.sharer.close()
        if self._connection is not None:
            self._connection.close()
