"""`hocket promise`: promises help to an agent that has asked for it."""

from typing import Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.options import Agent
from hocket.cli.output import emit, say
from hocket.cli.settings import open_service

app = new_app()


@app.command()
def promise(
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The request for help: its id, or its beginning.")],
    beats: Annotated[int, typer.Option("--beats", metavar="N", help="Help will come within so many beats.")],
    fail_after: Annotated[
        int | None,
        typer.Option("--fail-after", metavar="N", help="The thread closes after so many beats. Default: twice that."),
    ] = None,
    confidence: Annotated[
        float, typer.Option("--confidence", metavar="P", help="How sure you are, from 0 to 1.")
    ] = 1.0,
    on_fail: Annotated[
        str, typer.Option("--on-fail", metavar="NAME", help="What the requester does if no help comes.")
    ] = "fallback",
    agent: Agent = None,
) -> None:
    """Promise help to the agent that has sent a request of the type help. The help itself is a reply to the request.

    The requester waits until the promise fails, or until its own budget is spent. Help in time counts as kept, help
    until the thread closes as late; otherwise the promise is broken.

    \b
      hocket inbox --agent editor --claim 1
      hocket promise 01JC8M… --beats 2 --fail-after 4 --confidence 0.8 --agent editor
      hocket send writer@gpu-box 'here it is' --reply-to 01JC8M… --agent editor
    """
    from hocket.service.promises import send_promise

    with open_service() as service:
        shown = send_promise(service, thread, beats, fail_after, confidence, on_fail, agent or "")
    emit(shown)
    say(shown.id)
