"""`hocket invite`: lets another machine into the mesh. It prints one token, to be carried there by hand."""

import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hocket.cli.app import new_app
from hocket.cli.job import moment
from hocket.cli.options import seconds
from hocket.cli.output import emit, fields, notice, on_terminal, say, table
from hocket.cli.settings import HomeOption, JsonOption, open_service, settings
from hocket.errors import Usage
from hocket.kernel.durations import span

if TYPE_CHECKING:
    from hocket.kernel.ucan import Capability
    from hocket.service import Service

app = new_app()


@app.command()
def invite(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="What the node will be called.", show_default=False)
    ] = None,
    worker: Annotated[
        list[str] | None,
        typer.Option("--worker", metavar="PREFIX", help="Let it run jobs whose kind begins so; may be repeated."),
    ] = None,
    may: Annotated[
        list[str] | None,
        typer.Option("--may", metavar="GRANT", help="resource:action[:kind-prefix], or `all`; may be repeated."),
    ] = None,
    audit: Annotated[bool, typer.Option("--audit", help="It must put every model call on record.")] = False,
    sanitize: Annotated[
        str | None, typer.Option("--sanitize", metavar="RULES", help="What it reads goes through these first.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="DURATION", help="How long it stays in the mesh, like 30d.")
    ] = None,
    quota: Annotated[
        str | None,
        typer.Option("--quota", metavar="QUOTA", help="How much it may store, like ops=50/s,bytes=1M/s,bytes=2G."),
    ] = None,
    valid: Annotated[
        str, typer.Option("--valid", metavar="DURATION", help="How long the invitation can be used.")
    ] = "1h",
    address: Annotated[
        list[str] | None,
        typer.Option("--address", metavar="URL", help="Where this node answers; default: where `hocket serve` does."),
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the invitations.")] = False,
    cancel: Annotated[str | None, typer.Option("--cancel", metavar="NAME", help="Take one back.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Invite another machine. The token that this prints is good for one node, once; its key is made over there.

    --worker lets the node claim, complete and read jobs of the kinds that begin so, and read what they made. It reads
    no other jobs or artifacts.

    --may grants anything else. Resources are ops, evidence, entity, claim, job, episode, artifact, action, mesh,
    userassertion and registration; actions read, write and all, for jobs read, schedule, claim, complete and all. A
    kind prefix can follow what is done with jobs, and artifact:read. A node that completes jobs may write artifacts.
    Without --worker and without a read by name, the node reads all jobs and artifacts. Only registration:write (and
    all) lets it invite others, with no more than it may do itself.

    --quota bounds what the node stores on every other node's log: a number with /s is a rate, one without is in all.
    What it does not say has the mesh's default (`hocket rules show`), which is small for a node that may only read. A
    node that invites others shares its quota with them.

    \b
      hocket invite gpu-box --worker acme.render. --expires 30d
      hocket invite phone --may job:schedule --address http://192.168.1.7:7315
      hocket invite --list
    """
    if list_them:
        _list()
    elif cancel is not None:
        _cancel(cancel)
    elif name is None:
        raise Usage("say what the node will be called, like `hocket invite gpu-box --worker acme.`")
    else:
        with open_service() as service:
            grants = Grants(tuple(may or ()), tuple(worker or ()), audit, sanitize, quota)
            _invite(service, name, grants, seconds(expires, "--expires"), valid, address)


class Grants(NamedTuple):
    """What the options say about what the node may do."""

    may: tuple[str, ...]
    worker: tuple[str, ...]
    audit: bool
    sanitize: str | None
    quota: str | None


def _invite(
    service: "Service",
    name: str,
    grants: Grants,
    lifetime: float | None,
    valid: str,
    address: list[str] | None,
) -> None:
    import msgspec

    from hocket.kernel.quota import NO_QUOTA
    from hocket.mesh.grants import parse_grants, words
    from hocket.mesh.quota_text import parse_quota, quota_words
    from hocket.service import peers
    from hocket.work.command.request import KIND

    rules = [rule.strip() for rule in grants.sanitize.split(",")] if grants.sanitize else []
    capabilities = parse_grants(grants.may, worker=grants.worker, audit=grants.audit, sanitize=rules)
    quota = NO_QUOTA if grants.quota is None else parse_quota(grants.quota)
    valid_ms = round((seconds(valid, "--valid") or 0) * 1000)
    lifetime_s = None if lifetime is None else round(lifetime)
    made = peers.invite(service, peers.NewInvitation(name, capabilities, address or [], valid_ms, lifetime_s, quota))
    shown: dict[str, Any] = {
        "name": name,
        "token": made.token,
        "addresses": list(made.ticket.addresses),
        "good_until_ms": made.ticket.expires * 1000,
        "ends_ms": None if made.ends is None else made.ends * 1000,
        "may": words(capabilities),
        "capabilities": msgspec.to_builtins(capabilities),
        "quota": msgspec.to_builtins(quota),
    }
    emit(shown)
    if rules and service.runtime.log.rules.is_strict:
        notice("this is a strict mesh: what would have to be sanitised for this node is not sent to it at all")
    say(made.token)
    if on_terminal() and not settings.as_json:
        _draw(made.token)
    fields(
        [
            ("node", name if made.renews is None else f"{name}, which is in the mesh already and gets this besides"),
            ("may", "; ".join(shown["may"])),
            ("quota", quota_words(quota) or "the mesh's default"),
            ("stays", _stay(lifetime, shown["ends_ms"])),
            ("answers at", ", ".join(made.ticket.addresses)),
            ("good until", moment(shown["good_until_ms"])),
        ]
    )
    if _claims_in_vain(capabilities):
        say("it may claim jobs and not complete them, so it will claim none; grant job:complete too", "warn")
    if rules and any(each.resource in ("Job", "Ops") and each.action in ("Claim", "*") for each in capabilities):
        say("it does not run jobs whose payload these rules change, because it never sees the whole payload", "warn")
    if KIND.startswith(grants.worker) and not _reads_all_artifacts(capabilities):
        say("inputs of commands come from no job, so it cannot read them; grant artifact:read if it must", "warn")
    say("on the other machine: hocket --home DIR join TOKEN", "dim")


def _stay(lifetime: float | None, ends_ms: int | None) -> str:
    if lifetime is not None:
        return f"for {span(round(lifetime * 1000))} from its joining"
    return "until it is revoked" if ends_ms is None else f"as long as this node may, until {moment(ends_ms)}"


def _claims_in_vain(capabilities: "tuple[Capability, ...]") -> bool:
    actions = {each.action for each in capabilities if each.resource in ("Job", "Ops")}
    return "Claim" in actions and not actions & {"Complete", "*", "Write"}


def _reads_all_artifacts(capabilities: "tuple[Capability, ...]") -> bool:
    return any(
        each.resource in ("Artifact", "Ops") and each.action in ("Read", "*") and "kind_prefix" not in each.caveats
        for each in capabilities
    )


def _draw(token: str) -> None:
    """The token as a QR code, where that can be drawn."""
    try:
        import segno
    except ImportError:
        return
    segno.make(token, error="l").terminal(out=sys.stdout, compact=True)


def _list() -> None:
    from hocket.mesh.quota_text import quota_words
    from hocket.service import peers

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
    from hocket.service import peers

    with open_service() as service:
        peers.cancel_invitation(service, name)
    emit({"name": name, "cancelled": True})
    say(f"the invitation for {name} is cancelled")
