"""Checks the environment before any command runs: a variable whose value is bad in itself is an error of every command,
also of one that does not need it. Only variables that are set cost anything.

Removes secrets from text that is kept or sent on: tokens and keys by their form, and the values of variables that the
user passed with --env or whose names suggest a secret.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hocket.errors import Usage
from hocket.families.jobs.tracing import TRACES
from hocket.node import variables
from hocket.node.variables import given

_NODE = re.compile("[0-9a-f]{16}")


def check_variables() -> None:
    """Raises Usage, which names the variable and repeats no secret."""
    for name, check in _CHECKS.items():
        value = given(name)
        if value is not None:
            check(value)
    variables.server_address(Path("/nowhere"))
    variables.database_path(Path("/nowhere"))


def _switch(name: str) -> Callable[[str], object]:
    return lambda value: variables.is_on(name)


def _node(value: str) -> None:
    from hocket.mesh.names import why_not

    if not _NODE.fullmatch(value) and (problem := why_not(value)):
        raise Usage(f"bad {variables.MESH_NODE_ID} {value!r}: {problem}")


def _scope(value: str) -> None:
    if not value.startswith("did:key:"):
        raise Usage(
            f"bad {variables.MESH_SCOPE_ID} {value!r}: write the did:key of the user, as `hocket node whoami` does"
        )


def _control_address(value: str) -> None:
    from hocket.mesh.peers import check_address

    try:
        check_address(value)
    except Usage as error:
        raise Usage(f"bad {variables.MESH_CONTROL_ADDR}: {error}") from None


def _token(value: str) -> None:
    from hocket.api.programs import check_mesh_token

    check_mesh_token(value)


def _bus(value: str) -> None:
    from hocket.bus.nats_access import read_servers

    try:
        read_servers(value)
    except Usage as error:
        raise Usage(f"bad {variables.BUS}: {error}") from None


def _file(name: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if not Path(value).expanduser().is_file():
            raise Usage(f"bad {name}: there is no file {value}")

    return check


def _traces(value: str) -> None:
    if not value.startswith(("http://", "https://")):
        raise Usage(f"bad {TRACES} {value!r}; it is the address of an OTLP endpoint, like http://localhost:4318")


_CHECKS: dict[str, Callable[[str], object]] = {
    variables.MESH_ENABLED: _switch(variables.MESH_ENABLED),
    variables.DB_CIRCUIT_BREAKER: _switch(variables.DB_CIRCUIT_BREAKER),
    variables.MESH_NODE_ID: _node,
    variables.MESH_SCOPE_ID: _scope,
    variables.MESH_CONTROL_ADDR: _control_address,
    variables.MESH_TOKEN: _token,
    variables.STORE_LISTEN: lambda value: variables.listen_address(),
    variables.STORE_READ: lambda value: variables.check_read_address(value),
    variables.BUS: _bus,
    variables.BUS_CREDENTIALS: _file(variables.BUS_CREDENTIALS),
    variables.BUS_CA: _file(variables.BUS_CA),
    variables.RATES: _file(variables.RATES),
    TRACES: _traces,
}


REMOVED = "[removed]"
# Shorter values would match everywhere.
VALUE_CHARS_MIN = 4

_LOOKS_SECRET = re.compile(
    r"hocket-[0-9]+-[A-Za-z0-9_-]+"  # an invitation
    r"|hkt_[A-Za-z0-9_-]+"  # a program's token
    r"|eyJ[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*){1,2}"  # a JSON Web Token
    r"|ed25519:[0-9a-f]+"  # a key, perhaps a private one
    r"|(?:(?<=nats://)|(?<=tls://))[^\s,]+(?=@)"  # the user and the password of a bus
    r"|SU[A-Z2-7]{56}"  # the seed of an nkey
)
_SECRET_NAME = re.compile("TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH", re.IGNORECASE)


def redacted(text: str) -> str:
    for value in sorted({*_values(sys.argv)}, key=len, reverse=True):
        if len(value) >= VALUE_CHARS_MIN:
            text = text.replace(value, REMOVED)
    return _LOOKS_SECRET.sub(REMOVED, text)


def redacted_words(words: Sequence[str]) -> Iterator[str]:
    """Redacts a command line. Values of --env are removed whatever their length."""
    before = ""
    for word in words:
        _, equals, value = word.removeprefix("--env=").partition("=")
        if equals and value and (before == "--env" or word.startswith("--env=")):
            yield f"{word.removesuffix(value)}{REMOVED}"
        else:
            yield redacted(word)
        before = word


def _values(words: Sequence[str]) -> Iterator[str]:
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name):
            yield value
    before = ""
    for word in words:
        if before == "--env" or word.startswith("--env="):
            name, equals, value = word.removeprefix("--env=").partition("=")
            yield value if equals else os.environ.get(name, "")
        before = word
