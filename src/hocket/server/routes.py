"""What a route of the API is: a method, a path with parameters, a function, and what a token needs for it. The types of
the function say what a request has in its path, query and body and what the answer is.
"""

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, unquote

import msgspec

from hocket.api import (
    ListPage,
    Program,
    Service,
    ServiceAnswer,
    agents,
    artifacts,
    claims,
    contents,
    inbox,
    job_lists,
    jobs,
    kinds,
    locks,
    nodes,
    ops,
    rights,
    rows,
    schedules,
)
from hocket.api.job_operations import job_answers, job_changes, job_erasure, job_logs, job_news, job_submits
from hocket.api.log_operations import author_checkpoints
from hocket.api.operation import (
    PAGE_DEFAULT,
    After,
    Download,
    JoinedMembers,
    Limit,
    Lines,
    Operation,
    TokenNeed,
    Upload,
    WholeBody,
    bounded_page,
    extension_operations,
    page_of,
)
from hocket.api.retention import keeping, pruning
from hocket.api.workers import claiming, ending
from hocket.errors import Usage
from hocket.kernel.decoding import convert, decode_json
from hocket.node.node import Node

PREFIX = "/v1/"
QUERY_FIELDS_MAX = 32
BODY_BYTES_MAX = 4 * 1024 * 1024

_PARAMETER = re.compile(r"\{(\w+)\}")

T = TypeVar("T")


class ApiCall(NamedTuple):
    """On whose behalf a function of the API works: `api` has the node and the agent, `program` showed its token. A
    function that may wait long is a coroutine, and uses the `node`.
    """

    service: Service
    program: Program
    node: Node


# The type of an answer that is an error, and how it is made from the status, the word and the sentence.
ErrorForm = tuple[type, Callable[[int, str, str], Any]]


class ApiRoute:
    """`creates` is for a POST that makes something new: it answers 201, and a program can repeat it under a key.
    `errors` is the form of its errors, if it is not that of the API, and `key` gives the id of an item of a stream.
    Requests that are `counted_apart` take no room from others.
    """

    def __init__(
        self,
        method: str,
        path: str,
        function: Callable[..., Any],
        need: TokenNeed,
        *,
        creates: bool = False,
        errors: ErrorForm | None = None,
        key: Callable[[Any], str] | None = None,
    ) -> None:
        self.method, self.path, self.function, self.need, self.creates = method, path, function, need, creates
        self.errors, self.key, self.counted_apart = errors, key, False
        self.name: str = function.__name__
        self.parameters: list[str] = _PARAMETER.findall(path)
        self.is_async = inspect.iscoroutinefunction(function)
        self._parts = path.split("/")

    @property
    def help(self) -> str:
        return (inspect.getdoc(self.function) or "").strip()

    @cached_property
    def _types(self) -> dict[str, Any]:
        return get_type_hints(self.function, include_extras=True)

    @property
    def query(self) -> Any | None:
        return self._types.get("query")

    @property
    def body(self) -> Any | None:
        return self._types.get("body")

    @property
    def answer(self) -> Any:
        return self._types["return"]

    @property
    def is_stream(self) -> bool:
        """Whether its answer is sent item by item."""
        return get_origin(self.answer) is AsyncIterator

    @property
    def takes_lines(self) -> bool:
        """Whether its body is a stream of JSON lines, and its answer, too: see `operation.Lines`."""
        return "lines" in self._types

    @property
    def takes_upload(self) -> bool:
        """Whether its body is any bytes: see `operation.Upload`."""
        return "upload" in self._types

    @property
    def is_download(self) -> bool:
        """Whether its answer is bytes and no JSON: see `operation.Download`."""
        return self.answer is Download

    def parameter(self, name: str) -> Any:
        return self._types[name]

    @property
    def status(self) -> int:
        return 204 if self.answer is type(None) else 201 if self.creates else 200

    @property
    def parts(self) -> list[str]:
        return self._parts

    def match(self, parts: Sequence[str]) -> dict[str, str] | None:
        """The raw values of the parameters in a path with as many parts; None if this is another path."""
        found: dict[str, str] = {}
        for part, ours in zip(parts, self._parts, strict=True):
            if ours.startswith("{"):
                if not part:
                    return None
                found[ours[1:-1]] = part
            elif part != ours:
                return None
        return found

    def arguments(self, raw: Mapping[str, str], query: str) -> dict[str, Any]:
        """The function's arguments from the path and the query."""
        found = {name: _converted({name: _decoded(value)}, name, self.parameter(name)) for name, value in raw.items()}
        values = _query_values(query)
        if self.query is not None:
            found["query"] = _read(lambda: convert(values, self.query, strict=False), "the query")
        elif values:
            raise Usage(f"unknown query parameter {next(iter(values))!r}; this path takes none")
        return found

    def asked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """All values of a request by their names, wherever they stood in it."""
        structs = [arguments[place] for place in ("query", "body") if place in arguments]
        fields = {name: value for each in structs for name, value in msgspec.structs.asdict(each).items()}
        return {**{name: arguments[name] for name in self.parameters}, **fields}

    def check_some(self, call: ApiCall) -> None:
        """Raises NotAuthorised if the program may do this to nothing. What a prefix and scopes are compared with is
        known later; without any grant no body is read.
        """
        need = self.need
        is_restricted = need.takes_prefix or need.scope is not None
        if not need.is_any and not (is_restricted and call.program.may_some(need.resource, need.action)):
            call.service.check(need.resource, need.action)

    def check(self, call: ApiCall, arguments: Mapping[str, Any]) -> None:
        """Raises NotAuthorised if the program may not do this with these arguments."""
        need = self.need
        if need.words is not None or need.scope is not None:
            asked = self.asked(arguments)
            words = () if need.words is None else need.words(call.service, asked)
            scope = None if need.scope is None else need.scope(asked)
            call.service.check(need.resource, need.action, *words, scope=scope)

    def read_body(self, content: bytes) -> Any:
        return _read(lambda: decode_json(content, self.body), "the body")


