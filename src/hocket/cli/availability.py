"""`hocket drain`, `hocket quarantine` and `hocket resume`: whether a node takes new work."""

from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.nodes import NodeArgument
from hocket.cli.output import emit, say
from hocket.cli.settings import HomeOption, JsonOption, open_service
from hocket.kernel.plurals import counted

if TYPE_CHECKING:
    from hocket.service.nodes import AvailabilitySet

drain_app, quarantine_app, resume_app = new_app(), new_app(), new_app()

Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason that others see.")]


@drain_app.command()
def drain(node: NodeArgument, reason: Reason = "", home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Let a node finish the jobs that it runs and take no new ones, until `hocket resume`. The owner may drain every
    node, and each node itself. A coordinator that drains goes on deciding claims.

    \b
      hocket drain gpu-box --reason "new disk"
      hocket drain here
    """
    from hocket.service import nodes

    with open_service() as service:
        done = nodes.drain(service, node, reason)
        service.wrote()
    emit(done)
    left = f"it still runs {counted(done.running, 'job')}" if done.running else "it runs none"
    _say(done, f"{done.called} {'drains' if done.changed else 'drains already'}: it takes no new jobs; {left}")


@quarantine_app.command()
def quarantine(node: NodeArgument, reason: Reason = "", home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Take all work from a node: it returns the jobs that it runs and gets no new ones, until `hocket resume`. If it
    does not hear of it, its leases end and are not renewed; its results no longer count. Only the owner may.

    \b
      hocket quarantine gpu-box --reason "wrong results"
    """
    from hocket.service import nodes

    with open_service() as service:
        done = nodes.quarantine(service, node, reason)
        service.wrote()
    emit(done)
    left = f"; it returns {counted(done.running, 'job')} to the queue" if done.running else ""
    word = "is quarantined" if done.changed else "is quarantined already"
    _say(done, f"{done.called} {word}: it gets no jobs{left}")


@resume_app.command()
def resume(node: NodeArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Let a node take new jobs again, after `hocket drain` or `hocket quarantine`. A node that another one has drained
    or quarantined cannot resume itself, unless it is the owner's.

    \b
      hocket resume gpu-box
    """
    from hocket.service import nodes

    with open_service() as service:
        done = nodes.resume(service, node)
        service.wrote()
    emit(done)
    say(f"{done.called} takes new jobs{' again' if done.changed else '; it was not drained'}")


def _say(done: "AvailabilitySet", sentence: str) -> None:
    say(sentence)
    if done.is_coordinator:
        say(
            f"{done.called} is the coordinator: it goes on deciding claims of other nodes;"
            " `hocket coordinator NODE` designates another"
        )
