"""The nodes of the mesh and their agents: who they are, what each may do, where jobs go, which node coordinates; and
the peers, the nodes that this node syncs with, with the state of each.
"""

import sys
from typing import TYPE_CHECKING, Annotated

from hocket.api import agents as agent_operations
from hocket.api import nodes as operations
from hocket.api import rights
from hocket.cli.declarations import App, Argument, CommandContext, Option
from hocket.cli.derived import add_operations, perform
from hocket.cli.keys import PassphraseFile, known
from hocket.cli.printing import confirmed, emit, notice, on_terminal, say, table
from hocket.cli.settings import open_service, settings
from hocket.errors import Conflict, Failed, Unreachable, Usage
from hocket.kernel.texts import counted, duration_ms

if TYPE_CHECKING:
    from hocket.api import Service
    from hocket.api.rights import Revoking


_NO = 4

agents_app = App()

NodeArgument = Annotated[str, Argument("NODE", "A node's name, the beginning of its id, or `here`.")]
MaybeNode = Annotated[str | None, Argument("NODE", "A node's name, the beginning of its id, or `here`.")]
StaleOption = Annotated[
    str | None, Option("--stale", "DURATION", "Only those that were heard within this time, like 1m.")
]


def _stale_ms(text: str | None) -> int | None:
    try:
        return None if text is None else duration_ms(text)
    except ValueError as error:
        raise Usage(f"--stale: {error}") from None


def nodes(
    live: Annotated[
        bool, Option("--live", help="How alive each node is, by its heartbeats, and what its machine has.")
    ] = False,
    stale: StaleOption = None,
) -> None:
    """List the nodes of the mesh: name, id, standing, whether it takes new work, roles, when last seen, when its stay
    ends, what it may do, and how much of its quota it has used here. A pending node was admitted, but nothing from it
    has arrived yet.

    With --live: how alive each node is. A node that runs a server or a worker says every 10 seconds that it is there;
    one that has missed 3, 5, 7 or 9 heartbeats is graded warn, alert, critical or dead.

    \b
      hocket mesh nodes
      hocket mesh nodes --json | jq '.[] | select(.standing == "active") | .name'
      hocket mesh nodes --live --stale 1m
    """
    if live or stale is not None:
        perform(operations.live, _stale_ms(stale))
        return
    with open_service() as service:
        warn_of_namesakes(service)
    perform(operations.listing)


def warn_of_namesakes(service: "Service") -> None:
    """Says which nodes cannot be told apart by their names."""
    for group in operations.namesakes(service):
        ids = " and ".join(f"{each.name} ({each.node})" for each in group)
        notice(f"these nodes are called alike: {ids}; `hocket keys reissue --name NAME` renames an owner's node")


@agents_app.callback(invoke_without_command=True)
def agents(context: CommandContext, stale: StaleOption = None) -> None:
    """List the agents of the mesh: name, node, how alive, when last seen, and what each does. Workers are agents, too,
    and so is who holds a lock, waits for one, or has claimed messages. An agent that has missed 3, 5, 7 or 9 times to
    say what it does is graded warn, alert, critical or dead.

    \b
      hocket mesh agents
      hocket mesh agents --stale 5m --json | jq '.[] | .name'
      hocket mesh agents beat editor --doing "reviews src/lib.rs"
    """
    if context.invoked_subcommand is None:
        perform(agent_operations.listing, _stale_ms(stale))


add_operations(agents_app, agent_operations.beat)


def may(
    node: NodeArgument,
    action: Annotated[str, Argument("ACTION", "claim, complete, schedule, or resource:action like artifact:write.")],
    kind: Annotated[str | None, Argument("[KIND]", "The kind of job, for job actions.")] = None,
) -> None:
    """Check whether a node may do something now. If yes, print the delegations that grant it, the user's first (exit
    code 0); if no, exit code 4.

    \b
      hocket node may gpu-box claim acme.render.frame
      hocket node may phone artifact:write
    """
    if not perform(rights.may, node, action, kind).may:
        sys.exit(_NO)


