"""The views of the page. Each is an address with a template, and a function that gives the template its values.
Extensions add views of their own.
"""

import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from hocket.api import Program, Service
from hocket.kernel.extension import extensions, loaded
from hocket.node.node import Node
from hocket.page.live_jobs import LiveJobs
from hocket.page.own_actions import LogCheck
from hocket.page.throughput import Throughput

PACKAGE = "hocket.page"
_PARAMETER = re.compile(r"\\{(\w+)\\}")


class ViewCall(NamedTuple):
    """Who looks, through which `service`, and the query of the address. `form` has the fields of a form that was sent
    to the view; empty if none was.
    """

    service: Service
    program: Program
    query: Mapping[str, str]
    throughput: Throughput
    live_jobs: LiveJobs
    log_check: LogCheck
    form: Mapping[str, str] = {}

    def may(self, resource: str, action: str, *words: str) -> bool:
        return self.program.may(resource, action, words)


class PageFile(NamedTuple):
    """What a view gives that is a file to keep."""

    name: str
    content_type: str
    content: bytes


class Choice(NamedTuple):
    """A field that the confirmation asks for, and its values with what people read."""

    field: str
    label: str
    values: Mapping[str, str]


class Action(NamedTuple):
    """An operation that a form does. `question` asks for confirmation, with the fields of the form in braces; empty if
    nothing asks. `done` says what has been done. `read` makes the parameters of the fields, and raises ValueError.
    Afterwards the page `then` is shown; if it is empty, the one that the form names.
    """

    operation: str
    verb: str
    done: str
    question: str = ""
    asks_reason: bool = False
    choices: tuple[Choice, ...] = ()
    read: Callable[[Mapping[str, str]], Mapping[str, Any]] = dict
    then: str = ""


class Trouble(NamedTuple):
    """Something that is not well, and the address of the view that says more."""

    sentence: str
    place: str


class PagePath:
    """A path of the page, with parameters."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._pattern = re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", re.escape(path)))

    def match(self, path: str) -> Mapping[str, str] | None:
        """The raw values of the parameters in a path; None if it is another's."""
        found = self._pattern.fullmatch(path)
        return None if found is None else found.groupdict()


class PageView(PagePath):
    """`name` is the word for it in the navigation; empty if it is not there. A `function` reads the store. A view that
    `takes_form` shows what the fields of a form say, and changes nothing. `package` has its template and static files,
    and `actions` are those that no other view has. `keep` runs beside the server, for figures that the view shows;
    `troubles` are for the first view.
    """

    def __init__(
        self,
        path: str,
        template: str,
        function: Callable[..., Mapping[str, Any] | PageFile],
        name: str = "",
        *,
        takes_form: bool = False,
        package: str = PACKAGE,
        actions: Sequence[Action] = (),
        keep: Callable[[Node], Coroutine[Any, Any, None]] | None = None,
        troubles: Callable[[ViewCall], Iterable[Trouble]] = lambda call: (),
    ) -> None:
        super().__init__(path)
        self.template, self.function, self.name = template, function, name
        self.takes_form, self.package, self.actions = takes_form, package, actions
        self.keep, self.troubles = keep, troubles


@cache
def extension_views() -> tuple[PageView, ...]:
    return tuple(loaded(place) for each in extensions() for place in each.views)


def packages() -> tuple[str, ...]:
    """The packages that have templates and static files, each once."""
    return tuple(dict.fromkeys((PACKAGE, *(each.package for each in extension_views()))))
