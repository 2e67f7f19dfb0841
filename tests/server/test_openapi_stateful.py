"""Histories of requests over HTTP: schemathesis follows the links of the description, so that what one request has made
is what the next one takes, and compares every answer with the description. And the description itself: whether others
can read it, and whether its examples are what it says.
"""

import json
from contextlib import suppress
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis import Case, Response
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from hocket.kernel.ids import EXACT_MAX
from hocket.server.description import BYTES, describe
from hocket.server.routes import ROUTES
from tests.effort import IS_SOAK
from tests.server.served import PATIENCE_S
from tests.server.test_openapi import Target, target

__all__ = ["target"]

DESCRIPTION = describe(ROUTES)
# The stream of events never ends, and that of a job not before its job.
NEVER_ENDING = ["/v1/events", "/v1/jobs/{job}/parts", "/v1/jobs/{job}/logs"]
# Nothing in a history wakes a request that waits.
WAIT_MS_MAX = 20

OPERATIONS = {
    (method.upper(), path): operation
    for path, operations in DESCRIPTION["paths"].items()
    for method, operation in operations.items()
}
LINKS = [
    (each, name, link)
    for each, operation in OPERATIONS.items()
    for response in operation["responses"].values()
    for name, link in response.get("links", {}).items()
]


@pytest.mark.slow
@pytest.mark.timeout(3600 if IS_SOAK else 280)
def test_no_history_of_requests_breaks_the_description(target: Target):
    linked = json.loads(json.dumps(DESCRIPTION).replace('"x-request-body"', '"requestBody"'))
    schema = schemathesis.openapi.from_dict(linked).exclude(path=NEVER_ENDING)
    followed: set[str] = set()

    class History(schema.as_state_machine()):  # type: ignore[misc]
        def before_call(self, case: Case) -> None:
            for values in (case.query, case.body):
                if isinstance(values, dict) and isinstance(wait := values.get("wait_ms"), int) and wait > WAIT_MS_MAX:
                    values["wait_ms"] = WAIT_MS_MAX

        def get_call_kwargs(self, case: Case) -> dict[str, Any]:
            headers = {"Authorization": f"Bearer {target.token}"}
            return {"base_url": target.address, "headers": headers, "timeout": PATIENCE_S}

        def validate_response(self, response: Response, case: Case, **options: Any) -> None:
            if response.status_code < 400:
                followed.add(case.operation.definition.raw["operationId"])
            # What was made to be bad may be good in a query, which has texts only.
            unchecked = [positive_data_acceptance, negative_data_rejection]
            case.validate_response(response, excluded_checks=unchecked)

    for _ in range(3):
        # A server that goes on may answer two equal requests differently. Hypothesis notices, and gives up.
        with suppress(FlakyStrategyDefinition):
            History.run(
                settings=settings(
                    max_examples=2_000 if IS_SOAK else 25,
                    stateful_step_count=12 if IS_SOAK else 6,
                    derandomize=not IS_SOAK,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                )
            )
            break
    # The links lead somewhere: without them an id of a job is never hit.
    assert len(followed) > 10, followed


@pytest.mark.slow
def test_another_reader_takes_the_description_for_openapi():
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(json.loads(json.dumps(DESCRIPTION)))


def test_every_operation_has_examples_that_are_what_it_says():
    for (method, path), operation in OPERATIONS.items():
        places = [each for each in operation["parameters"] if each["required"]]
        places += operation.get("requestBody", {}).get("content", {}).values()
        for status, response in operation["responses"].items():
            places += response.get("content", {}).values() if status.startswith("2") else ()
        for place in places:
            if place["schema"] in ({"type": "string"}, BYTES) and "in" not in place:
                continue  # a text of lines or events, or any bytes
            read = jsonschema_rs.validator_for({**place["schema"], "components": DESCRIPTION["components"]})
            wrong = [each.message for each in read.iter_errors(place["example"])]
            assert not wrong, (method, path, place["example"], wrong)


def test_links_lead_from_what_makes_a_thing_to_what_takes_it():
    names = {operation["operationId"]: operation for operation in OPERATIONS.values()}
    for (method, path), name, link in LINKS:
        wanted = {each["name"] for each in names[name]["parameters"] if each["in"] == "path"}
        assert link["parameters"].keys() == wanted, (method, path, name)
    led = {(each, name) for (_, each), name, _ in LINKS}
    assert {("/v1/jobs", "cancel_job"), ("/v1/locks", "renew_lock"), ("/v1/inbox", "acknowledge_message")} <= led
    assert ("/v1/jobs/claim", "complete_job") in led
    renew = next(link for (_, path), name, link in LINKS if (path, name) == ("/v1/locks", "renew_lock"))
    assert renew["x-request-body"] == {"fence": "$response.body#/fence"}


def test_generators_of_clients_can_read_the_description():
    """What stopped openapi-generator and openapi-python-client, or gave their classes bad names."""
    assert [each for each in DESCRIPTION["components"]["schemas"] if not each.isidentifier()] == []

    def look(each: Any, place: str) -> None:
        if isinstance(each, dict):
            if each.get("type") == "array":
                assert "items" in each or "prefixItems" in each, place
            assert not isinstance(each.get("type"), list), place
            if "operationId" in each and "links" in place:
                assert isinstance(each.get("requestBody", ""), str), place
            for name, value in each.items():
                look(value, f"{place}/{name}")
        elif isinstance(each, list):
            for value in each:
                look(value, place)

    look(DESCRIPTION, "")


def test_patterns_are_those_of_ecmascript_and_no_number_is_beyond_what_json_keeps():
    text = json.dumps(DESCRIPTION)
    assert "\\\\A" not in text and "\\\\Z" not in text

    def look(each: Any) -> None:
        if isinstance(each, dict):
            for name in ("maximum", "minimum", "default"):
                if isinstance(number := each.get(name), int):
                    assert abs(number) <= EXACT_MAX, each
            for value in each.values():
                look(value)
        elif isinstance(each, list):
            for value in each:
                look(value)

    look(DESCRIPTION)
