"""`hocket nodes`: the roll of the mesh, and how one of its nodes is named on a command line."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli.app import new_app
from hocket.cli.output import ago, emit, table
from hocket.cli.settings import HomeOption, JsonOption, open_desk

if TYPE_CHECKING:
    from hocket.mesh.membership import Member

app = new_app()

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="A node's name, the beginning of its id, or `here`.")]


@app.command()
def nodes(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the nodes of the mesh: name, id, standing, roles, when it was last seen and until when it may stay, what it
    may do, and how much it has stored here of what it may store. A pending node was let in and nothing of it has
    arrived yet.

    \b
      hocket nodes
      hocket nodes --json | jq '.[] | select(.standing == "active") | .name'
    """
    from hocket.mesh import membership

    with open_desk() as runtime, runtime.read() as session:
        shown = [member_shown(each) for each in membership.members(runtime.log, session)]
    emit(shown)
    now = int(time.time() * 1000)
    table(
        ("name", "id", "standing", "roles", "seen", "expires", "may", "stored"),
        [
            (
                (each["name"] or "-") + (" (here)" if each["here"] else ""),
                each["node"],
                each["standing"],
                ", ".join(each["roles"]),
                ago(each["seen_ms"], now) if each["seen_ms"] else "never",
                ago(each["expires_ms"], now) if each["expires_ms"] else "-",
                "; ".join(each["may"]),
                _stored(each, now),
            )
            for each in shown
        ],
        "no nodes",
    )


def _stored(shown: dict[str, Any], now: int) -> str:
    from hocket.kernel.quota import Quota
    from hocket.mesh.quota_text import quota_words, size_words

    if shown["here"]:
        return "-"
    stored = f"{shown['stored']['ops']:,} ops and {size_words(shown['stored']['bytes'])}"
    if words := quota_words(Quota(**shown["quota"])):
        stored += f" (may: {words})"
    over = shown["over_quota"]
    return stored + (f"; over its quota {ago(over['last_ms'], now)}, {over['ops']:,} ops refused" if over else "")


def member_shown(member: "Member") -> dict[str, Any]:
    import msgspec

    from hocket.kernel.ids import node_text
    from hocket.mesh.grants import words

    return {
        "node": member.id,
        "name": member.name,
        "standing": member.standing,
        "roles": list(member.roles),
        "may": words(member.capabilities),
        "expires_ms": None if member.expires is None else member.expires * 1000,
        "seen_ms": member.seen or None,
        "inviter": None if member.inviter is None else node_text(member.inviter),
        "here": member.is_here,
        "stored": member.written._asdict(),
        "quota": msgspec.to_builtins(member.quota),
        "over_quota": None if member.over is None else {"last_ms": member.over.wall, "ops": member.over.ops},
    }
