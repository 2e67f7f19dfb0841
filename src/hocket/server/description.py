"""The description of the API in OpenAPI 3.1. It is made from the types by which the routes read requests and answer
them, so it cannot differ from what they do.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, get_args

import msgspec

from hocket.api.operation import Download
from hocket.api.programs import KEY_CHARS_MAX
from hocket.kernel import __version__
from hocket.mesh import wire
from hocket.server.examples import Examples
from hocket.server.links import add_links
from hocket.server.problems import PROBLEM, PROBLEMS, ApiError, Problem
from hocket.server.routes import ApiRoute
from hocket.server.streams import EVENTS, LINES, AnswerLine

_REF = "#/components/schemas/{name}"
# The errors of every route, and those of a route that takes a body.
_COMMON = frozenset({400, 401, 403, 404, 409, 429, 500, 503})
_OF_BODIES = frozenset({413, 415})
_OF_KEYS = frozenset({422})
_OF_STREAMS = frozenset({410})
_OF_DOWNLOADS = frozenset({416})
BYTES: dict[str, Any] = {"type": "string", "format": "binary"}

_RANGE_HEADERS = {
    "Range": "The bytes that are asked for, like bytes=1000-1999 or bytes=-500; several ranges get all.",
    "If-Range": "The tag of the content of which a part is there: if it has changed, the answer is all of it.",
    "If-None-Match": "The tag of the content that is there.",
}

Json = dict[str, Any]


def describe(routes: Sequence[ApiRoute], base_path: str = "") -> Json:
    unnamed = (None, _NONE, Download)
    types = {type for route in routes for type in (route.query, route.body, _item(route)) if type not in unnamed}
    types |= {route.errors[0] for route in routes if route.errors is not None}
    ordered = sorted(types, key=str)
    schemas, components = msgspec.json.schema_components([ApiError, *ordered], ref_template=_REF)
    of_type = dict(zip([ApiError, *ordered], schemas, strict=True))
    _mend(components)
    problems: dict[int, list[Problem]] = {}
    for each in PROBLEMS:
        problems.setdefault(each.status, []).append(each)
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, of_type, components)
    add_links(routes, paths, components)
    _add_examples(paths, Examples(components))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hocket",
            "version": __version__,
            "description": "Locks, messages, rows, nodes and jobs, for programs. Times are in milliseconds since 1970.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": base_path or "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "From `hocket token create`."}
            },
            "responses": {
                _response_name(status): _problem_response(status, of, of_type[ApiError])
                for status, of in sorted(problems.items())
            },
            "schemas": components,
        },
    }


_NONE = type(None)


def _mend(schema: Any) -> None:
    """Schemas have the regular expressions of ECMAScript, which has other signs for the beginning and the end, and
    generators want to be told that the items of a list are anything.
    """
    if isinstance(schema, dict):
        if schema.get("type") == "array" and "prefixItems" not in schema:
            schema.setdefault("items", {})
        if isinstance(pattern := schema.get("pattern"), str):
            schema["pattern"] = pattern.replace("\\A", "^").replace("\\Z", "$")
        for each in schema.values():
            _mend(each)
    elif isinstance(schema, list):
        for each in schema:
            _mend(each)


def _add_examples(paths: Mapping[str, Json], examples: Examples) -> None:
    for operation in (operation for operations in paths.values() for operation in operations.values()):
        for each in operation["parameters"]:
            if each["required"]:
                each["example"] = examples.of(each["schema"], each["name"], is_request=True)
        for content in operation.get("requestBody", {}).get("content", {}).values():
            if content["schema"] not in ({"type": "string"}, BYTES):
                content["example"] = examples.of(content["schema"], is_request=True)
        for status, response in operation["responses"].items():
            for content in response.get("content", {}).values() if status.startswith("2") else ():
                if content["schema"] not in ({"type": "string"}, BYTES):
                    content["example"] = examples.of(content["schema"])


def _operation(route: ApiRoute, of_type: Mapping[Any, Json], components: Mapping[str, Json]) -> Json:
    sentences = route.help
    need = f"The token needs the grant `{route.need}`."
    if route.need.is_any:
        need = f"Any token will do: the answer has what its grants, such as `{route.need}`, let it read."
    elif route.need.takes_prefix:
        need += " The grant may end with a prefix."
    parameters = [_parameter(name, "path", _inline(route.parameter(name)), True) for name in route.parameters]
    if route.query is not None:
        schema = components[of_type[route.query]["$ref"].rpartition("/")[2]]
        required = schema.get("required", ())
        parameters += [
            _parameter(name, "query", each, name in required) for name, each in schema.get("properties", {}).items()
        ]
    if route.creates:
        key = {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX, "pattern": "^[ -~]+$"}
        parameters.append(_parameter("Idempotency-Key", "header", key, False))
    if route.is_stream and route.key is not None:
        place = {"type": "string", "description": "The id of the last event that arrived. It counts before `after`."}
        parameters.append(_parameter("Last-Event-ID", "header", place, False))
    if route.is_download:
        for name, description in _RANGE_HEADERS.items():
            parameters.append(_parameter(name, "header", {"type": "string", "description": description}, False))
    has_body = route.body is not None or route.takes_lines or route.takes_upload
    errors = _COMMON | (_OF_BODIES if has_body else frozenset())
    errors |= _OF_DOWNLOADS if route.is_download else frozenset()
    errors |= _OF_KEYS if route.creates else frozenset()
    errors |= _OF_STREAMS if route.is_stream else frozenset()
    responses: Json = {str(route.status): _success(route, of_type)}
    if route.is_download:
        responses |= {
            "206": {"description": "Partial Content: the range.", "content": {wire.OCTETS: {"schema": BYTES}}},
            "304": {"description": "Not Modified: the content has the tag in If-None-Match."},
        }
    responses |= {str(status): _error_response(status, route, of_type) for status in sorted(errors)}
    described: Json = {
        "operationId": route.name,
        "summary": sentences.replace("\n", " ").partition(". ")[0].rstrip(".") + ".",
        "description": f"{sentences}\n\n{need}",
        "tags": [route.path.split("/")[2]],
        "parameters": parameters,
        "responses": responses,
    }
    if route.takes_lines:
        described["requestBody"] = {"required": True, "content": {LINES: {"schema": {"type": "string"}}}}
    if route.takes_upload:
        described["requestBody"] = {"required": True, "content": {wire.OCTETS: {"schema": BYTES}}}
    if route.body is not None:
        described["requestBody"] = {"required": True, "content": {wire.JSON: {"schema": of_type[route.body]}}}
    return described


def _item(route: ApiRoute) -> Any:
    """The type of the answer, or of one item of a stream."""
    if route.takes_lines:
        return AnswerLine[get_args(get_args(route.answer)[0])[0]]  # type: ignore[misc]
    return get_args(route.answer)[0] if route.is_stream else route.answer


def _problem_response(status: int, problems: Sequence[Problem], schema: Json) -> Json:
    words = " or ".join(f"`{each}`" for each in dict.fromkeys(each.error for each in problems))
    examples = {
        each.name: {"summary": each.title, "description": each.advice, "value": msgspec.to_builtins(each.answer("…"))}
        for each in problems
    }
    return {
        "description": f"{HTTPStatus(status).phrase}: `error` is {words}.",
        "content": {PROBLEM: {"schema": schema, "examples": examples}},
    }


def _error_response(status: int, route: ApiRoute, of_type: Mapping[Any, Json]) -> Json:
    if route.errors is None:
        return {"$ref": f"#/components/responses/{_response_name(status)}"}
    schema = of_type[route.errors[0]]
    return {"description": HTTPStatus(status).phrase, "content": {wire.JSON: {"schema": schema}}}


def _success(route: ApiRoute, of_type: Mapping[Any, Json]) -> Json:
    phrase = HTTPStatus(route.status).phrase
    if route.answer is _NONE:
        return {"description": phrase}
    if route.is_download:
        return {"description": f"{phrase}: the bytes.", "content": {wire.OCTETS: {"schema": BYTES}}}
    schema = of_type[_item(route)]
    if route.takes_lines:
        return {"description": f"{phrase}: a line for each line of the body.", "content": {LINES: {"schema": schema}}}
    if route.is_stream:
        content = {LINES: {"schema": schema}, EVENTS: {"schema": {"type": "string"}}}
        return {"description": f"{phrase}: an item a line, or as the data of an event.", "content": content}
    return {"description": phrase, "content": {wire.JSON: {"schema": schema}}}


def _parameter(name: str, place: str, schema: Json, is_required: bool) -> Json:
    schema = dict(schema)
    description = schema.pop("description", None)
    said = {} if description is None else {"description": description}
    return {"name": name, "in": place, "required": is_required, **said, "schema": schema}


def _inline(type: Any) -> Json:
    schema = msgspec.json.schema(type)
    _mend(schema)
    return schema


def _response_name(status: int) -> str:
    return HTTPStatus(status).phrase.replace(" ", "").replace("-", "")
