"""`hocket mesh invite` invites another machine into the mesh: it prints one token, and a person carries it to that
machine. There `hocket mesh join` makes the machine a node of the mesh. `hocket page` lets a browser enter the page of
this node.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from hocket.api.views import moment
from hocket.cli.declarations import Argument, Option
from hocket.cli.options import milliseconds, seconds
from hocket.cli.printing import emit, fields, notice, on_terminal, say, table
from hocket.cli.settings import open_service, settings
from hocket.errors import Unreachable, Usage
from hocket.kernel.texts import span

if TYPE_CHECKING:
    from hocket.api import Service
    from hocket.kernel.ucan import Capability
    from hocket.mesh.enrolment import Send
    from hocket.mesh.peers import Trust

TOKEN_READ_MAX = 16 * 1024


def invite(
    name: Annotated[str | None, Argument("NAME", "The new node's name.", show_default=False)] = None,
    worker: Annotated[
        list[str] | None, Option("--worker", "PREFIX", "Let it run jobs whose kind has this prefix; may be repeated.")
    ] = None,
    may: Annotated[
        list[str] | None, Option("--may", "GRANT", "resource:action[:kind-prefix], or `all`; may be repeated.")
    ] = None,
    audit: Annotated[bool, Option("--audit", help="Require it to record every model call.")] = False,
    sanitize: Annotated[str | None, Option("--sanitize", "RULES", "Sanitisation rules for what it reads.")] = None,
    expires: Annotated[
        str | None, Option("--expires", "DURATION", "How long it may stay in the mesh, like 30d.")
    ] = None,
    quota: Annotated[
        str | None, Option("--quota", "QUOTA", "How much it may store, like ops=50/s,bytes=1M/s,bytes=2G.")
    ] = None,
    share: Annotated[
        bool, Option("--share", help="Let it share this node's store in a server, with a home of its own.")
    ] = False,
    valid: Annotated[str, Option("--valid", "DURATION", "How long the invitation stays valid.")] = "1h",
    address: Annotated[
        list[str] | None, Option("--address", "URL", "This node's address; default: that of `hocket mesh serve`.")
    ] = None,
    list_them: Annotated[bool, Option("--list", help="List the invitations.")] = False,
    cancel: Annotated[str | None, Option("--cancel", "NAME", "Cancel an invitation.")] = None,
) -> None:
    """Invite another machine. The printed token admits one node, once. The new node makes its own key.

    --worker lets the node claim, complete and read jobs whose kind has this prefix, read their artifacts, and set the
    options that its handlers have for these kinds. It reads no other jobs or artifacts.

    --may grants anything else. Resources: ops, evidence, entity, claim, job, episode, artifact, action, mesh,
    userassertion, registration. Actions: read, write, all; for jobs read, schedule, claim, complete, define, approve,
    all. A kind prefix may follow a job action and artifact:read. A node that may complete jobs may also write
    artifacts; job:define lets its workers set the options of kinds for every submitter. Read access to jobs and
    artifacts is the default; --worker or naming any read grant replaces it. Only registration:write (or all) lets the
    node invite others, with no more rights than its own.

    For locks, the actions are read, acquire, break and all, and a key prefix may follow; lock@SCOPE:acquire grants the
    locks of one scope only.

    --share is for a machine that can connect to this node's store in a database server. The node reads every op and
    decides about claims as this node does. The token does not contain the store's address.

    --quota limits how much the node stores on every other node's log: a number with /s is a rate, a number without it
    is a total. An unnamed limit takes the mesh's default (`hocket mesh rules show`), which is small for a read-only
    node. A node that invites others shares its quota with them.

    \b
      hocket mesh invite gpu-box --worker acme.render. --expires 30d
      hocket mesh invite phone --may job:schedule --address http://192.168.1.7:7315
      hocket mesh invite second --share --may all
      hocket mesh invite --list
    """
    if list_them:
        _list()
    elif cancel is not None:
        _cancel(cancel)
    elif name is None:
        raise Usage("name the new node, like `hocket mesh invite gpu-box --worker acme.`")
    else:
        with open_service() as service:
            if share and sanitize:
                raise Usage("a node that shares the store reads everything there; leave out --sanitize or --share")
            grants = Grants(tuple(may or ()), tuple(worker or ()), audit, sanitize, quota, share)
            _invite(service, name, grants, seconds(expires, "--expires"), valid, address)


class Grants(NamedTuple):
    """What the options grant."""

    may: tuple[str, ...]
    worker: tuple[str, ...]
    audit: bool
    sanitize: str | None
    quota: str | None
    share: bool


def _invite(
    service: "Service",
    name: str,
    grants: Grants,
    lifetime: float | None,
    valid: str,
    address: list[str] | None,
) -> None:
    import msgspec

    from hocket.api import peers
    from hocket.kernel.extension import extension_kinds
    from hocket.kernel.ucan import NO_QUOTA
    from hocket.mesh.grants import parse_grants, parse_quota, quota_words, words

    rules = [rule.strip() for rule in grants.sanitize.split(",")] if grants.sanitize else []
    is_strict = service.runtime.log.rules.is_strict
    capabilities = parse_grants(
        grants.may, worker=grants.worker, audit=grants.audit, sanitize=rules, is_strict=is_strict
    )
    quota = NO_QUOTA if grants.quota is None else parse_quota(grants.quota)
    valid_ms = round((seconds(valid, "--valid") or 0) * 1000)
    lifetime_s = None if lifetime is None else round(lifetime)
    asked = peers.NewInvitation(name, capabilities, address or [], valid_ms, lifetime_s, quota, grants.share)
    made = peers.invite(service, asked)
    shown: dict[str, Any] = {
        "name": name,
        "token": made.token,
        "addresses": list(made.ticket.addresses),
        "good_until_ms": made.ticket.expires * 1000,
        "ends_ms": None if made.ends is None else made.ends * 1000,
        "may": words(capabilities),
        "shares_store": grants.share,
        "capabilities": msgspec.to_builtins(capabilities),
        "quota": msgspec.to_builtins(quota),
    }
    emit(shown)
    if rules and is_strict:
        notice("this is a strict mesh: ops that would need sanitising are not sent to this node at all")
    if not peers.is_served(service):
        notice("no server runs in this home: the other machine cannot join until `hocket mesh serve` runs here")
    say(made.token)
    if on_terminal() and not settings.as_json:
        _draw(made.token)
    fields(
        [
            ("node", name if made.renews is None else f"{name}, already in the mesh; these grants are added"),
            ("may", "; ".join(shown["may"])),
            ("quota", quota_words(quota) or "the mesh's default"),
            ("stays", _stay(lifetime, shown["ends_ms"])),
            ("answers at", ", ".join(made.ticket.addresses)),
            ("good until", moment(shown["good_until_ms"])),
        ]
    )
    for prefix in grants.worker:
        if not prefix.endswith("."):
            say(f"this grants every kind that begins with {prefix}, not {prefix} alone: a grant is a prefix", "warn")
    if _claims_in_vain(capabilities):
        say("it may claim jobs but not complete them, so it will claim none; grant job:complete too", "warn")
    if rules and any(each.resource in ("Job", "Ops") and each.action in ("Claim", "*") for each in capabilities):
        say("it will not run jobs whose payload these rules change, because it never sees the whole payload", "warn")
    served = [each.kind for each in extension_kinds() if each.worker]
    if any(each.startswith(grants.worker) for each in served) and not _reads_all_artifacts(capabilities):
        say("it cannot read command inputs, because they belong to no job; grant artifact:read if it must", "warn")
    store = " --store ADDRESS" if grants.share else ""
    say(f"on the other machine: hocket --home DIR mesh join TOKEN{store}", "dim")


def _stay(lifetime: float | None, ends_ms: int | None) -> str:
    if lifetime is not None:
        return f"for {span(round(lifetime * 1000))} after it joins"
    return "until it is revoked" if ends_ms is None else f"as long as this node, until {moment(ends_ms)}"


def _claims_in_vain(capabilities: "tuple[Capability, ...]") -> bool:
    actions = {each.action for each in capabilities if each.resource in ("Job", "Ops")}
    return "Claim" in actions and not actions & {"Complete", "*", "Write"}


def _reads_all_artifacts(capabilities: "tuple[Capability, ...]") -> bool:
    return any(
        each.resource in ("Artifact", "Ops") and each.action in ("Read", "*") and "kind_prefix" not in each.caveats
        for each in capabilities
    )


def _draw(token: str) -> None:
    """Prints the token as a QR code if segno is installed."""
    try:
        import segno
    except ImportError:
        return
    segno.make(token, error="l").terminal(out=sys.stdout, compact=True)


def _list() -> None:
    from hocket.api import peers
    from hocket.mesh.grants import quota_words

    with open_service() as service:
        shown = peers.invitations(service)
    emit(shown)
    rows = [
        (
            *(each.name, each.state, moment(each.good_until_ms) or "-"),
            *(each.used_by or "-", "; ".join(each.may), quota_words(each.quota) or "default"),
        )
        for each in shown
    ]
    table(("name", "state", "good until", "used by", "may", "quota"), rows, "no invitations")


def _cancel(name: str) -> None:
    from hocket.api import peers

    with open_service() as service:
        peers.cancel_invitation(service, name)
    emit({"name": name, "cancelled": True})
    say(f"the invitation for {name} is cancelled")


def join(
    token: Annotated[
        str | None,
        Argument(
            "[TOKEN]",
            "What `hocket mesh invite` printed; - reads it from stdin. Default: $HOCKET_MESH_TOKEN.",
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

    A token of `hocket mesh invite --share` also needs the address of the inviting node's store: the new node shares it.

    \b
      hocket mesh join hocket-1-… --home /srv/gpu
      ssh gpu-box hocket mesh join - < token
      hocket mesh join hocket-store-1-… --store postgresql://hocket@db.example/hocket
    """
    from hocket.api import Service, nodes, peers
    from hocket.mesh import enrolment
    from hocket.mesh.peers import Trust, check_pin
    from hocket.node.opening import join as join_mesh
    from hocket.node.variables import MESH_ENABLED, MESH_TOKEN, checked_server, given, is_on

    if not is_on(MESH_ENABLED):
        raise Usage(f"joining needs other nodes, and {MESH_ENABLED} is off")
    token = token or given(MESH_TOKEN)
    if token is None:
        raise Usage(f"give the token that `hocket mesh invite` printed, or set {MESH_TOKEN}")
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