def route_of(operation: Operation[..., Any]) -> ApiRoute:
    """The route of an operation. What is not in its path is in the query of a GET, of a DELETE and beside an upload,
    and else in the body.
    """
    assert operation.need is not None
    own = set(_PARAMETER.findall(operation.path))
    takes_upload = any(each.kind is Upload for each in operation.parameters)
    place = "query" if takes_upload or operation.method in ("GET", "DELETE") else "body"
    fields = [
        (each.name, each.over_http) if each.is_required else (each.name, each.over_http, each.default)
        for each in operation.parameters
        if not (each.name in own or each.kind in (Lines, Upload) or each.note(WholeBody, JoinedMembers) is not None)
    ]
    joined = {each.name: each.kind for each in operation.parameters if each.note(JoinedMembers) is not None}
    for struct in joined.values():
        fields += [(each.encode_name, each.type, each.default) for each in msgspec.structs.fields(struct)]
    pages = operation.key is not None and not operation.is_stream
    if pages:
        fields += [("limit", Limit, PAGE_DEFAULT), ("after", After | None, None)]
    types = {each.name: each.over_http for each in operation.parameters if each.name in own}
    if takes_upload:
        types["upload"] = Upload
    whole = next((each for each in operation.parameters if each.note(WholeBody) is not None), None)
    if any(each.kind is Lines for each in operation.parameters):
        types["lines"] = Lines
    elif whole is not None:
        types["body"] = whole.kind
    elif fields or place == "body":
        name = operation.name.title().replace("_", "") + "Request"
        types[place] = msgspec.defstruct(name, fields, frozen=True, forbid_unknown_fields=True, kw_only=True)
    answer = operation.answer
    types["return"] = ListPage[get_args(answer)[0]] if pages else answer  # type: ignore[misc]

    def values(query: Any, body: Any) -> dict[str, Any]:
        if whole is not None:
            return {whole.name: body}
        given = query if body is None else body
        found = {} if given is None else msgspec.structs.asdict(given)
        for name, struct in joined.items():
            found[name] = struct(**{each: found.pop(each) for each in struct.__struct_fields__})
        return found

    def run(call: ApiCall, query: Any = None, body: Any = None, **arguments: Any) -> Any:
        asked = arguments | values(query, body)
        if operation.key is not None:
            limit, after = asked.pop("limit"), asked.pop("after")
            return page_of(operation.function(call.service, **asked), operation.key, limit, after)
        if get_origin(answer) is ListPage:
            limit, after = asked.pop("limit"), asked.pop("after")
            fetch = lambda count, since: operation.function(call.service, **asked, limit=count, after=since)  # noqa: E731
            return bounded_page(fetch, limit, after, operation.step)
        return _ensured(operation.function(call.service, **asked))

    async def wait(call: ApiCall, query: Any = None, body: Any = None, **arguments: Any) -> Any:
        asked = arguments | values(query, body)
        return _ensured(await operation.function(call.service, call.node, **asked))

    function = wait if operation.waits else run
    function.__name__, function.__doc__, function.__annotations__ = operation.name, operation.help, types
    key = operation.key if operation.is_stream else None
    made = ApiRoute(operation.method, operation.path, function, operation.need, creates=operation.creates, key=key)
    made.counted_apart = operation.counted_apart
    return made


