"""Declares what a node can be asked to do, once for every face. The parameters of a function are the request, its
return type is the answer, its docstring the help. From these come a command, a route over HTTP and methods for Python.
Lists go over HTTP in pages.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import NoneType, UnionType
from typing import (
    IO,
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

import msgspec
from msgspec import Meta, Struct

from hocket.api import ListPage, Service
from hocket.api.views import View
from hocket.kernel.extension import extensions, loaded

if TYPE_CHECKING:
    from hocket.node.node import Node


P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")

ULID = "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"

# An answer gets no more items once they have this many bytes; so many are read at a time.
ANSWER_BYTES = 4 * 1024 * 1024
STEP = 16

# How a shell writes a value: as JSON, as a duration such as 30s, which becomes milliseconds, or as a duration that may
# also be in beats.
Form = Literal["json", "duration", "length"]
REQUIRED: Any = object()
# Stands in a docstring before the examples of its command.
EXAMPLES = "\n\n\b\n"
# The flag of a coroutine's code, `inspect.CO_COROUTINE`: short commands do not load `inspect`.
_COROUTINE = 0x80


class InShell(NamedTuple):
    """How a shell spells a parameter, where that does not follow from its name and type: stands in its annotation. A
    parameter without a default and without a name here is an argument, every other an option. `earlier` is a name that
    is still understood. A parameter that has the options of jobs, or of the jobs of schedules, is `options_of` them.
    """

    name: str | None = None
    metavar: str | None = None
    help: str | None = None
    form: Form | None = None
    is_argument: bool = False
    earlier: str | None = None
    options_of: Literal["jobs", "schedules"] | None = None


class OverHttp(NamedTuple):
    """The type of a parameter in a request over HTTP, where that is another: stands in its annotation."""

    type: Any


class WholeBody(NamedTuple):
    """Stands in the annotation of the one parameter that is the whole body of a request, and no member of it."""


class JoinedMembers(NamedTuple):
    """Stands in the annotation of a parameter that is a struct, whose fields are members of the request, as if each
    were a parameter.
    """


# The lines of a body, each to be read as one request: the parameter of an operation that answers a list with an answer
# or an error for each. Over HTTP they come as a stream of JSON lines, and so do the answers.
Lines = NewType("Lines", Sequence[bytes])

# The body of a request as a file that the caller closes: any bytes.
Upload = NewType("Upload", IO[bytes])


class Download(NamedTuple):
    """An answer that is bytes and no JSON: their BLAKE3 hash, their number, and what gives so many from a place on."""

    hash: bytes
    size: int
    part: Callable[[int, int], bytes]


class Input:
    """A parameter of an operation. `kind` is its type without None and without what is annotated."""

    def __init__(self, name: str, annotation: Any, default: Any) -> None:
        self.name, self.annotation, self.default = name, annotation, default
        self.kind, self.notes = _taken_apart(annotation)

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    @property
    def over_http(self) -> Any:
        """Its type in a request over HTTP."""
        other = self.note(OverHttp)
        if other is None:
            return self.annotation
        return other.type | None if self.default is None else other.type

    @property
    def description(self) -> str:
        return next((each.description for each in self._metas if each.description is not None), "")

    @property
    def bounds(self) -> dict[str, Any]:
        """The least and the greatest value of a number."""
        metas = self._metas
        return {
            "min": next((each.ge for each in metas if each.ge is not None), None),
            "max": next((each.le for each in metas if each.le is not None), None),
        }

    @property
    def _metas(self) -> list[Meta]:
        return [each for each in reversed(self.notes) if isinstance(each, Meta)]

    def note(self, *types: type[T]) -> T | None:
        """The last annotation of these types."""
        return next((each for each in reversed(self.notes) if isinstance(each, types)), None)


def _taken_apart(annotation: Any) -> tuple[Any, list[Any]]:
    notes: list[Any] = []
    while True:
        if get_origin(annotation) is Annotated:
            notes = [*annotation.__metadata__, *notes]
            annotation = annotation.__origin__
        elif get_origin(annotation) in (Union, UnionType):
            annotation = next(each for each in get_args(annotation) if each is not NoneType)
        else:
            return annotation, notes


Arguments = Mapping[str, Any]


class TokenNeed(NamedTuple):
    """What the token of a program must grant. `words` picks from the arguments what a prefix in its grant is compared
    with. If that is not in the request, the function compares it, and the need `is_judged_later`. `scope` picks the
    scope of locks. A need that `is_any` is met by every token: what the answer has is judged item by item.
    """

    resource: str
    action: str
    words: Callable[[Service, Arguments], Sequence[str]] | None = None
    is_judged_later: bool = False
    scope: Callable[[Arguments], str | None] | None = None
    is_any: bool = False

    @property
    def takes_prefix(self) -> bool:
        return self.words is not None or self.is_judged_later

    def __str__(self) -> str:
        """The grant, as people write it."""
        return f"{self.resource.lower()}:{self.action.lower()}"


class Operation(Generic[P, A]):
    """A function that is declared as one. `waits` is whether it is a coroutine. Whether it changes anything follows
    from its method. Without a path, and so without a need, it is no part of the HTTP API.
    """

    def __init__(self, function: Callable[..., Any], declared: "operation") -> None:
        self.function = function
        self.name, self.need, self.command, self.creates = (
            declared.name,
            declared.need,
            declared.command,
            declared.creates,
        )
        self.key, self.show, self.counted_apart = declared.key, declared.show, declared.counted_apart
        self.step = declared.step
        self.method, _, self.path = declared.route.partition(" ")
        self.__name__, self.__module__ = function.__name__, function.__module__
        self.waits = bool(function.__code__.co_flags & _COROUTINE)
        self.__doc__ = _dedented(function.__doc__ or "")
        self.help = self.__doc__.partition(EXAMPLES)[0]

    @property
    def names_nodes(self) -> bool:
        """Whether its answer is shown with the names of nodes."""
        return self.show.__code__.co_argcount > 1

    @cached_property
    def parameters(self) -> list[Input]:
        code, types = self.function.__code__, self.function.__annotations__
        positional = code.co_varnames[: code.co_argcount]
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = self.function.__defaults__ or ()
        defaults = dict(zip(positional[len(positional) - len(given) :], given, strict=True))
        defaults |= self.function.__kwdefaults__ or {}
        return [Input(each, types[each], defaults.get(each, REQUIRED)) for each in names[2 if self.waits else 1 :]]

    @property
    def answer(self) -> Any:
        return self.function.__annotations__["return"]

    @property
    def is_stream(self) -> bool:
        """Whether its answer comes item by item."""
        return get_origin(self.answer) is AsyncIterator

    def __call__(self, service: Service, *args: P.args, **kwargs: P.kwargs) -> A:
        """Does it now, on this thread. The items of a stream come from an iterator."""
        answer: A
        if self.is_stream:
            answer = service.node.each_of(lambda node: self.function(service, node, *args, **kwargs))  # type: ignore
        elif self.waits:
            answer = service.node.with_node(lambda node: self.function(service, node, *args, **kwargs))
        else:
            answer = self.function(service, *args, **kwargs)
        return answer


class operation(Struct, frozen=True):
    """Declares the decorated function as an operation. It takes a Service, which knows who asks. A coroutine, which may
    wait long, also takes the Node on whose loop it runs. It may return an async iterator: then the answer is a stream.

    `name` names the operation for programs, `route` is its method and path over HTTP, or only the method, and `command`
    the words of its command. An operation that `creates` something can be repeated under a key. `key` gives the place
    of an item in an answer that is a list, which goes over HTTP in pages, or in a stream. `show` gets the answer, and
    if it takes two arguments the names of nodes by their ids. Requests that are mostly idle, because they wait for
    work, are `counted_apart` from others.
    """

    name: str
    route: str
    need: TokenNeed | None = None
    command: str | None = None
    creates: bool = False
    key: Callable[[Any], str] | None = None
    show: Callable[..., Iterable[View]] = lambda answer: ()
    counted_apart: bool = False
    step: int = STEP

    @overload
    def __call__(self, function: "Callable[Concatenate[Service, Node, P], Awaitable[A]]", /) -> Operation[P, A]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Service, P], A], /) -> Operation[P, A]: ...
    def __call__(self, function: Callable[..., Any], /) -> Operation[..., Any]:
        return Operation(function, self)


def extension_operations() -> dict[str, Operation[..., Any]]:
    """The operations of extensions, by their names."""
    modules = [loaded(f"{place}:__dict__") for each in extensions() for place in each.operations]
    return {each.name: each for module in modules for each in module.values() if isinstance(each, Operation)}


class OperationGroup:
    """The commands of operations under one word. `alone` is done if no command is named."""

    def __init__(self, help: str, *operations: Operation[..., Any], alone: Operation[[], Any] | None = None) -> None:
        self.help, self.operations, self.alone = help, operations, alone


def _dedented(doc: str) -> str:
    """A docstring without its indentation."""
    return "\n".join(line.removeprefix("    ") for line in doc.split("\n")).rstrip()


PAGE_MAX = 1_000
PAGE_DEFAULT = 100
FetchPage = Callable[[int, str | None], ListPage[T]]

Limit = Annotated[
    int,
    Meta(ge=1, le=PAGE_MAX, description="The most items of one page."),
    InShell(metavar="N", help="How many at most."),
]
After = Annotated[
    str,
    Meta(min_length=1, max_length=1024, description="`next` of the page before."),
    InShell(metavar="KEY", help="Begin after this key."),
]


def page_of(items: Iterable[T], key: Callable[[T], str], limit: int, after: str | None) -> ListPage[T]:
    """Part of a list that the service gives as a whole, in the order of the key. Items with one key are numbered."""
    places: list[tuple[str, T]] = []
    same: Counter[str] = Counter()
    for each in items:
        place = key(each)
        places.append((f"{place} {same[place]}" if same[place] else place, each))
        same[place] += 1
    left = sorted(((place, each) for place, each in places if after is None or place > after), key=lambda pair: pair[0])
    return ListPage([each for _, each in left[:limit]], left[limit - 1][0] if len(left) > limit else None)


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