def revoke(
    node: NodeArgument,
    yes: Annotated[bool, Option("--yes", help="Do not ask for confirmation.")] = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Revoke all rights of a node, and all rights that other nodes hold through it. This cannot be undone, but you can
    invite the machine again.

    Revoking is retroactive: ops of the node no longer count, including jobs that it submitted. What the coordinator
    accepted from the node stands. If the node was the coordinator, or shared its store, its decisions are
    undone, and jobs that it completed run again.

    The node that invited a node may revoke it, and so may any node above that. A node that the user's own key admitted,
    such as the owner's second node, is revoked with that key, from a home that has it.

    \b
      hocket node revoke gpu-box
      hocket node revoke 3f9a01 --yes
    """
    with open_service() as service:
        planned = rights.revocable(service, node)
        if not yes and on_terminal(sys.stdin) and not settings.as_json:
            _explain(planned)
            if not confirmed("revoke it?"):
                raise Conflict("nothing was revoked")
        done = rights.revoke(service, planned.node, known(passphrase_file))
    emit({"node": done.node, "name": done.name, "delegations": done.delegations, "cascade": done.cascade})
    say(f"{done.called} is revoked ({counted(done.delegations, 'delegation')})")
    for each in done.cascade:
        say(f"{each.called} has lost the rights that it held through this node")
    if "sharer" in done.roles:
        say(
            "it shared the coordinator's store, so its decisions are undone, and jobs that it completed run again",
            "warn",
        )
    if "coordinator" in done.roles:
        say(
            "it was the coordinator, so no node decides claims now; `hocket mesh coordinator` designates another",
            "warn",
        )
    say("its ops no longer count, including jobs that it submitted; what the coordinator accepted from it stands")
    say("other nodes learn of this at their next sync", "dim")


def _explain(planned: "Revoking") -> None:
    say(f"{planned.called} ({planned.node}) loses {counted(planned.delegations, 'delegation')}")
    if "sharer" in planned.roles:
        say(
            "it shares the coordinator's store: jobs that it completed will run again; `hocket node drain` retires a"
            " node",
            "warn",
        )
    for each in planned.cascade:
        say(f"{each.called} ({each.node}) loses the rights that it holds through this node")


def route(
    kind: Annotated[
        str | None, Argument("KIND", "The full kind, or a prefix with its dot, like acme.", show_default=False)
    ] = None,
    node: MaybeNode = None,
    clear: Annotated[bool, Option("--clear", help="Remove the route; any authorised node may run them.")] = False,
    list_them: Annotated[bool, Option("--list", help="List the routes in force.")] = False,
) -> None:
    """Send all jobs of a kind to one node: from now on, claims of other nodes on them do not count. Only the owner may.

    A prefix with its dot routes every kind below it that has no route of its own.

    \b
      hocket mesh route acme.render gpu-box
      hocket mesh route acme. gpu-box
      hocket mesh route acme.render --clear
      hocket mesh route --list
    """
    if list_them:
        perform(rights.routes)
    elif kind is None or (node is None) == (not clear):
        raise Usage(
            "give a kind and a node, like `hocket mesh route acme.render gpu-box`, a kind and --clear, or --list"
        )
    else:
        perform(rights.route, kind, node)


def coordinator(
    node: MaybeNode = None,
    show: Annotated[bool, Option("--show", help="Show the current coordinator.")] = False,
) -> None:
    """Designate the coordinator: from now on it decides which claims hold. Only the owner may. `hocket mesh succession`
    says which nodes may follow it by themselves if it falls silent.

    \b
      hocket mesh coordinator --show
      hocket mesh coordinator rack-1
    """
    if (node is None) == (not show):
        raise Usage("name a node, like `hocket mesh coordinator rack-1`, or give --show")
    if node is None:
        perform(rights.coordinator)
    else:
        perform(rights.designate, node)


def succession(
    nodes: Annotated[
        list[str] | None, Argument("[NODE]...", "The coordinator and those that may follow it, in this order.")
    ] = None,
    quorum: Annotated[
        int | None, Option("--quorum", "N", "How many of them must agree; more than half, and that is the default.")
    ] = None,
    after: Annotated[str | None, Option("--after", "DURATION", "After how long a silence, like 30s.")] = None,
    none: Annotated[bool, Option("--none", help="From now on no node may follow the coordinator by itself.")] = False,
) -> None:
    """Say which nodes may follow the coordinator if it falls silent; without nodes, show it. Only the owner may say it.

    Until then a mesh whose coordinator is away waits for it. With a succession the coordinator tells nobody what it has
    decided before a quorum of the named nodes keeps it, so it decides nothing while it reaches too few of them.

    \b
      hocket mesh succession laptop gpu-box rack-1 --quorum 2 --after 30s
      hocket mesh succession
      hocket mesh succession --none
    """
    if none or nodes:
        if none and (nodes or quorum is not None or after is not None):
            raise Usage("--none ends the succession, so it takes no nodes, no --quorum and no --after")
        perform(rights.succeed, nodes or [], quorum, rights.AFTER_MS if after is None else _after_ms(after))
    elif quorum is not None or after is not None:
        raise Usage("name the nodes too, like `hocket mesh succession laptop gpu-box rack-1 --quorum 2`")
    else:
        perform(rights.succession)


def _after_ms(text: str) -> int:
    try:
        return duration_ms(text)
    except ValueError as error:
        raise Usage(f"--after: {error}") from None


def sync(
    peer: Annotated[str | None, Option("--peer", "ADDRESS", "Sync only with this peer, even if it is paused.")] = None,
) -> None:
    """Sync with the peers once, now: pull the ops that they have, push the ops that they lack.

    The server at $HOCKET_MESH_CONTROL_ADDR is a peer, too. Prints a line for each peer. Exit code 1 if a peer is paused
    or refuses this node, 5 if none could be reached.

    \b
      hocket mesh sync
      hocket mesh sync --peer http://192.168.1.7:7315
    """
    from hocket.api import peers
    from hocket.mesh.peers import PAUSED, REFUSED, UNREACHABLE

    with open_service() as service:
        done = peers.visit(service, peer)
        warn_of_namesakes(service)
    emit(done)
    table(
        ("peer", "state", "new here", "new there", "refused", "detail"),
        [(each.address, each.state, each.pulled, each.pushed, each.refused, each.detail) for each in done],
        "no peers",
    )
    stopped = [each for each in done if each.state in (PAUSED, REFUSED)]
    if all(each.state == UNREACHABLE for each in done):
        raise Unreachable(f"no peer could be reached: {done[0].detail}")
    if stopped:
        raise Failed(f"{len(stopped)} of {len(done)} peers did not sync; see `hocket mesh peers list`")