def _ensured(answer: T) -> T:
    if isinstance(answer, ServiceAnswer):
        answer.ensure()
    return answer


class RouteTable:
    """Finds the routes of a path: by the path itself if it has no parameters, else among those with as many parts."""

    def __init__(self, routes: Iterable[ApiRoute]) -> None:
        self._fixed: dict[str, dict[str, ApiRoute]] = {}
        self._by_length: dict[int, list[ApiRoute]] = {}
        for each in routes:
            if each.parameters:
                self._by_length.setdefault(len(each.parts), []).append(each)
            else:
                self._fixed.setdefault(each.path, {})[each.method] = each

    def find(self, path: str) -> tuple[dict[str, ApiRoute], dict[str, str]]:
        """The routes of a path by their methods, and the values of its parameters. A path without parameters comes
        before one with them.
        """
        if (fixed := self._fixed.get(path)) is not None:
            return fixed, {}
        parts = path.split("/")
        candidates = self._by_length.get(len(parts), ())
        matches = [(each, values) for each in candidates if (values := each.match(parts)) is not None]
        if not matches:
            return {}, {}
        best, values = min(matches, key=lambda match: len(match[0].parameters))
        return {each.method: each for each, _ in matches if each.path == best.path}, values


def _decoded(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise Usage(f"{segment!r} in the path is not UTF-8") from None


def _converted(values: dict[str, str], name: str, type: Any) -> Any:
    return _read(lambda: convert(values[name], type, strict=False), f"{name} in the path")


def _query_values(query: str) -> dict[str, str]:
    if not query:
        return {}
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict"
        )
    except ValueError:
        raise Usage("the query is not of the form name=value&name=value, in UTF-8") from None
    values = dict(pairs)
    if len(values) != len(pairs):
        raise Usage("a query parameter is given twice")
    return values


def _read(read: Callable[[], T], what: str) -> T:
    try:
        return read()
    except RecursionError:
        raise Usage(f"{what} is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise Usage(f"{what} is wrong: {_lowered(str(error))}") from None


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


# The modules whose operations are routes, if they have a path.
MODULES = (
    locks,
    inbox,
    rows,
    nodes,
    rights,
    agents,
    job_lists,
    job_submits,
    job_answers,
    job_changes,
    job_erasure,
    jobs,
    job_news,
    job_logs,
    claims,
    artifacts,
    contents,
    kinds,
    schedules,
    ops,
    keeping,
    pruning,
    author_checkpoints,
    claiming,
    ending,
)

ROUTES: tuple[ApiRoute, ...] = tuple(
    route_of(each)
    for module in MODULES
    for each in vars(module).values()
    if isinstance(each, Operation) and each.path and each.__module__ == module.__name__
) + tuple(route_of(each) for each in extension_operations().values() if each.path)
ROUTES_BY_NAME = {each.name: each for each in ROUTES}
