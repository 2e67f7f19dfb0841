"""`hocket lock`: locks with fences, for agents that share files. `run` holds a lock while a command runs."""

from typing import TYPE_CHECKING, Annotated

from hocket.api import locks
from hocket.cli.declarations import Argument, CommandContext, Option, new_app
from hocket.cli.derived import add_operations
from hocket.cli.options import Agent, checked_agent
from hocket.cli.output import emit, say
from hocket.cli.settings import open_service
from hocket.errors import Usage

if TYPE_CHECKING:
    from hocket.node.locks import LockOptions

app = new_app()

Lease = Annotated[
    str | None,
    Option("--lease", "DURATION", "How long it lasts unless renewed, or 4b in beats; default 30s for file:, else 5m."),
]
# The earlier name of --lease.
OldLease = Annotated[str | None, Option("--ttl", hidden=True)]
Shared = Annotated[bool, Option("--shared", help="Hold it together with other shared holders.")]
Wait = Annotated[str | None, Option("--wait", "DURATION", "How long to wait for it; default: not at all.")]
Scope = Annotated[str, Option("--scope", "REPO", "What the keys belong to, such as a repository.", show_default=False)]


@app.callback()
def lock_group() -> None:
    """Lock files and other things that several agents use. Every lock has a fence, a number that rises with each
    holder: pass it on to what you write, so that a late write of an earlier holder can be refused.

    \b
      hocket lock run file:src/lib.rs -- ./edit src/lib.rs
      hocket lock acquire file:src/** --agent editor --wait 10s
      hocket lock list
    """


add_operations(app, locks.acquire, locks.renew)


@app.command()
def release(
    key: Annotated[str | None, Argument("KEY", "What is locked, like file:src/lib.rs.", show_default=False)] = None,
    fence: Annotated[int | None, Option("--fence", "N", "The fence that `lock acquire` gave.")] = None,
    everything: Annotated[bool, Option("--all", help="All locks that the agent holds on this node.")] = False,
    agent: Agent = None,
    scope: Scope = "",
) -> None:
    """Release a lock, together with everything that was acquired with it, or all locks of an agent. --all releases the
    locks of every scope unless --scope names one.

    \b
      hocket lock release file:src/lib.rs --fence 7 --agent editor
      hocket lock release --all --agent editor
    """
    from hocket.families.inbox.requests import default_agent

    agent = agent or default_agent()
    if everything:
        if key is not None or fence is not None:
            raise Usage("give either a key and its fence, or --all")
        with open_service() as service:
            released = locks.release_all(service, agent, scope=scope or None)
        emit(released)
        for each in released:
            say(f"{', '.join(each.keys)} released")
        if not released:
            say(f"{agent} holds no locks here")
        return
    if key is None or fence is None:
        raise Usage("give a key and its --fence, or --all")
    with open_service() as service:
        locks.release(service, key, fence, agent, scope)
    emit({"key": key, "agent": agent, "fence": fence, "released": True})
    say(f"{key} released")


add_operations(app, locks.listing, locks.show, locks.break_)


@app.command(cls="typer_program:RunCommand")
def run(
    context: CommandContext,
    keys: Annotated[list[str], Argument("KEY... -- CMD [ARG...]", "What to lock; the command to run stands after --.")],
    agent: Annotated[
        str | None,
        Option(
            "--agent",
            "NAME",
            "The agent that you act for. Default: $HOCKET_AGENT, else this process.",
            envvar="HOCKET_AGENT",
            callback=checked_agent,
        ),
    ] = None,
    lease: Lease = None,
    ttl: OldLease = None,
    shared: Shared = False,
    wait: Wait = None,
    scope: Scope = "",
) -> None:
    """Hold a lock while a command runs. The command gets the fence as HOCKET_FENCE, and its exit code becomes this
    one's. The lock is renewed meanwhile and released at the end. If this process is killed, the command is killed with
    it and the lock is released. If the lock is lost, the command is stopped and the exit code is 3.

    \b
      hocket lock run file:src/lib.rs --wait 1m -- ./edit src/lib.rs
      hocket lock run 'file:src/**' --shared -- cargo test
    """
    import typer

    from hocket.cli.lock_run import run_locked
    from hocket.cli.typer_program import COMMAND

    options: LockOptions = {"ttl": lease or ttl, "shared": shared, "wait": wait or 0, "scope": scope}
    raise typer.Exit(run_locked(keys, context.meta[COMMAND], agent, options))
