"""The queries and commands of a node, with typed answers. The command line, and later the HTTP API, the dashboard and
the MCP server, use these and never read the store themselves. Each module has one group, as functions on a `Service`.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from hocket.errors import NotAuthorised
from hocket.families.inbox.facts import OWNER
from hocket.kernel.capabilities import Grant
from hocket.kernel.ids import node_text
from hocket.kernel.texts import span
from hocket.mesh.names import names
from hocket.node.runtime import Runtime
from hocket.store import Session

if TYPE_CHECKING:
    from hocket.families.archived_views import ArchivedViews
    from hocket.families.artifacts import Fetch
    from hocket.node.delivery import Delivery
    from hocket.node.node import SyncNode

T = TypeVar("T")


# Stands in the name of a token that speaks as the agent before it. No token that a person names has one.
OF_AGENT = "~"


class Principal(msgspec.Struct, frozen=True):
    """Who asks: a node, and the agent on it, if one asks for itself."""

    node: int
    agent: str | None = None


class Program(NamedTuple):
    """A program that has shown its token, and what it may do now. One without an `agent` speaks for any agent."""

    name: str
    agent: str | None
    grants: tuple[Grant, ...]
    expires_ms: int | None = None
    token: str | None = None
    """The public id of its token, unless the operator has set that."""
    is_process: bool = False
    """Whether it is this process, and what it holds ends with the process."""

    def may(self, resource: str, action: str, words: tuple[str, ...] = (), scope: str | None = None) -> bool:
        return any(grant.admits(resource, action, words, scope) for grant in self.grants)

    def may_some(self, resource: str, action: str) -> bool:
        """Whether it may do this to something."""
        return any(grant.covers(resource, action) for grant in self.grants)

    def agent_named(self, name: str | None) -> str:
        """The agent for which a request of this program is done. Raises NotAuthorised if that is another's."""
        own = self.name if self.agent is None else self.agent
        if name is None or name == own or self.agent is None or name.startswith(f"{own}/"):
            return own if name is None else name
        raise NotAuthorised(f"this token speaks for the agent {own} and for {own}/…, not for {name!r}")


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """Part of a list. `next` is the key of the next page; None at the end."""

    items: list[T]
    next: str | None


class ServiceAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer of a query or a command. Programs may rely on its JSON fields."""

    def ensure(self) -> None:
        """Raises an error if what was asked has not been done as asked."""


class Service:
    """One node as one principal may use it. `warn` is called with a sentence if what was written could not be sent to
    other nodes. A process that is connected with other nodes itself gives its `node`. Calls block. Safe to use from
    several threads. Jobs that the log does not have are read from an `archive`, if one is named, or else from those
    that this node has written.
    """

    def __init__(
        self,
        runtime: Runtime,
        principal: Principal | None = None,
        warn: Callable[[str], None] = lambda sentence: None,
        node: "SyncNode | None" = None,
        program: Program | None = None,
        archive: str | None = None,
    ) -> None:
        self.runtime = runtime
        self.principal = principal or Principal(runtime.log.node)
        self._warn, self._connected, self._program = warn, node, program
        self._archive = archive
        self.undelivered: Callable[[], None] | None = None
        """What a face calls that cannot give the answer to who asked: an operation whose answer must not be lost sets
        it.
        """

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.end_delivery()
        if (replica := self.runtime.replica) is not None and (state := replica.state).error is not None:
            age = span(max(0, int(time.time() * 1000) - state.followed_ms))
            self._warn(f"this was read from the replica {state.path}, which is {age} old: {state.error}")
        self.runtime.close()

    def acting_as(self, principal: Principal, program: Program | None = None) -> "Service":
        """Returns a service of this node for another principal, which may be a program with a token."""
        return Service(self.runtime, principal, self._warn, self._connected, program)

    def agent(self, name: str | None, default: str | None = None) -> str:
        """The agent for which something is done: the one of this name, if the program that asks may speak for it;
        without a name the program's own; without a program the default, else $HOCKET_AGENT or this user.
        """
        if self._program is not None:
            return self._program.agent_named(name)
        if default is not None:
            return default if name is None else name
        from hocket.families.inbox.requests import check_agent, default_agent

        return default_agent() if name is None else check_agent(name)

    def own_agent(self, name: str | None, asked: str = "") -> str:
        """The agent in whose name something is decided, which no program does for another, whatever its token. If the
        owner is `asked`, a person at a shell or in a browser decides as the owner.
        """
        if name is None and asked == OWNER and (self._program is None or OF_AGENT in self._program.name):
            return OWNER
        if self._program is not None and name not in (None, own := self._program.agent_named(None)):
            raise NotAuthorised(f"this token decides for the agent {own}, not for {name!r}")
        return self.agent(name)

    @property
    def is_connected(self) -> bool:
        """Whether this process is connected with other nodes itself."""
        return self._connected is not None

    def may(self, resource: str, action: str, *words: str, scope: str | None = None) -> bool:
        """Whether the token of the program that asks grants this. The user of this home may do all that the node may,
        which the log checks.
        """
        return self._program is None or self._program.may(resource, action, words, scope)

    @property
    def is_process(self) -> bool:
        """Whether the program that asks is this process."""
        return self._program is not None and self._program.is_process

    @property
    def token(self) -> str | None:
        """The public id of the token with which a program asks."""
        return None if self._program is None else self._program.token

    def check(self, resource: str, action: str, *words: str, scope: str | None = None) -> None:
        """Raises NotAuthorised if the token of the program that asks does not grant this."""
        if self._program is not None and not self.may(resource, action, *words, scope=scope):
            about = f" for {', '.join(map(repr, words))}" if words else ""
            about += f" in the scope {scope!r}" if scope else ""
            grant = f"{resource.lower()}:{action.lower()}"
            raise NotAuthorised(
                f"the token {self._program.name} does not grant {grant}{about}, or this node may not do it"
            )

    def warn(self, sentence: str) -> None:
        """Tells who asks what was not done, beside the answer."""
        self._warn(sentence)

    def deliver(self) -> str | None:
        """Sends what was written to other nodes now. Returns, and warns, why it waits here; None if it does not."""
        why = self.runtime.kept or (self.delivery.send() if "delivery" in self.__dict__ else "")
        if why:
            self._warn(why)
        return why or None

    def end_delivery(self) -> None:
        """Waits until other nodes have what was written, or warns."""
        if "delivery" in self.__dict__:
            self.delivery.close()

    @cached_property
    def delivery(self) -> "Delivery":
        """Connects this process with other nodes while no other process of the node does."""
        from hocket.node.opening import delivery

        return delivery(self.runtime, self._warn)

    @cached_property
    def _archived(self) -> "ArchivedViews":
        from hocket.families.archived_views import ArchivedViews
        from hocket.node.home_store import log_in

        runtime = self.runtime
        return ArchivedViews(
            runtime.log, runtime.view, lambda store: log_in(store, runtime.home), self._warn, self._archive
        )

    def view_of(self, text: str) -> AbstractContextManager[Session]:
        """A view with the job or the artifact whose id is like this text, from an archive if the log has none. Programs
        over HTTP see the log alone: a search of an archive may take long.
        """
        if self._program is not None or not self._may_be_archived():
            return self.runtime.view()
        return self._archived.view(text)

    def _may_be_archived(self) -> bool:
        """Whether there is an archive to look into. Most homes have none, and load nothing for it."""
        if self._archive is not None:
            return True
        from hocket.log.archives.reached import reached_archives

        with self.runtime.store.read() as session:
            return bool(reached_archives(session))

    @property
    def fetch(self) -> "Fetch":
        """Fetches blobs from other nodes."""
        from hocket.node.local_node import fetch_for

        return fetch_for(self.runtime)

    @property
    def node(self) -> "SyncNode":
        """The node, for calls that wait or ask other nodes."""
        from hocket.node.node import SyncNode

        return self._connected or SyncNode(self.runtime, self.delivery)

    def wrote(self, to: int | None = None) -> None:
        """Sends what was written to other nodes, if there are any, and above all to node `to`. A node without peers is
        spared all that this takes, and a connected process sends it by itself.
        """
        if self._connected is not None or self.runtime.kept is not None:
            return
        with self.runtime.store.read() as session:
            has_peers = bool(session.peers())
        if has_peers:
            self.delivery.wrote(to)

    def refresh(self) -> None:
        """Fetches what other nodes have written and sends what waits here, in a second at most. If that is not
        possible, warns of what time the state of this node is. A node without peers, and a connected process, need not.
        """
        if self._connected is not None:
            return
        with self.runtime.store.read() as session:
            has_peers = bool(session.peers())
        if has_peers and (why := self.delivery.refresh()):
            heard_ms = self.delivery.heard_ms()
            ago = f"{span(max(0, int(time.time() * 1000) - heard_ms))} ago" if heard_ms else "before it first synced"
            self._warn(f"as of {ago}: {why}")

    def read(self) -> AbstractContextManager[Session]:
        """A view for lists and pages. A replica may answer."""
        return self.runtime.view()

    def names(self, session: Session | None = None) -> dict[str, str]:
        """The names of the mesh's nodes that have one, by their ids, as the session sees them, or as they are now."""
        if session is None:
            with self.read() as own:
                return self.names(own)
        called = names(self.runtime.log.permissions(session))
        return {node_text(node): name for node, name in called.items()}

    def check_writer(self) -> None:
        """Every command calls this first. A command signs with this node's key, so a principal of another node may not
        run one.
        """
        if self.principal.node != self.runtime.log.node:
            asker = node_text(self.principal.node)
            raise NotAuthorised(f"node {asker} cannot write as this node; let it write with its own key and sync")
