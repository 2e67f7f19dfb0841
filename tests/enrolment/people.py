"""Machines of one user for these tests: real homes in temporary directories, real SQLite, a clock that the test moves,
and requests that go straight to the inviting node's answer.
"""

import io
from collections.abc import Sequence
from pathlib import Path

from hocket.desk import Desk
from hocket.home import Home
from hocket.log.archive import export_ops, import_ops
from hocket.mesh import enrolment, roll
from hocket.mesh.grants import parse_grants
from hocket.mesh.wire import Reply, Request
from hocket.store.sqlite import SqliteStore
from hocket.testing import Clock

WORKER = ("job:claim:acme.", "job:complete:acme.")
INVITER = (*WORKER, "registration:write")
ADDRESS = "http://owner:7315"


def reopened(path: Path, clock: Clock) -> Desk:
    """The desk of a home that is there, on the test's clock."""
    home = Home(path)
    home.check()
    return Desk(home, SqliteStore(home.database), None, wall=clock)


class Mesh:
    """An owner's node and whoever joins it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        Desk.init(directory / "owner").close()
        with Desk.open(directory / "owner") as desk, desk.read() as session:
            self.clock = Clock(session.head().wall / 1000)
        self.desks: list[Desk] = []
        self.owner = self.open("owner")
        self.asked: list[Request] = []

    def open(self, name: str) -> Desk:
        desk = reopened(self.directory / name, self.clock)
        self.desks.append(desk)
        return desk

    def close(self) -> None:
        for desk in self.desks:
            desk.close()

    def invite(self, name: str = "gpu", may: Sequence[str] = WORKER, by: Desk | None = None, **options: object) -> str:
        desk = by or self.owner
        audit, sanitize = bool(options.pop("audit", False)), options.pop("sanitize", ())
        capabilities = parse_grants(may, audit=audit, sanitize=sanitize)  # type: ignore[arg-type]
        made = enrolment.invite(
            desk.log,
            desk.home.node_key(),
            name,
            capabilities,
            addresses=[ADDRESS],
            **options,  # type: ignore[arg-type]
        )
        return made.token

    def send(self, address: str, request: Request) -> Reply:
        return self.answer(request)

    def answer(self, request: Request, by: Desk | None = None) -> Reply:
        self.asked.append(request)
        desk = by or self.owner
        return enrolment.answer(desk.log, desk.home.node_key(), request)

    def join(self, token: str, home: str = "gpu", by: Desk | None = None) -> Desk:
        """Joins, and gives the new node's desk on the test's clock."""

        def send(address: str, request: Request) -> Reply:
            return self.answer(request, by)

        Desk.join(self.directory / home, token, send, wall=self.clock).close()
        return self.open(home)

    def member(self, text: str, seen_by: Desk | None = None) -> roll.Member:
        desk = seen_by or self.owner
        with desk.read() as session:
            return roll.find(roll.members(desk.log, session), text)


def exchange(one: Desk, other: Desk) -> None:
    """Each gets what the other has."""
    for source, target in ((one, other), (other, one)):
        file = io.BytesIO()
        export_ops(source.store, file)
        file.seek(0)
        import_ops(target.log, file)
