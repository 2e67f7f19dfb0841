"""`hocket join`: makes this machine a node of the mesh that issued the invitation."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hocket.api.views import moment
from hocket.cli.declarations import Argument, Option
from hocket.cli.output import emit, fields, say
from hocket.cli.settings import settings
from hocket.errors import Unreachable, Usage

if TYPE_CHECKING:
    from hocket.mesh.enrolment import Send
    from hocket.mesh.peers import Trust

TOKEN_READ_MAX = 16 * 1024


def join(
    token: Annotated[
        str | None,
        Argument(
            "[TOKEN]",
            "What `hocket invite` printed; - reads it from stdin. Default: $HOCKET_MESH_TOKEN.",
            show_default=False,
        ),
    ] = None,
    ca: Annotated[Path | None, Option("--ca", "FILE", "The CA of the inviting node's certificate.")] = None,
    pin: Annotated[str | None, Option("--pin", "SHA256", "The fingerprint of the one certificate to trust.")] = None,
    store: Annotated[
        str | None,
        Option(
            "--store",
            "ADDRESS",
            "The inviting node's store, like postgresql://hocket@db.example/hocket. Default: $HOCKET_STORE.",
        ),
    ] = None,
) -> None:
    """Join a mesh with an invitation token. The node's key is made in the home and never leaves it.

    Repeat an interrupted join with the same token. In the home of an invited node, another invitation of the same name
    adds its grants.

    A token of `hocket invite --share` also needs the address of the inviting node's store: the new node shares it.

    \b
      hocket join hocket-1-… --home /srv/gpu
      ssh gpu-box hocket join - < token
      hocket join hocket-store-1-… --store postgresql://hocket@db.example/hocket
    """
    from hocket.api import Service, nodes, peers
    from hocket.mesh import enrolment
    from hocket.mesh.peers import Trust, check_pin
    from hocket.node.joining import join as join_mesh
    from hocket.node.variables import MESH_ENABLED, MESH_TOKEN, checked_server, given, is_on

    if not is_on(MESH_ENABLED):
        raise Usage(f"joining needs other nodes, and {MESH_ENABLED} is off")
    token = token or given(MESH_TOKEN)
    if token is None:
        raise Usage(f"give the token that `hocket invite` printed, or set {MESH_TOKEN}")
    trust = Trust(None if ca is None else str(ca.absolute()), check_pin(pin))
    text = sys.stdin.read(TOKEN_READ_MAX) if token == "-" else token
    if trust != Trust() and not any(map(_has_certificate, enrolment.parse(text).addresses)):
        raise Usage(
            "--pin and --ca check the certificate of an https:// address, but the invitation has no such address;"
            " have the inviting node serve with TLS, or join without these options"
        )
    server = None if store is None else checked_server(store)
    with join_mesh(settings.home, text, _sender(trust), trust=trust, server=server) as runtime:
        service = Service(runtime)
        here = nodes.identity(service)
        known = [each.address for each in peers.listing(service).peers]
        shown: dict[str, Any] = {
            "node": here.node,
            "name": here.name,
            "user": here.user,
            "home": here.home,
            "inviter": here.inviter,
            "peers": known,
            "may": here.may,
            "expires_ms": here.expires_ms,
        }
    emit(shown)
    say("joined")
    fields(
        [
            *((each, shown[each]) for each in ("node", "name", "user", "home", "inviter")),
            ("peers", ", ".join(known)),
            ("may", "; ".join(shown["may"])),
            ("until", moment(shown["expires_ms"]) or "it is revoked"),
        ]
    )


def _has_certificate(address: str) -> bool:
    return address.startswith("https://")


def _sender(trust: "Trust") -> "Send":
    import asyncio

    from hocket.mesh.peers import Trust
    from hocket.mesh.wire import Reply, Request

    try:
        from hocket.mesh.http import HttpTransport
    except ImportError as error:
        raise Usage(f"joining needs {error.name}; install hocket[server]") from None

    async def send(address: str, request: Request) -> Reply:
        if trust != Trust() and not _has_certificate(address):
            raise Unreachable(f"{address} has no certificate to check")
        async with HttpTransport(lambda _: trust) as transport:
            return await transport.send(address, request)

    return lambda address, request: asyncio.run(send(address, request))