def page(
    may: Annotated[
        list[str] | None,
        Option("--may", "GRANT", "resource:action[:prefix], or `all`; may be repeated. Default: all."),
    ] = None,
    read_only: Annotated[bool, Option("--read-only", help="The browser may look, and change nothing.")] = False,
    agent: Annotated[
        str | None, Option("--agent", "NAME", "For whom the browser acts. Default: $HOCKET_AGENT, else your user.")
    ] = None,
    expires: Annotated[str, Option("--expires", "DURATION", "How long the browser may stay.")] = "12h",
    open: Annotated[bool, Option("--open/--no-open", help="Open the address in a browser, if there is one.")] = True,
) -> None:
    """Open the page of this node in a browser: what runs, why a job waits, and what happened, with buttons.

    Prints an address that one browser can use once, within ten minutes. The browser then has a token, which
    `hocket token list` shows and `hocket token revoke` ends at once. Everything that is done on the page is signed by
    this node, for the agent. `hocket mesh serve` must run.

    \b
      hocket page
      hocket page --read-only --agent ada --expires 7d
      hocket page --may job:read:acme. --no-open
    """
    if read_only and may:
        raise Usage("--read-only and --may exclude each other")
    from hocket.api.page_access import READER, make_address
    from hocket.families.inbox.requests import default_agent

    grants, lifetime_ms = READER if read_only else may or ["all"], milliseconds(expires, "--expires")
    with open_service() as service:
        made = make_address(service, agent or default_agent(), grants, lifetime_ms)
    emit(made)
    if settings.as_json:
        return
    say(made.address)
    notice(f"for {made.agent}, once, within 10 minutes; the browser may stay {span(made.lifetime_ms)}")
    if open and on_terminal() and {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        import webbrowser

        webbrowser.open(made.address)
