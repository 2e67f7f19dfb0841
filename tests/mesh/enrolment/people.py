"""Machines of one user for these tests: real homes in temporary directories, real SQLite, a clock that the test moves,
and requests that go straight to the inviting node's answer.
"""

import io
from collections.abc import Sequence
from pathlib import Path

from hocket.log.copies import export_ops, import_ops
from hocket.mesh import enrolment, membership
from hocket.mesh.grants import parse_grants
from hocket.mesh.wire import Reply, Request
from hocket.node.home import Home
from hocket.node.opening import join
from hocket.node.runtime import Runtime
from hocket.store import open as open_store
from hocket.testing import Clock

WORKER = ("job:claim:acme.", "job:complete:acme.")
INVITER = (*WORKER, "registration:write")
ADDRESS = "http://owner:7315"


def reopened(path: Path, clock: Clock) -> Runtime:
    """The runtime of a home that is there, on the test's clock."""
    home = Home(path)
    home.check()
    return Runtime(home, open_store(home.database), None, wall=clock)


class Mesh:
    """An owner's node and whoever joins it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        Runtime.init(directory / "owner").close()
        with Runtime.open(directory / "owner") as runtime, runtime.read() as session:
            self.clock = Clock(session.head().wall / 1000)
        self.runtimes: list[Runtime] = []
        self.owner = self.open("owner")
        self.asked: list[Request] = []

    def open(self, name: str) -> Runtime:
        runtime = reopened(self.directory / name, self.clock)
        self.runtimes.append(runtime)
        return runtime

    def close(self) -> None:
        for runtime in self.runtimes:
            runtime.close()

    def invite(
        self, name: str = "gpu", may: Sequence[str] = WORKER, by: Runtime | None = None, **options: object
    ) -> str:
        runtime = by or self.owner
        audit, sanitize = bool(options.pop("audit", False)), options.pop("sanitize", ())
        capabilities = parse_grants(may, audit=audit, sanitize=sanitize)  # type: ignore[arg-type]
        made = enrolment.invite(
            runtime.log,
            runtime.home.node_key(),
            name,
            capabilities,
            addresses=[ADDRESS],
            **options,  # type: ignore[arg-type]
        )
        return made.token

    def send(self, address: str, request: Request) -> Reply:
        return self.answer(request)

    def answer(self, request: Request, by: Runtime | None = None) -> Reply:
        self.asked.append(request)
        runtime = by or self.owner
        return enrolment.answer(runtime.log, runtime.home.node_key(), request)

    def join(self, token: str, home: str = "gpu", by: Runtime | None = None) -> Runtime:
        """Joins, and gives the new node's runtime on the test's clock."""

        def send(address: str, request: Request) -> Reply:
            return self.answer(request, by)

        join(self.directory / home, token, send, wall=self.clock).close()
        return self.open(home)

    def member(self, text: str, seen_by: Runtime | None = None) -> membership.Member:
        runtime = seen_by or self.owner
        with runtime.read() as session:
            return membership.find(membership.members(runtime.log, session), text)


def exchange(one: Runtime, other: Runtime) -> None:
    """Each gets what the other has."""
    for source, target in ((one, other), (other, one)):
        file = io.BytesIO()
        export_ops(source.log, file)
        file.seek(0)
        import_ops(target.log, file)
