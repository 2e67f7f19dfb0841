"""Creating a home, joining a mesh, and opening a node: `async with hocket.open() as node` gives a `Node`, a plain
`with hocket.open() as node` a `SyncNode`; `await hocket.open()` and `hocket.open_sync()` give one that the program
closes itself.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.errors import Usage
from hocket.events import ignore
from hocket.node.delivery import Delivery
from hocket.node.home import Home, default_home
from hocket.node.home_store import check_joined_rules, check_own_store, check_rules
from hocket.node.kept_requests import send_kept_if_in_touch
from hocket.node.node import Node, SyncNode
from hocket.node.runtime import Runtime, helper_threads
from hocket.node.variables import STORE, check_scope
from hocket.store import SERVER_FORMS
from hocket.store import open as open_store

if TYPE_CHECKING:
    from hocket.log.transaction import Wall
    from hocket.mesh.enrolment import Send
    from hocket.mesh.peers import Trust
    from hocket.mesh.services import MeshServices
    from hocket.mesh.tickets import StoreTicket

_LOG = logging.getLogger("hocket")


class Opening:
    """The result of `open`: enter it with `async with` or with `with`, or await it and close the node yourself."""

    def __init__(self, home: Path | str | None) -> None:
        self._home = home
        self._async: Node | None = None
        self._sync: SyncNode | None = None

    def __await__(self) -> Generator[Any, None, Node]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Node:
        runtime = await asyncio.get_running_loop().run_in_executor(None, _opened, self._home)
        self._async = Node(runtime)
        self._async.delivery = delivery(runtime)
        return self._async

    async def __aexit__(self, *_: object) -> None:
        if self._async is not None:
            await self._async.close()

    def __enter__(self) -> SyncNode:
        self._sync = open_sync(self._home)
        return self._sync

    def __exit__(self, *_: object) -> None:
        if self._sync is not None:
            self._sync.close()


def init(
    home: Path | str | None = None, user_key: Path | None = None, *, strict: bool = False, ranked_open: bool = False
) -> None:
    """Creates a home: the user's key, the node's key, and the user's root delegation to the node as the first op. With
    a `user_key` from another home, this node belongs to the same user. Raises Conflict if the home exists. A `strict`
    home keeps to Likewise v0.1: no node writes a Hocket extension op in its mesh. In a mesh with `ranked_open`, jobs
    that workers claim by rank are open by default, so that they need no coordinator.
    """
    Runtime.init(home, user_key, strict=strict, ranked_open=ranked_open).close()


def open(home: Path | str | None = None) -> Opening:
    """Opens the node of this home (default: $HOCKET_HOME, else ~/.hocket)."""
    return Opening(home)


def open_sync(home: Path | str | None = None) -> SyncNode:
    """Opens it for synchronous code outside a `with` block. Close it when done."""
    runtime = _opened(home)
    return SyncNode(runtime, delivery(runtime))


def _opened(home: Path | str | None) -> Runtime:
    runtime = Runtime.open(home)
    send_kept_if_in_touch(runtime)
    return runtime


def delivery(runtime: Runtime, warn: Callable[[str], None] = _LOG.warning) -> Delivery:
    """What connects a program that only submits and waits with the other nodes."""

    @asynccontextmanager
    async def connected() -> "AsyncIterator[MeshServices]":
        from hocket.node.message_bus import bus_settings

        node = Node(runtime)
        try:
            if bus_settings(runtime.home) is not None:
                await node.relay_messages(ignore)  # which tells at once of results
            yield node.services()
        finally:
            await node.finish()

    return Delivery(runtime, connected, warn)


def join(
    path: Path | str | None,
    token: str,
    send: "Send",
    *,
    trust: "Trust | None" = None,
    wall: "Wall | None" = None,
    server: str | None = None,
) -> Runtime:
    """Makes a home an invited node's: makes its key here and asks the inviting node for a delegation. A home of an
    invited node of the same user gets a further delegation. `trust` tells how to check the inviting node's
    certificate from now on. A node that is to share the inviting node's store needs its address, `server`.
    """
    from hocket.kernel.mesh_rules import encode_rules
    from hocket.log import RULES
    from hocket.log.machine_clock import SteadyWall
    from hocket.mesh import enrolment
    from hocket.mesh.tickets import StoreTicket

    ticket = enrolment.parse(token)
    check_scope(ticket.user_did)
    home = Home(path or default_home())
    if isinstance(ticket, StoreTicket):
        return _join_shared(home, ticket, send, server)
    if server is not None:
        raise Usage("this invitation is for a node with a store of its own; leave out --store, or invite with --share")
    wall = wall or SteadyWall()
    with home.creation() as fresh:
        home.check_joinable(ticket.user_did)
        home.ensure_node_key()
        entry = enrolment.ask(ticket, home.node_key(), send, wall)
        home.note_user(ticket.user_did)
        store = open_store(home.new_store(), create=True)
        check_own_store(home, store)
        if fresh:
            with store.write() as session:
                session.set_meta(RULES, encode_rules(entry.rules))
        runtime = Runtime(home, store, helper_threads(), wall=wall)
        enrolment.enter(runtime.log, entry, trust)
        runtime.catch_up()
    return runtime


def _join_shared(home: Home, ticket: "StoreTicket", send: "Send", server: str | None) -> Runtime:
    from hocket.log.machine_clock import SteadyWall
    from hocket.mesh import enrolment

    if server is None and home.server is None:
        raise Usage(
            f"this invitation is for a node that shares the inviting node's store; give its address with --store"
            f" {SERVER_FORMS}, or set {STORE}"
        )
    with home.creation():
        home.check_joinable(ticket.user_did)
        home.ensure_node_key()
        store = open_store(home.new_store(server))
        entry = enrolment.ask(ticket, home.node_key(), send, SteadyWall(store.server_clock or time.time))
        home.note_user(ticket.user_did)
        runtime = Runtime(home, store, helper_threads())
        enrolment.share(runtime.log, entry)
        with store.read() as session:
            check_joined_rules(session, entry.rules)
        check_rules(home, store)
        runtime.check_sharing()
        runtime.catch_up()
    return runtime
