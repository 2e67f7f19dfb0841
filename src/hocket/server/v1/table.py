"""Every route of the API. A new group is a module with its routes, and a line here."""

from hocket.server.v1 import inbox, locks, nodes, rows
from hocket.server.v1.routes import ApiRoute

ROUTES: tuple[ApiRoute, ...] = (*locks.ROUTES, *inbox.ROUTES, *rows.ROUTES, *nodes.ROUTES)
