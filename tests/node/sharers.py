"""Nodes with homes of their own on one store, by default in PostgreSQL, in one process: the founder, a node with the
same user's key, and a node that was invited.
"""

from collections.abc import Iterable
from pathlib import Path

from hocket.kernel.capabilities import sharing
from hocket.kernel.ucan import Capability
from hocket.mesh import enrolment
from hocket.mesh.grants import parse_grants
from hocket.mesh.wire import Reply, Request
from hocket.node.opening import join
from hocket.node.runtime import Runtime
from tests.postgres_server import prepared, server

ADDRESS = "http://founder:7315"


class Sharers:
    def __init__(self, directory: Path, address: str | None = None) -> None:
        self.directory = directory
        self.address = address or server().new_database(template=prepared())
        self.founder = Runtime.init(directory / "founder", server=self.address, name="founder")
        key = directory / "founder" / "user.key"
        self.second = Runtime.init(directory / "second", key, server=self.address, name="second")
        self.third = self.join("third", self.invite("third"))

    @property
    def all(self) -> tuple[Runtime, Runtime, Runtime]:
        return self.founder, self.second, self.third

    def invite(self, name: str, may: Iterable[str] = ("all",), *, shares: bool = True) -> str:
        log = self.founder.log
        more = (sharing(log.node), Capability("Ops", "Read", {})) if shares else ()
        grants = (*parse_grants(may), *more)
        key = self.founder.home.node_key()
        return enrolment.invite(log, key, name, grants, addresses=[ADDRESS], shares_store=shares).token

    def join(self, name: str, token: str, server: str | None = "") -> Runtime:
        return join(self.directory / name, token, self.send, server=self.address if server == "" else server)

    def send(self, address: str, request: Request) -> Reply:
        return enrolment.answer(self.founder.log, self.founder.home.node_key(), request)

    def close(self) -> None:
        for each in self.all:
            each.close()
