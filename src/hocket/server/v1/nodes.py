"""The routes about nodes and agents."""

from typing import Annotated

import msgspec

from hocket.coordination.presence import DOING_CHARS_MAX, EVERY_MS_DEFAULT, EVERY_MS_MAX, EVERY_MS_MIN
from hocket.kernel.availability import REASON_CHARS_MAX
from hocket.server.v1.routes import PAGE_DEFAULT, After, ApiCall, ApiRoute, Limit, RouteNeed, page_of
from hocket.service import ListPage, agents, nodes
from hocket.service.agents import AgentShown
from hocket.service.nodes import AvailabilitySet, LiveNode, NodeShown

NodeText = Annotated[str, msgspec.Meta(min_length=1, max_length=64, description="A node's name or id, or `here`.")]
Within = Annotated[int, msgspec.Meta(ge=1, le=2**53, description="Only those seen within this time, in milliseconds.")]


class NodesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Limit] = PAGE_DEFAULT
    after: Annotated[str, After] | None = None


class LiveQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    within_ms: Within | None = None
    limit: Annotated[int, Limit] = PAGE_DEFAULT
    after: Annotated[str, After] | None = None


class AvailabilityReason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, msgspec.Meta(max_length=REASON_CHARS_MAX)] = ""


class AgentBeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the agent does, and how often it promises to say so."""

    doing: Annotated[str, msgspec.Meta(max_length=DOING_CHARS_MAX)] = ""
    every_ms: Annotated[int, msgspec.Meta(ge=EVERY_MS_MIN, le=EVERY_MS_MAX)] = EVERY_MS_DEFAULT


def list_nodes(call: ApiCall, query: NodesQuery) -> ListPage[NodeShown]:
    """List the nodes of the mesh, by id, and what each may do."""
    return page_of(nodes.listing(call.service), lambda each: each.node, query.limit, query.after)


def list_live_nodes(call: ApiCall, query: LiveQuery) -> ListPage[LiveNode]:
    """List the nodes by how alive each is, with what its machine has."""
    return page_of(nodes.live(call.service, query.within_ms), lambda each: each.node, query.limit, query.after)


def show_node(call: ApiCall, node: NodeText) -> NodeShown:
    """Show one node."""
    return nodes.find(call.service, node)


def drain_node(call: ApiCall, node: NodeText, body: AvailabilityReason) -> AvailabilitySet:
    """Let a node finish the jobs that it holds and take no new ones."""
    return nodes.drain(call.service, node, body.reason)


def quarantine_node(call: ApiCall, node: NodeText, body: AvailabilityReason) -> AvailabilitySet:
    """Let a node return the jobs that it holds and take no new ones."""
    return nodes.quarantine(call.service, node, body.reason)


def resume_node(call: ApiCall, node: NodeText, body: AvailabilityReason) -> AvailabilitySet:
    """Let a node take new jobs again."""
    return nodes.resume(call.service, node, body.reason)


def list_agents(call: ApiCall, query: LiveQuery) -> ListPage[AgentShown]:
    """List the agents of all nodes: what each does, and when it was last seen. A token that may read all locks, or all
    messages, is also told who holds them.
    """
    found = agents.listing(
        call.service,
        query.within_ms,
        with_locks=call.program.may("Lock", "Read", ()),
        with_messages=call.program.may("Inbox", "Read", ()),
    )
    numbered = [(f"{each.node} {each.name} {index:06}", each) for index, each in enumerate(found)]
    page = page_of(numbered, lambda pair: pair[0], query.limit, query.after)
    return ListPage([each for _, each in page.items], page.next)


def beat(call: ApiCall, body: AgentBeat) -> AgentShown:
    """Say what the token's agent does. It is shown as dead when it does not say so again."""
    return agents.beat(call.service, call.agent(None), body.doing, body.every_ms)


READ = RouteNeed("Mesh", "Read")
WRITE = RouteNeed("Mesh", "Write")

ROUTES = (
    ApiRoute("GET", "/v1/nodes", list_nodes, READ),
    ApiRoute("GET", "/v1/nodes/live", list_live_nodes, READ),
    ApiRoute("GET", "/v1/nodes/{node}", show_node, READ),
    ApiRoute("POST", "/v1/nodes/{node}/drain", drain_node, WRITE),
    ApiRoute("POST", "/v1/nodes/{node}/quarantine", quarantine_node, WRITE),
    ApiRoute("POST", "/v1/nodes/{node}/resume", resume_node, WRITE),
    ApiRoute("GET", "/v1/agents", list_agents, READ),
    ApiRoute("POST", "/v1/agents", beat, READ),
)
