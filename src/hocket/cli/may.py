"""`hocket may`: whether a node may do something, and the chain of delegations that says so."""

from typing import Annotated, Any

import typer

from hocket.cli.app import new_app
from hocket.cli.job import moment
from hocket.cli.nodes import NodeArgument
from hocket.cli.output import emit, say, table
from hocket.cli.settings import HomeOption, JsonOption, open_desk

_NO = 4

app = new_app()


@app.command()
def may(
    node: NodeArgument,
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="claim, complete, schedule, or resource:action like artifact:write.")
    ],
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="The kind of job, for what is done with jobs.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer whether a node may do something now: yes with the delegations that grant it, the user's first (exit code
    0), or no (exit code 4).

    \b
      hocket may gpu-box claim acme.render.frame
      hocket may phone artifact:write
    """
    from hocket.kernel.ids import hash_text, node_text
    from hocket.mesh import membership
    from hocket.mesh.grants import parse_action, words

    resource, wanted = parse_action(action)
    with open_desk() as runtime, runtime.read() as session:
        names = {each.node: each.shown for each in membership.members(runtime.log, session)}
        member = membership.find(membership.members(runtime.log, session), node)
        answer = membership.may(runtime.log, session, member.node, resource, wanted, kind)
    routed = None if answer.routed is None else names.get(answer.routed, node_text(answer.routed))
    chain: list[dict[str, Any]] = [
        {
            "delegation": hash_text(each.cid),
            "to": names.get(each.node, node_text(each.node)),
            "by": each.issuer,
            "may": words(each.capabilities),
            "expires_ms": None if each.expires is None else each.expires * 1000,
        }
        for each in answer.chain or ()
    ]
    allowed = answer.chain is not None and answer.routed is None
    emit({"may": allowed, "node": member.id, "routed_to": routed, "chain": chain})
    if answer.chain is None:
        say("no: no delegation in force grants it")
    elif routed is not None:
        say(f"no: it is granted, but the kind is routed to {routed}")
    else:
        say("yes")
    table(
        ("to", "by", "delegation", "until", "may"),
        [
            (each["to"], each["by"], each["delegation"], moment(each["expires_ms"]) or "-", "; ".join(each["may"]))
            for each in chain
        ],
        "",
    )
    if not allowed:
        raise typer.Exit(_NO)
