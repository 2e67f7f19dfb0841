"""How a face with requests of another form does operations: with the checks and errors of a request over HTTP."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from hocket.api import Program
from hocket.errors import NotAuthorised, Usage
from hocket.kernel.decoding import convert
from hocket.kernel.ids import node_text
from hocket.mesh.wire import Request
from hocket.node.node import Node
from hocket.server.api import Api
from hocket.server.routes import ROUTES_BY_NAME, ApiCall, ApiRoute


def check_origin(request: Request) -> None:
    """A page of another site may not use this server, whatever token it has. Raises NotAuthorised."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise NotAuthorised(f"this server answers no page of {origin}")


class ProgramCaller:
    """A program, for the time of a request."""

    def __init__(self, api: Api, node: Node, program: Program) -> None:
        self.api, self.node, self.program = api, node, program
        self.call: ApiCall = api.call(program)
        self.service = self.call.service

    @property
    def agent(self) -> str:
        return self.service.agent(None)

    @property
    def address(self) -> str:
        """Where messages to the agent go."""
        return f"{self.agent}@{node_text(self.node.log.node)}"

    def may(self, resource: str, action: str) -> bool:
        """Whether it may do this to something."""
        return self.program.may_some(resource, action)

    async def do(self, operation: str, /, **fields: Any) -> Any:
        """Does an operation of the API. A field that is None is left out."""
        route = ROUTES_BY_NAME[operation]
        given = {name: value for name, value in fields.items() if value is not None}
        return await self.api.perform(route, self.call, _arguments(route, given))


def _arguments(route: ApiRoute, fields: Mapping[str, Any]) -> dict[str, Any]:
    rest, found = dict(fields), dict[str, Any]()
    for name in route.parameters:
        try:
            found[name] = convert(rest.pop(name), route.parameter(name))
        except (msgspec.ValidationError, ValueError):
            raise Usage(f"{fields[name]!r} is no {name}; give the whole id, as answers have it") from None
    try:
        for place, struct in (("query", route.query), ("body", route.body)):
            if struct is not None:
                found[place] = convert(rest, struct)
    except (msgspec.ValidationError, ValueError) as error:
        raise Usage(f"the arguments are wrong: {str(error)[:1].lower()}{str(error)[1:]}") from None
    return found
