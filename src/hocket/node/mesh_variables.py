"""Follows the environment variables that name this node and its coordinator."""

import os

from hocket.errors import Usage
from hocket.kernel.ids import node_text
from hocket.log import Log
from hocket.mesh import peers
from hocket.mesh.names import is_name, names, why_not
from hocket.node.variables import MESH_CONTROL_ADDR, MESH_NODE_ID, check_node, given, new_node_name


def chosen_name(name: str | None) -> str | None:
    """The given name, or that of the environment, or else this machine's host name if it is valid as a node's name.
    Raises Usage if a name that was chosen is bad.
    """
    name = new_node_name() if name is None else name
    if name is None:
        host = os.uname().nodename.partition(".")[0]
        return host if is_name(host) else None
    if problem := why_not(name):
        raise Usage(f"bad name {name!r}: {problem}")
    return name


def follow_mesh_variables(log: Log) -> None:
    """Checks that this is the node that the environment names, and adds the coordinator that it names as a peer. Raises
    Usage or Conflict.
    """
    if given(MESH_NODE_ID) is not None:
        with log.store.read() as session:
            check_node(node_text(log.node), names(log.permissions(session)).get(log.node))
    if (address := given(MESH_CONTROL_ADDR)) is not None:
        _add_coordinator(log, address)


def _add_coordinator(log: Log, text: str) -> None:
    """Makes the server at this address a peer, unless it is one. The coordinator itself needs none."""
    try:
        address = peers.check_address(text)
    except Usage as error:
        raise Usage(f"bad {MESH_CONTROL_ADDR}: {error}") from None
    with log.store.read() as session:
        is_known = peers.find(session, address) is not None
        if is_known or peers.coordinator(log, session) == log.node:
            return
    with log.store.write() as session:
        peers.add(session, address, log.physical())
