"""The environment variables that choose a node's database, mesh and name. docs/environment.md lists them all. A bad
value is an error that names the variable; secrets are never repeated.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from hocket.errors import Usage
from hocket.families.jobs.tracing import TRACES
from hocket.store import SERVER_FORMS, backend
from hocket.store.connections import DB_TOKEN, has_password, without_password

if TYPE_CHECKING:
    from hocket.log import Log

MESH_ENABLED = "HOCKET_MESH_ENABLED"
MESH_NODE_ID = "HOCKET_MESH_NODE_ID"
MESH_CONTROL_ADDR = "HOCKET_MESH_CONTROL_ADDR"
MESH_SCOPE_ID = "HOCKET_MESH_SCOPE_ID"
MESH_TOKEN = "HOCKET_MESH_TOKEN"
STORE = "HOCKET_STORE"
STORE_LISTEN = "HOCKET_STORE_LISTEN"
STORE_READ = "HOCKET_STORE_READ"
REPLICA = "HOCKET_REPLICA"
DB_URL = "HOCKET_DB_URL"
DB_PATH = "HOCKET_DB_PATH"
DB_CIRCUIT_BREAKER = "HOCKET_DB_CIRCUIT_BREAKER"
BUS = "HOCKET_BUS"
BUS_CREDENTIALS = "HOCKET_BUS_CREDENTIALS"
BUS_CA = "HOCKET_BUS_CA"
RATES = "HOCKET_RATES"

ALL = (
    *(MESH_ENABLED, MESH_NODE_ID, MESH_CONTROL_ADDR, MESH_SCOPE_ID, MESH_TOKEN),
    *(STORE, STORE_LISTEN, STORE_READ, REPLICA),
    *(DB_URL, DB_PATH, DB_TOKEN, DB_CIRCUIT_BREAKER),
    *(BUS, BUS_CREDENTIALS, BUS_CA),
    *(RATES, TRACES),
)
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def given(name: str) -> str | None:
    """The value of a variable; None if it is not set, or empty."""
    return os.environ.get(name, "").strip() or None


def is_on(name: str) -> bool:
    """Whether a switch is on, as all of them are by default."""
    value = given(name) or _ON[0]
    if value.lower() not in (*_ON, *_OFF):
        raise Usage(f"bad {name} {value!r}: write 1 or 0")
    return value.lower() in _ON


def server_address(noted: Path) -> str | None:
    """The address of a home's store in a database server: the variable's, or else the one in the home's file. None if
    the home has a database of its own.
    """
    address, url = given(STORE), given(DB_URL)
    if address is None and url is not None and backend(url).is_server:
        return url  # the path is that of its replica
    if address is None:
        return noted.read_text().strip() if noted.is_file() else None
    if not backend(address).is_server:
        raise Usage(f"bad {STORE}: write {SERVER_FORMS}; for a file, set {DB_PATH}")
    if also := [each for each in (DB_URL, DB_PATH) if given(each) is not None]:
        raise Usage(f"{STORE} and {also[0]} name two different databases; set one of them")
    return address


def listen_address() -> str | None:
    """The way to the database past a pooler, for notifications; None for the store's own address."""
    address = given(STORE_LISTEN)
    if address is not None and backend(address).listener is None:
        raise Usage(f"bad {STORE_LISTEN}: write postgresql://user@host/database, past the pooler")
    return address


def read_address(server: str | None) -> str | None:
    """The address of the server that answers reads, if it is another one."""
    address = _beside(STORE_READ, server)
    if address is not None and server is not None and backend(server).replica is None:
        raise Usage(f"{STORE_READ} is for a store in PostgreSQL; for one in libSQL, set {REPLICA} to a file")
    if address is not None:
        check_read_address(address)
    if address is not None and given(REPLICA) is not None:
        raise Usage(f"{STORE_READ} and {REPLICA} both say where to read; set one of them")
    return address


def check_read_address(address: str) -> None:
    if backend(address).replica is None:
        raise Usage(f"bad {STORE_READ}: write postgresql://user@host/database")


def replica_path(server: str | None, default: Path) -> Path | None:
    """The file of the local replica of a store in a database server. A database of libSQL that the variables name with
    its token has one in any case, as has a server whose replica they name by the path of the database.
    """
    path, url = _beside(REPLICA, server), given(DB_URL)
    if url is not None and backend(url).is_server:
        named = given(DB_PATH)
        if path is not None and named not in (None, path):
            raise Usage(f"{REPLICA} and {DB_PATH} name two different replicas; set one of them")
        path = path or named
        token = backend(url).token
        if path is None and token is not None and given(token) is not None and is_on(MESH_ENABLED):
            return default
    return None if path is None else Path(path).expanduser().absolute()


