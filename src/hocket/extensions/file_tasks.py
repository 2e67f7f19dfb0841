"""What extensions do beside a node only if its home has their file: send to webhooks, call agents. One process of the
node at a time does it. Until there is a file, a worker loads nothing for it, which saves two MiB.
"""

from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import TYPE_CHECKING

from hocket.bus.hints import about
from hocket.events import Emit
from hocket.families.liveness import ProcessTurn
from hocket.kernel.extension import loaded

if TYPE_CHECKING:
    from hocket.node.node import Node

WEBHOOKS_FILE, AGENTS_FILE = "webhooks.json", "agents.json"
# The families of the hints that a webhook, or an agent, was added or removed.
WEBHOOKS, AGENTS = "webhook", "foreign_agent"
# How often to look for changes without a hint, and after an error.
LOOK_S = 10.0

Task = Callable[[], Awaitable[None]]
# Waits until something has changed, or so many seconds.
Changed = Callable[[float], Awaitable[object]]


def sending(node: "Node", emit: Emit) -> Task:
    return _while_there(node, emit, WEBHOOKS_FILE, WEBHOOKS, "extensions.webhooks.sending:Sender")


def calling(node: "Node", emit: Emit) -> Task:
    return _while_there(node, emit, AGENTS_FILE, AGENTS, "extensions.agent_calls.calling:AgentCalls")


def _while_there(node: "Node", emit: Emit, file: str, family: str, server: str) -> Task:
    async def run() -> None:
        home, name = node.runtime.home, f"{file.removesuffix('.json')}.turn"
        with closing(node.listen(about(family))) as changes:
            while True:
                turn = ProcessTurn.take(home.processes, name) if (home.path / file).exists() else None
                if turn is not None:
                    with closing(turn):
                        await loaded(server)(node, emit).serve(changes.wait)
                await changes.wait(LOOK_S)

    return run
