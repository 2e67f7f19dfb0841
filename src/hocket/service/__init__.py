"""What every face asks for: queries and commands with typed answers. The command line, and later the HTTP API, the page
and the MCP server, stand on these and read no store themselves. A module has one group of them, as functions over a
`Service`.
"""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from hocket.errors import NotAuthorised
from hocket.kernel.ids import node_text
from hocket.node.runtime import Runtime
from hocket.store import Session

if TYPE_CHECKING:
    from hocket.node.node import SyncNode

T = TypeVar("T")


class Principal(msgspec.Struct, frozen=True):
    """Who asks: a node, and the agent on it that speaks for itself, if one does."""

    node: int
    agent: str | None = None


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """Part of a list. `next` is the key to ask for the page after it with; None at the end."""

    items: list[T]
    next: str | None


class ServiceAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a query or a command answers; its fields in JSON are those that programs may rely on."""


class Service:
    """One node as one principal may use it. It blocks; it is safe to use from several threads."""

    def __init__(self, runtime: Runtime, principal: Principal | None = None) -> None:
        self.runtime = runtime
        self.principal = principal or Principal(runtime.log.node)

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.runtime.close()

    @property
    def node(self) -> "SyncNode":
        """The node for what waits or asks other nodes."""
        from hocket.node.node import SyncNode

        return SyncNode(self.runtime)

    def read(self) -> AbstractContextManager[Session]:
        """A view in which every op that is on the log is in the projections too."""
        return self.runtime.read()

    def check_writer(self) -> None:
        """Every command begins with this. It signs with this node's key, so a principal of another node may give
        none.
        """
        if self.principal.node != self.runtime.log.node:
            asker = node_text(self.principal.node)
            raise NotAuthorised(f"node {asker} cannot write as this node; it writes with its own key and syncs")
