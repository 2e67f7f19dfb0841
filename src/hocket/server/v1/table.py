"""Every route of the API."""

from hocket.server.v1 import nodes
from hocket.server.v1.routes import ApiRoute

ROUTES: tuple[ApiRoute, ...] = nodes.ROUTES
