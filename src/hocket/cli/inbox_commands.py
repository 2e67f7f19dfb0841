"""`hocket mail send`, `ask`, `question`, `reply`, `inbox`, `ack` and `nack`: messages between agents."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

from hocket.api import inbox as messages
from hocket.cli.declarations import Argument, Option
from hocket.cli.derived import draw
from hocket.cli.options import Agent, checked_agent, milliseconds
from hocket.cli.printing import emit, say
from hocket.cli.settings import open_service, spool_for
from hocket.errors import Conflict, StoreAway, Unreachable, Usage
from hocket.node.calls import id_of

MessageId = Annotated[str, Argument("ID", "The message's id, or its beginning.")]


def send(
    to: Annotated[str, Argument("TO", "An agent, agent@node, a group like team/, or all.")],
    body: Annotated[str, Argument("BODY|@FILE|-", "The text, a file, or - for standard input.")],
    type: Annotated[str, Option("--type", "TYPE", "What kind of message it is.")] = "",
    thread: Annotated[str | None, Option("--thread", "ID", "The first message of a thread.")] = None,
    reply_to: Annotated[str | None, Option("--reply-to", "ID", "The message it answers.")] = None,
    priority: Annotated[int, Option("--priority", "N", "Higher ones are delivered first.")] = 0,
    ttl: Annotated[str, Option("--ttl", "DURATION", "When it expires if nobody claims it.")] = "7d",
    attach: Annotated[list[Path] | None, Option("--attach", "FILE", "Send a file along; may be repeated.")] = None,
    agent: Agent = None,
) -> None:
    """Send a message to an agent. It is stored here at once, and delivered when the receiver's node can be reached.

    `editor` is an agent of that name on any node, `editor@gpu-box` the one on that node. A group ends with a slash:
    `team/` reaches every agent whose name begins with it. `all` reaches everybody. Messages of one thread are delivered
    in the order in which they were sent.

    \b
      hocket mail send editor 'please review src/lib.rs' --type review
      hocket mail send editor@gpu-box @notes.md --attach diff.patch --ttl 1d
      hocket mail send writer done --reply-to 01JC8M…
    """

    data, attachments = _body(body), [(path.name, path) for path in attach or ()]
    options: dict[str, Any] = {"type": type, "thread": thread, "reply_to": reply_to, "priority": priority}
    options |= {"attachments": attachments, "ttl_ms": milliseconds(ttl, "--ttl")}
    try:
        service = open_service()
    except StoreAway as error:
        shown = messages.keep(spool_for(error), error, to, data, agent=agent, **options)
    else:
        with service:
            shown = messages.send(service, to, data, agent=agent or "", **options)
            service.deliver()
    emit(shown)
    say(shown.id)


def ask(
    to: Annotated[str, Argument("TO", "An agent, agent@node, a group like team/, or all.")],
    body: Annotated[str, Argument("BODY|@FILE|-", "The text, a file, or - for standard input.")],
    type: Annotated[str, Option("--type", "TYPE", "What kind of message it is.")] = "",
    wait: Annotated[str, Option("--wait", "DURATION", "How long to wait for the reply.")] = "30s",
    agent: Agent = None,
) -> None:
    """Send a message, wait for the reply to it, and print that. If none comes in time, the exit code is 5.

    \b
      hocket mail ask editor 'may I merge?' --wait 2m
    """

    with open_service() as service:
        shown = messages.ask(service, to, _body(body), agent=agent, type=type, wait=milliseconds(wait, "--wait") / 1000)
    emit(shown)
    say(shown.body if shown.body is not None else shown.body_base64, lines=True)


def question(
    text: Annotated[str, Argument("TEXT", "What to ask.")],
    wait: Annotated[str, Option("--wait", "DURATION", "How long to wait for the answer.")] = "1h",
    number: Annotated[int, Option("--number", "N", "Tells questions of a job with the same text apart.")] = 1,
) -> None:
    """Ask who submitted the job whose command this runs in, and print the answer. Without one in time, the exit code is
    5. A command that runs again, because its worker died, gets the old answer.

    $HOCKET_JOB, which every command has, names the job. `hocket job answer` answers.

    \b
      hocket job question 'Publish version 7?' --wait 1d
    """
    job, fence = os.environ.get("HOCKET_JOB", ""), os.environ.get("HOCKET_FENCE", "")
    if not job or not fence.isdecimal():
        raise Usage("only a command that runs as a job can ask, and $HOCKET_JOB names no job; see `hocket run`")
    with open_service() as service:
        if service.runtime.brief(id_of(job))["fence"] != int(fence):
            raise Conflict(f"job {job} has another fence by now, so this command no longer holds it")
        try:
            answer = service.node.job(job).ask(text, milliseconds(wait, "--wait") / 1000, number)
        except TimeoutError as error:
            raise Unreachable(str(error)) from None
    emit({"answer": answer})
    say(answer, lines=True)


def reply(
    id: MessageId,
    body: Annotated[str, Argument("BODY|@FILE|-", "The text, a file, or - for standard input.")],
    agent: Agent = None,
) -> None:
    """Answer the sender of a message that you hold, and acknowledge the message.

    \b
      hocket mail inbox --agent editor --claim 1
      hocket mail reply 01JC8M… yes --agent editor
    """
    from hocket.families.inbox.requests import default_agent

    with open_service() as service:
        shown = messages.reply(service, id, _body(body), agent or default_agent())
    emit(shown)
    say(shown.id)


def inbox(
    agent: Annotated[
        str | None,
        Option(
            "--agent", "NAME", "Whose messages. Default: everybody's; for a claim as in send.", callback=checked_agent
        ),
    ] = None,
    claim: Annotated[int | None, Option("--claim", "N", "Claim up to N messages.")] = None,
    lease: Annotated[str, Option("--lease", "DURATION", "How long you hold them.")] = "1m",
    follow: Annotated[bool, Option("--follow", help="Wait for more messages, without end.")] = False,
    limit: Annotated[int, Option("--limit", "N", "How many to list.")] = 50,
) -> None:
    """List the messages that wait for an agent, or claim some. A claimed message is yours until its lease ends:
    acknowledge it with `hocket mail ack`, or return it with `hocket mail nack`. If you do neither, it is delivered
    again; after five tries it is dead.

    \b
      hocket mail inbox --agent editor
      hocket mail inbox --agent editor --claim 5 --lease 2m --json
      hocket mail inbox --agent editor --claim 1 --follow
    """
    from hocket.families.inbox.requests import default_agent

    if not 0 < limit <= messages.LIMIT_MAX:
        raise Usage(f"--limit must be 1 to {messages.LIMIT_MAX}, not {limit}")
    lease_ms = milliseconds(lease, "--lease")
    with open_service() as service:
        if follow:
            for each in messages.follow(service, agent or default_agent(), claim, lease_ms):
                emit(each)
                draw(messages.show_messages([each]))
                sys.stdout.flush()
        if claim is None:
            found = messages.listing(service, agent, limit).items
        else:
            found = messages.claim(service, agent or default_agent(), claim, lease_ms)
    emit(found)
    draw(messages.show_messages(found))


def ack(id: MessageId, agent: Agent = None) -> None:
    """Acknowledge a message that you hold: it is processed, and is not delivered again. Only its holder can do that,
    while the lease lasts; for anybody else the exit code is 3.

    \b
      hocket mail ack 01JC8M… --agent editor
    """

    with open_service() as service:
        found = messages.find(service, id)
        messages.ack(service, found, agent)
    emit({"id": found, "state": "acknowledged"})
    say(f"message {found} acknowledged")


def nack(
    id: MessageId,
    delay: Annotated[str, Option("--delay", "DURATION", "Deliver it again only after this.")] = "0s",
    reason: Annotated[str, Option("--reason", "TEXT", "Why you return it.")] = "",
    agent: Agent = None,
) -> None:
    """Return a message that you hold, so that it is delivered again. After its last try it is dead.

    \b
      hocket mail nack 01JC8M… --agent editor --delay 5m
    """
    delay_ms = milliseconds(delay, "--delay")
    with open_service() as service:
        found = messages.find(service, id)
        messages.nack(service, found, agent, delay_ms, reason)
        shown = messages.show(service, found)
    emit({"id": found, "state": shown.state})
    say(f"message {found} returned; it is {shown.state}")


def _body(text: str) -> bytes:
    from hocket.families.inbox.rules import BODY_BYTES_MAX

    if text == "-":
        return sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    if text.startswith("@"):
        try:
            with Path(text[1:]).open("rb") as file:
                return file.read(BODY_BYTES_MAX + 1)
        except OSError as error:
            raise Usage(f"cannot read the message from {text[1:]}: {error.strerror}") from None
    return text.encode(errors="surrogateescape")
