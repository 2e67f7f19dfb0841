"""The name of a new node."""

import os

from hocket.errors import Usage
from hocket.mesh.names import is_name, why_not
from hocket.node.variables import new_node_name


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
