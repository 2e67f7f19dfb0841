"""The routes about nodes."""

from typing import Annotated

import msgspec

from hocket.server.v1.routes import PAGE_DEFAULT, After, ApiCall, ApiRoute, Limit, RouteNeed, page_of
from hocket.service import ListPage, nodes
from hocket.service.nodes import NodeShown

NodeText = Annotated[str, msgspec.Meta(min_length=1, max_length=64, description="A node's name or id, or `here`.")]


class NodesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Limit] = PAGE_DEFAULT
    after: Annotated[str, After] | None = None


def list_nodes(call: ApiCall, query: NodesQuery) -> ListPage[NodeShown]:
    """List the nodes of the mesh, by id, and what each may do."""
    return page_of(nodes.listing(call.service), lambda each: each.node, query.limit, query.after)


def show_node(call: ApiCall, node: NodeText) -> NodeShown:
    """Show one node."""
    return nodes.find(call.service, node)


READ = RouteNeed("Mesh", "Read")

ROUTES = (
    ApiRoute("GET", "/v1/nodes", list_nodes, READ),
    ApiRoute("GET", "/v1/nodes/{node}", show_node, READ),
)
