"""The operations on agents of other makers: name, list and remove them, and make a job of a call."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hocket.api import Service, ServiceAnswer
from hocket.api.jobs import JobBrief, brief
from hocket.api.operation import InShell, OperationGroup, operation
from hocket.api.views import Line, Pairs, View, table
from hocket.bus.hints import about
from hocket.errors import Conflict, NotFound, Usage
from hocket.extensions.agent_calls.a2a_client import A2aClient
from hocket.extensions.agent_calls.agent_file import (
    AGENTS_MAX,
    TOKEN_CHARS_MAX,
    URL_CHARS_MAX,
    ForeignAgent,
    check_agent,
    read_agents,
    write_agents,
)
from hocket.extensions.agent_calls.calling import KIND
from hocket.extensions.file_tasks import AGENTS
from hocket.kernel.decoding import decode_json

ForeignName = Annotated[str, Meta(min_length=1, max_length=63, description="The agent's name here."), InShell()]


class CalledAgent(ServiceAnswer, frozen=True):
    """`kind` is that of the jobs that the agent does."""

    name: str
    url: str
    has_token: bool
    kind: str


class CalledAgentAdded(CalledAgent, frozen=True):
    """`calls_itself` and `skills` are by its card."""

    calls_itself: str
    skills: list[str]


def _shown(agent: ForeignAgent) -> dict[str, Any]:
    return {"name": agent.name, "url": agent.url, "has_token": agent.token is not None, "kind": KIND + agent.name}


def _show_added(added: CalledAgentAdded) -> Iterator[View]:
    yield Pairs([("kind", added.kind), ("calls itself", added.calls_itself), ("skills", " ".join(added.skills))])


@operation("add_agent", "POST", command="a2a add", show=_show_added)
def add(
    service: Service,
    name: ForeignName,
    url: Annotated[
        str,
        Meta(min_length=1, max_length=URL_CHARS_MAX, description="Where the agent is, or its card."),
        InShell(metavar="URL"),
    ],
    *,
    token_file: Annotated[
        str, Meta(description="A file with the token for it, like /dev/stdin."), InShell(metavar="FILE")
    ]
    | None = None,
) -> CalledAgentAdded:
    """Name an agent that speaks A2A 1.0, so that workers of this home do jobs of the kind hocket.agent.NAME by it.

    The token stays in this home, and is sent to no other server.

    \b
      hocket a2a add translator https://agents.example.com --token-file token.txt
    """
    token = None if token_file is None else _token(token_file)
    agent, home = check_agent(ForeignAgent(name, url, token)), service.runtime.home.path
    interface = A2aClient(agent).interface()
    agents = read_agents(home)
    if name not in agents and len(agents) >= AGENTS_MAX:
        raise Conflict(f"this home has {AGENTS_MAX} agents, and no more fit")
    write_agents(home, agents | {name: agent})
    service.runtime.bus.publish(about(AGENTS))
    return CalledAgentAdded(**_shown(agent), calls_itself=interface.name, skills=list(interface.skills))


def _token(file: str) -> str:
    try:
        with Path(file).open(encoding="ascii") as content:
            token = content.read(TOKEN_CHARS_MAX + 1).strip()
    except (OSError, UnicodeError) as error:
        raise Usage(f"cannot read the token from {file}: {error}") from None
    if not token:
        raise Usage(f"{file} has no token")
    return token


_list = table(
    CalledAgent,
    "no agents",
    {"name": "name", "url": "url", "kind": "kind", "token": lambda each: "yes" if each.has_token else "no"},
)


@operation("list_foreign_agents", "GET", command="a2a list", show=_list)
def listing(service: Service) -> list[CalledAgent]:
    """List the agents that this home has named.

    \b
      hocket a2a list
    """
    return [CalledAgent(**_shown(each)) for each in read_agents(service.runtime.home.path).values()]


@operation("remove_agent", "POST", command="a2a remove")
def remove(service: Service, name: ForeignName) -> None:
    """Remove an agent and its token. Workers of this home do no more jobs by it.

    \b
      hocket a2a remove translator
    """
    home = service.runtime.home.path
    agents = read_agents(home)
    if name not in agents:
        raise NotFound(f"no agent {name!r}; `hocket a2a list` lists them")
    write_agents(home, {each: agent for each, agent in agents.items() if each != name})
    service.runtime.bus.publish(about(AGENTS))


@operation("call_agent", "POST", command="a2a call", show=lambda made: [Line(f"submitted {made.job_id}")])
def call(
    service: Service,
    name: ForeignName,
    text: Annotated[str, Meta(description="What to tell it."), InShell(metavar="TEXT", is_argument=True)] | None = None,
    *,
    data: Annotated[str, Meta(description="A JSON object to give it."), InShell(metavar="JSON")] | None = None,
    skill: Annotated[str, Meta(description="Which of its skills to use."), InShell(metavar="ID")] | None = None,
    context: Annotated[str, Meta(description="The conversation that it belongs to."), InShell(metavar="ID")]
    | None = None,
) -> JobBrief:
    """Submit a job that an agent does; its result is that of the agent's task. It is a job like every other: `hocket
    show` follows it, `hocket cancel` also cancels the task, and `hocket job answer` answers what the agent asks.

    \b
      hocket a2a call translator 'Good morning' --skill to-french
    """
    service.check_writer()
    members = {"text": text, "data": None if data is None else _object(data), "skill": skill, "context": context}
    payload = {name: value for name, value in members.items() if value is not None}
    if not payload.keys() & {"text", "data"}:
        raise Usage("say something to the agent: a text, or --data with a JSON object")
    return brief(service, service.node.submit(KIND + name, **payload).job_id)


def _object(data: str) -> dict[str, Any]:
    try:
        return decode_json(data.encode(), dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Usage(f"--data is a JSON object: {error}") from None


commands = OperationGroup(
    """Have agents of other makers do jobs, over the Agent2Agent protocol. `hocket mesh serve --a2a` serves such agents.

    \b
      hocket a2a add translator https://agents.example.com --token-file token.txt
      hocket a2a call translator 'Good morning' --skill to-french
      hocket a2a list
    """,
    *(add, listing, remove, call),
)
