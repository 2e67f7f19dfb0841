"""Makes a home that of an invited node, with a store of its own or in the inviting node's store."""

import time
from pathlib import Path

from hocket.errors import Usage
from hocket.kernel.rules import encode_rules
from hocket.log import RULES
from hocket.log.machine_clock import SteadyWall
from hocket.log.transaction import Wall
from hocket.mesh import enrolment
from hocket.mesh.enrolment import Send
from hocket.mesh.peers import Trust
from hocket.mesh.tickets import StoreTicket
from hocket.node.home import Home, default_home
from hocket.node.runtime import Runtime, helper_threads
from hocket.node.shared_store import check_joined_rules, check_own_store, check_rules
from hocket.node.variables import STORE, check_scope
from hocket.store import SERVER_FORMS
from hocket.store import open as open_store


def join(
    path: Path | str | None,
    token: str,
    send: Send,
    *,
    trust: Trust | None = None,
    wall: Wall | None = None,
    server: str | None = None,
) -> Runtime:
    """Makes a home an invited node's: makes its key here and asks the inviting node for a delegation. A home of an
    invited node of the same user gets a further delegation. `trust` tells how to check the inviting node's
    certificate from now on. A node that is to share the inviting node's store needs its address, `server`.
    """
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


def _join_shared(home: Home, ticket: StoreTicket, send: Send, server: str | None) -> Runtime:
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
