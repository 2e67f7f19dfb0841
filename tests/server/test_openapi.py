"""The description of the API against the API: schemathesis makes good and bad requests from it, sends them to a real
server over a real socket, and compares the answers with what the description says about them.
"""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import msgspec
import pytest
import schemathesis
from hypothesis import settings
from schemathesis import Case
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from hocket.api import Service, programs
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.server import api
from hocket.server.description import describe
from hocket.server.routes import ROUTES
from hocket.server.running import Server
from hocket.server.streams import LINES
from tests.effort import IS_SOAK
from tests.server.served import PATIENCE_S, Served

DESCRIPTION = describe(ROUTES)
schema = schemathesis.openapi.from_dict(DESCRIPTION)
# Every bound of every field: each process that collects tests would make all of these requests first.
schema.config.phases.coverage.enabled = IS_SOAK


@schemathesis.serializer(LINES)
def lines(context: Any, value: Any) -> bytes:
    """One line, of which each stands for itself: a bad one is answered in its own line, and not with a status."""
    return value.encode(errors="replace") if isinstance(value, str) else msgspec.json.encode(value)


class Target(NamedTuple):
    address: str
    token: str


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server of this process without limits on how often it is asked."""
    with (
        Runtime.init(tmp_path_factory.mktemp("tested") / "home", name="box") as runtime,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(api, "STRANGERS_BURST", 1e9)
        patch.setattr(api, "BURST", 1e9)
        started: Future[str] = Future()
        over = threading.Event()
        token = programs.create(Service(runtime), "tester", ["all"]).token

        async def serve() -> None:
            node = Node(runtime)
            served = api.Api(node)
            server = Server(node.services().gate(), api=served)
            await server.start()
            started.set_result(server.address)
            await asyncio.to_thread(over.wait)
            await server.stop()
            served.close()
            await node.finish()

        serving = threading.Thread(target=asyncio.run, args=(serve(),))
        serving.start()
        try:
            yield Target(started.result(PATIENCE_S), token)
        finally:
            over.set()
            serving.join()


# Some rules have no place in a schema, such as which characters can be printed; what breaks them is refused with 400.
UNCHECKED = [positive_data_acceptance]


# Each run makes these requests, and the soak others. The stream of events never ends.
@pytest.mark.slow
@schema.exclude(path="/v1/events").parametrize()
@settings(max_examples=max(1, settings.default.max_examples // 3), derandomize=not IS_SOAK)
def test_the_api_does_what_its_description_says(case: Case, target: Target):
    headers = {"Authorization": f"Bearer {target.token}"}
    # A query has texts only: a list of one text is sent as that text, and an object as a parameter for each member. So
    # what was made to be bad may be good.
    is_flattened = any(isinstance(value, list | dict) for value in (case.query or {}).values())
    unchecked = [*UNCHECKED, negative_data_rejection] if is_flattened or case.media_type == LINES else UNCHECKED
    case.call_and_validate(base_url=target.address, headers=headers, excluded_checks=unchecked, timeout=PATIENCE_S)


def test_the_server_serves_this_description_without_a_token(served: Served):
    answer = served.ask("GET", "/v1/openapi.json")
    assert answer.status == 200 and answer.json == DESCRIPTION and answer.json["openapi"] == "3.1.0"


def test_the_description_has_every_route_and_what_each_needs():
    described = {
        (method.upper(), path): operation
        for path, operations in DESCRIPTION["paths"].items()
        for method, operation in operations.items()
    }
    assert described.keys() == {(route.method, route.path) for route in ROUTES}
    names = [each["operationId"] for each in described.values()]
    assert len(set(names)) == len(names)
    for route in ROUTES:
        operation = described[route.method, route.path]
        assert f"`{route.need}`" in operation["description"] and operation["summary"].endswith(".")
