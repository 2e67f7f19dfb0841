"""Waits, beside every process that keeps the node up, until the home has webhooks and no other process sends to them.
Only then it loads what sends, which takes two MiB.
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

FILE = "webhooks.json"
# The family of the hint that a webhook was added or removed.
WEBHOOKS = "webhook"
# How often to look for changes without a hint, and after an error.
LOOK_S = 10.0
_TURN = "webhooks.turn"


def sending(node: "Node", emit: Emit) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        home = node.runtime.home
        with closing(node.listen(about(WEBHOOKS))) as changes:
            while True:
                turn = ProcessTurn.take(home.processes, _TURN) if (home.path / FILE).exists() else None
                if turn is not None:
                    with closing(turn):
                        await loaded("extensions.webhooks.sending:Sender")(node, emit).send(changes.wait)
                await changes.wait(LOOK_S)

    return run
