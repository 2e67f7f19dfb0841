"""The views of the page. Each is an address with a template, and a function that gives the template its values."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hocket.api import Program, Service
from hocket.page.live_jobs import LiveJobs
from hocket.page.own_actions import LogCheck
from hocket.page.throughput import Throughput

_PARAMETER = re.compile(r"\\{(\w+)\\}")


class ViewCall(NamedTuple):
    """Who looks, through which `service`, and the query of the address."""

    service: Service
    program: Program
    query: Mapping[str, str]
    throughput: Throughput
    live_jobs: LiveJobs
    log_check: LogCheck

    def may(self, resource: str, action: str, *words: str) -> bool:
        return self.program.may(resource, action, words)


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
    """`name` is the word for it in the navigation; empty if it is not there. A `function` reads the store."""

    def __init__(self, path: str, template: str, function: Callable[..., Mapping[str, Any]], name: str = "") -> None:
        super().__init__(path)
        self.template, self.function, self.name = template, function, name
