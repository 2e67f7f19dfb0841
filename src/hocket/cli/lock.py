"""`hocket lock`: locks with fences, for agents that share files. `run` holds a lock while a command runs."""

from typing import TYPE_CHECKING, Annotated

from hocket.cli.declarations import Argument, CommandContext, Option, new_app
from hocket.cli.job import moment
from hocket.cli.options import Agent, checked_agent, seconds
from hocket.cli.output import emit, say, table
from hocket.cli.settings import HomeOption, JsonOption, open_service
from hocket.cli.tables import Row
from hocket.errors import Usage

if TYPE_CHECKING:
    from hocket.coordination.locks import Length
    from hocket.node.locks import LockOptions
    from hocket.service import Service

app = new_app()

Key = Annotated[str, Argument(metavar="KEY", help="What is locked, like file:src/lib.rs.")]
Keys = Annotated[
    list[str],
    Argument(metavar="KEY...", help="What to lock, like file:src/lib.rs or file:src/**; all keys at once."),
]
Lease = Annotated[
    str | None,
    Option(
        "--lease",
        metavar="DURATION",
        help="How long it lasts unless renewed, or 4b in beats; default 30s for file:, else 5m.",
    ),
]
# The earlier name of --lease.
OldLease = Annotated[str | None, Option("--ttl", hidden=True)]
Shared = Annotated[bool, Option("--shared", help="Hold it together with other shared holders.")]
Wait = Annotated[str | None, Option("--wait", metavar="DURATION", help="How long to wait for it; default: not at all.")]
Scope = Annotated[
    str,
    Option("--scope", metavar="REPO", help="What the keys belong to, such as a repository.", show_default=False),
]
Fence = Annotated[int, Option("--fence", metavar="N", help="The fence that `lock acquire` gave.")]


