"""What a route of the API is: a method, a path with parameters, a function, and what a token needs for it. The types of
the function say what a request has in its path, query and body and what the answer is, so that a description of the
API cannot differ from what it does.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, get_type_hints
from urllib.parse import parse_qsl, unquote

import msgspec

from hocket.errors import HocketError, NotAuthorised, Usage
from hocket.kernel.decoding import convert, decode_json
from hocket.node.node import Node
from hocket.service import ListPage, Service
from hocket.service.tokens import Program

PREFIX = "/v1/"
QUERY_FIELDS_MAX = 32
PAGE_MAX = 1_000
PAGE_DEFAULT = 100
BODY_BYTES_MAX = 4 * 1024 * 1024

# An answer gets no more items once they have this many bytes; so many are read at a time.
ANSWER_BYTES = 4 * 1024 * 1024
STEP = 16

_PARAMETER = re.compile(r"\{(\w+)\}")

T = TypeVar("T")
FetchPage = Callable[[int, str | None], ListPage[T]]

Limit = msgspec.Meta(ge=1, le=PAGE_MAX, description="The most items of one page.")
ULID = "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"
After = msgspec.Meta(min_length=1, max_length=1024, description="`next` of the page before.")


class BadContentType(HocketError):
    """The body of a request is not said to be JSON."""


class ApiCall(NamedTuple):
    """On whose behalf a function of the API works: `service` has the node and the agent, `program` showed its token. A
    function that may wait long is a coroutine, and uses the `node`.
    """

    service: Service
    program: Program
    node: Node

    def agent(self, name: str | None) -> str:
        """The agent that a request names, if the program may speak for it; without a name the program's own."""
        return self.program.agent_named(name)

    def check(self, resource: str, action: str, *words: str, scope: str | None = None) -> None:
        if not self.program.may(resource, action, words, scope):
            about = f" for {', '.join(map(repr, words))}" if words else ""
            about += f" in the scope {scope!r}" if scope else ""
            grant = f"{resource.lower()}:{action.lower()}"
            raise NotAuthorised(
                f"the token {self.program.name} does not grant {grant}{about}, or this node may not do it"
            )


Words = Callable[[ApiCall, Mapping[str, Any]], Sequence[str]]
ScopeOf = Callable[[Mapping[str, Any]], str | None]


class RouteNeed(NamedTuple):
    """What a token must grant. `words` picks from the arguments what a prefix in its grant is compared with. If that is
    not in the request, the function of the route compares it, and the need `is_judged_later`. `scope` picks the scope
    of locks.
    """

    resource: str
    action: str
    words: Words | None = None
    is_judged_later: bool = False
    scope: ScopeOf | None = None

    @property
    def takes_prefix(self) -> bool:
        return self.words is not None or self.is_judged_later

    def __str__(self) -> str:
        """The grant, as people write it."""
        return f"{self.resource.lower()}:{self.action.lower()}"


# The type of an answer that is an error, and how it is made from the status, the word and the sentence.
ErrorForm = tuple[type, Callable[[int, str, str], Any]]


class ApiRoute:
    """`creates` is for a POST that makes something new: it answers 201, and a program can repeat it under a key.
    `errors` is the form of its errors, if it is not that of the API.
    """

    def __init__(
        self,
        method: str,
        path: str,
        function: Callable[..., Any],
        need: RouteNeed,
        *,
        creates: bool = False,
        errors: ErrorForm | None = None,
    ) -> None:
        self.method, self.path, self.function, self.need, self.creates = method, path, function, need, creates
        self.errors = errors
        self.parameters: list[str] = _PARAMETER.findall(path)
        self.is_async = inspect.iscoroutinefunction(function)
        self._parts = path.split("/")

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

    def parameter(self, name: str) -> Any:
        return self._types[name]

    @property
    def status(self) -> int:
        return 204 if self.answer is type(None) else 201 if self.creates else 200

    def match(self, parts: Sequence[str]) -> dict[str, str] | None:
        """The raw values of the path's parameters; None if this is another path."""
        if len(parts) != len(self._parts):
            return None
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

    def read_body(self, content: bytes) -> Any:
        return _read(lambda: decode_json(content, self.body), "the body")


def find(routes: Iterable[ApiRoute], path: str) -> tuple[dict[str, ApiRoute], dict[str, str]]:
    """The routes of a path by their methods, and the values of its parameters. A path without parameters comes before
    one with them.
    """
    parts = path.split("/")
    matches = [(each, values) for each in routes if (values := each.match(parts)) is not None]
    if not matches:
        return {}, {}
    best, values = min(matches, key=lambda match: len(match[0].parameters))
    return {each.method: each for each, _ in matches if each.path == best.path}, values


def page_of(items: Iterable[T], key: Callable[[T], str], limit: int, after: str | None) -> ListPage[T]:
    """Part of a list that the service gives as a whole, in the order of the key."""
    left = sorted((each for each in items if after is None or key(each) > after), key=key)
    return ListPage(left[:limit], key(left[limit - 1]) if len(left) > limit else None)


def bounded_page(fetch: FetchPage[T], limit: int, after: str | None, step: int = STEP) -> ListPage[T]:
    """A page that ends early if its items are large, so that no answer takes much memory."""
    items: list[T] = []
    size = 0
    while limit > 0 and size < ANSWER_BYTES:
        page = fetch(min(step, limit), after)
        items += page.items
        size, limit, after = size + json_size(page.items), limit - step, page.next
        if after is None:
            break
    return ListPage(items, after)


def json_size(items: Iterable[object]) -> int:
    return sum(len(msgspec.json.encode(each)) for each in items)


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