def _beside(name: str, server: str | None) -> str | None:
    value = given(name)
    if value is not None and server is None:
        raise Usage(f"{name} is for a store in a database server, and this home has its own file; unset it")
    return value


def checked_server(address: str) -> str:
    """An address from the command line, which every user of the machine can read."""
    if not backend(address).is_server:
        raise Usage(f"bad --store: write {SERVER_FORMS}")
    if has_password(address) and backend(address).token is not None:
        raise Usage(
            "the address contains a token, which other users can read in the list of processes; put the token into"
            f" {DB_TOKEN}, or the whole address into {STORE}"
        )
    if has_password(address):
        raise Usage(
            "the address contains a password, which other users can read in the list of processes; put the password"
            f" into PGPASSFILE or PGSERVICEFILE, or the whole address into {STORE}"
        )
    return address


def named_store(address: str) -> str:
    """The store that a command line names: an address of a server without a password, or a file. The variable's
    address, if it is the same one, adds the password.
    """
    noted = given(STORE)
    if noted is not None and without_password(noted) == address:
        return noted
    return checked_server(address) if backend(address).is_server else address


def database_path(default: Path) -> Path:
    """The database file of a home without a database server."""
    url, path = given(DB_URL), given(DB_PATH)
    chosen = None if path is None else Path(path).expanduser().absolute()
    if url is not None and backend(url).is_server:
        return default
    if url is None:
        return chosen or default
    found = re.fullmatch(r"sqlite://(/.+)", url)
    if found is None:
        scheme = url.partition("://")[0] if "://" in url else "no address"
        raise Usage(f"bad {DB_URL} ({scheme}): write sqlite:///absolute/path, {SERVER_FORMS}")
    if given(DB_TOKEN) is not None:
        raise Usage(f"{DB_TOKEN} is for a store in libSQL, but {DB_URL} names a file")
    named = Path(unquote(found[1]))
    if chosen not in (None, named):
        raise Usage(f"{DB_URL} and {DB_PATH} name two different files; set one of them")
    return named


def check_scope(user: str) -> None:
    """Raises Usage if this is not a node of the mesh that the environment names."""
    scope = given(MESH_SCOPE_ID)
    if scope not in (None, user):
        raise Usage(f"{MESH_SCOPE_ID} is {scope}, but this mesh is {user}; choose another --home, or correct it")


def check_node(node: str, name: str | None) -> None:
    """Raises Usage if this is not the node that the environment names, by its id or by its name."""
    wanted = given(MESH_NODE_ID)
    if wanted not in (None, node, name):
        called = "" if name is None else f" ({name})"
        raise Usage(f"{MESH_NODE_ID} is {wanted}, but this home is node {node}{called}; choose another --home")


def new_node_name() -> str | None:
    """The name of a node that is created now. Its id follows from its key, so it cannot be chosen."""
    wanted = given(MESH_NODE_ID)
    if wanted is not None and re.fullmatch("[0-9a-f]{16}", wanted):
        raise Usage(f"{MESH_NODE_ID} is an id, and a new node gets one of its own; set it to a name, or unset it")
    return wanted


# What a program does that opens a node: it follows those that name the node and its coordinator.


def chosen_name(name: str | None) -> str | None:
    """The given name, or that of the environment, or else this machine's host name if it is valid as a node's name.
    Raises Usage if a name that was chosen is bad.
    """
    from hocket.mesh.names import is_name, why_not

    name = new_node_name() if name is None else name
    if name is None:
        host = os.uname().nodename.partition(".")[0]
        return host if is_name(host) else None
    if problem := why_not(name):
        raise Usage(f"bad name {name!r}: {problem}")
    return name


def follow_mesh_variables(log: "Log") -> None:
    """Checks that this is the node that the environment names, and adds the coordinator that it names as a peer. Raises
    Usage or Conflict.
    """
    from hocket.kernel.ids import node_text
    from hocket.mesh.names import names

    if given(MESH_NODE_ID) is not None:
        with log.store.read() as session:
            check_node(node_text(log.node), names(log.permissions(session)).get(log.node))
    if (address := given(MESH_CONTROL_ADDR)) is not None:
        _add_coordinator(log, address)


def _add_coordinator(log: "Log", text: str) -> None:
    """Makes the server at this address a peer, unless it is one. The coordinator itself needs none."""
    from hocket.mesh import peers

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