@app.callback()
def lock_group(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Lock files and other things that several agents use. Every lock has a fence, a number that rises with each
    holder: pass it on to what you write, so that a late write of an earlier holder can be refused.

    \b
      hocket lock run file:src/lib.rs -- ./edit src/lib.rs
      hocket lock acquire file:src/** --agent editor --wait 10s
      hocket lock list
    """


@app.command()
def acquire(
    keys: Keys,
    agent: Agent = None,
    lease: Lease = None,
    ttl: OldLease = None,
    shared: Shared = False,
    wait: Wait = None,
    scope: Scope = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Acquire a lock, and print its fence. If another agent holds it, the exit code is 3 and the error says who, since
    when and until when.

    In a key `*` stands for any text without a slash and `**` for any text. Two keys conflict if they overlap.

    \b
      hocket lock acquire file:src/lib.rs --agent editor --lease 30s
      hocket lock acquire file:src/lib.rs --agent editor --lease 4b
      fence=$(hocket lock acquire build --agent ci --wait 1m)
    """
    from hocket.coordination.inbox import default_agent
    from hocket.service import locks

    with open_service() as service:
        shown = locks.acquire(
            service,
            keys,
            agent or default_agent(),
            _length(service, lease or ttl),
            shared=shared,
            wait_ms=_ms(wait, "wait") or 0,
            scope=scope,
        )
    emit(shown)
    say(shown.fence)


@app.command()
def renew(
    key: Key,
    fence: Fence,
    agent: Agent = None,
    lease: Lease = None,
    ttl: OldLease = None,
    scope: Scope = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a lock for longer, together with everything that was acquired with it.

    \b
      hocket lock renew file:src/lib.rs --fence 7 --agent editor --lease 1m
    """
    from hocket.coordination.inbox import default_agent
    from hocket.service import locks

    with open_service() as service:
        shown = locks.renew(service, key, agent or default_agent(), fence, _length(service, lease or ttl), scope=scope)
    emit(shown)
    say(f"{key} is yours until {moment(shown.expires_ms)}")


@app.command()
def release(
    key: Annotated[
        str | None, Argument(metavar="KEY", help="What is locked, like file:src/lib.rs.", show_default=False)
    ] = None,
    fence: Annotated[int | None, Option("--fence", metavar="N", help="The fence that `lock acquire` gave.")] = None,
    everything: Annotated[bool, Option("--all", help="All locks that the agent holds on this node.")] = False,
    agent: Agent = None,
    scope: Scope = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Release a lock, together with everything that was acquired with it, or all locks of an agent. --all releases the
    locks of every scope unless --scope names one.

    \b
      hocket lock release file:src/lib.rs --fence 7 --agent editor
      hocket lock release --all --agent editor
    """
    from hocket.coordination.inbox import default_agent
    from hocket.service import locks

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
        locks.release(service, key, agent, fence, scope=scope)
    emit({"key": key, "agent": agent, "fence": fence, "released": True})
    say(f"{key} released")


@app.command("list")
def list_locks(
    scope: Annotated[
        str | None, Option("--scope", metavar="REPO", help="Only the locks of this scope.", show_default=False)
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the locks that are held now.

    \b
      hocket lock list
    """
    from hocket.service import locks

    with open_service() as service:
        shown = locks.listing(service, scope=scope)
    emit(shown)
    table(
        ("key", "scope", "mode", "agent", "node", "fence", "since", "until"),
        [
            (
                ", ".join(each.keys),
                each.scope,
                each.mode,
                each.agent,
                each.holder,
                each.fence,
                moment(each.since_ms),
                moment(each.expires_ms),
            )
            for each in shown
        ],
        "no locks",
    )


@app.command()
def show(key: Key, scope: Scope = "", home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show who holds a key, or keys that overlap it, and who waits for it, in order.

    \b
      hocket lock show file:src/lib.rs
    """
    from hocket.service import locks

    with open_service() as service:
        shown = locks.show(service, key, scope=scope)
    emit(shown)
    rows: list[Row] = [
        ("held", ", ".join(each.keys), each.mode, each.agent, each.holder, each.fence, moment(each.expires_ms))
        for each in shown.holders
    ]
    rows += [
        ("waits", ", ".join(each.keys), each.mode, each.agent, each.node_name or each.node, "", moment(each.until_ms))
        for each in shown.waiting
    ]
    table(("", "key", "mode", "agent", "node", "fence", "until"), rows, "free")


@app.command("break")
def break_lock(
    key: Key,
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why; it is on the log.")],
    scope: Scope = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a lock away from its holder. The owner's nodes may do this, others with a grant like
    `--may lock:break:file:`.

    \b
      hocket lock break file:src/lib.rs --reason "the agent hangs"
    """
    from hocket.service import locks

    with open_service() as service:
        shown = locks.break_(service, key, reason, scope=scope)
    emit(shown)
    for each in shown:
        say(f"{', '.join(each.keys)} taken from {each.agent} on {each.holder} (fence {each.fence})")


@app.command(cls="lock_command:RunCommand")
def run(
    context: CommandContext,
    keys: Annotated[
        list[str],
        Argument(metavar="KEY... -- CMD [ARG...]", help="What to lock; the command to run stands after --."),
    ],
    agent: Annotated[
        str | None,
        Option(
            "--agent",
            metavar="NAME",
            envvar="HOCKET_AGENT",
            callback=checked_agent,
            help="The agent that you act for. Default: $HOCKET_AGENT, else this process.",
        ),
    ] = None,
    lease: Lease = None,
    ttl: OldLease = None,
    shared: Shared = False,
    wait: Wait = None,
    scope: Scope = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold a lock while a command runs. The command gets the fence as HOCKET_FENCE, and its exit code becomes this
    one's. The lock is renewed meanwhile and released at the end. If this process is killed, the command is killed with
    it and the lock is released. If the lock is lost, the command is stopped and the exit code is 3.

    \b
      hocket lock run file:src/lib.rs --wait 1m -- ./edit src/lib.rs
      hocket lock run 'file:src/**' --shared -- cargo test
    """
    import typer

    from hocket.cli.lock_command import COMMAND
    from hocket.cli.lock_run import run_locked

    options: LockOptions = {"ttl": lease or ttl, "shared": shared, "wait": wait or 0, "scope": scope}
    raise typer.Exit(run_locked(keys, context.meta[COMMAND], agent, options))


def _ms(text: str | None, name: str) -> int | None:
    given = seconds(text, name)
    return None if given is None else round(given * 1000)


def _length(service: "Service", lease: str | None) -> "Length | None":
    from hocket.node.worker_tempo import hold_length

    try:
        return None if lease is None else hold_length(service.runtime, lease)
    except ValueError as error:
        raise Usage(f"bad lease: {error}") from None
