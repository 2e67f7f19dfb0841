"""The list of jobs: filters in the address, a search of one line, pages by key, and changes of all that match."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from hocket.api.job_lists import count_which, listing
from hocket.api.job_operations.job_filters import JobWhich, past_ms
from hocket.errors import Usage
from hocket.families.jobs.index import argument_of
from hocket.families.jobs.view import STATE_WORDS
from hocket.kernel.decoding import convert
from hocket.page.views import PageView, ViewCall

LINES = 100
# What a search may name, and the member of the filter that it means.
WORDS = {"kind": "kind", "state": "state", "tag": "tag", "error": "error", "by": "submitter", "id": "id", "arg": "arg"}
TIMES = {"since": "since_ms", "until": "until_ms"}
# What begins with this is the path of an argument.
ARGUMENT = "args."
# Fields of the form, in the order of the form.
FIELDS = ("state", "kind", "tag", "error", "arg", "submitter", "since", "until", "id")
# A word of the search: quotes keep what they enclose together.
_WORD = re.compile(r'(?:[^\s"]|"[^"]*(?:"|$))+')


def jobs(call: ViewCall) -> Mapping[str, Any]:
    asked = searched(call.query)
    which = which_of(asked)
    if which.kind is None and not call.may("Job", "Read"):
        prefix = next((each.kind_prefix for each in call.program.grants if each.covers("Job", "Read")), None)
        which = msgspec.structs.replace(which, kind=prefix[0] if prefix else None)
    call.service.check("Job", "Read", *([] if which.kind is None else [which.kind]))
    page = listing.function(call.service, which, LINES, call.query.get("after"))
    counted = count_which.function(call.service, which)
    kept = {name: value for name, value in asked.items() if value}
    unknown = which.arg is not None and not page.items and not _is_indexed(call, which.arg)
    return {
        "title": "Jobs",
        "asked": asked,
        "states": STATE_WORDS,
        "jobs": page.items,
        "counted": counted,
        "names": call.service.names(),
        "next": None if page.next is None else urlencode({**kept, "after": page.next}),
        "first": urlencode(kept) if "after" in call.query else None,
        "filters": {name: value for name, value in msgspec.to_builtins(which).items() if value is not None},
        "is_filtered": which != JobWhich(),
        "unknown_path": which.arg.partition("=")[0] if unknown and which.arg else None,
        "may_change": call.may("Job", "Schedule", *([] if which.kind is None else [which.kind])),
    }


def _is_indexed(call: ViewCall, argument: str) -> bool:
    with call.service.read() as session:
        return session.has_argument(argument_of(argument).path)


def searched(query: Mapping[str, str]) -> dict[str, str]:
    """The fields of the form. The line of the search fills those that it names; a bare word is a part of an id."""
    asked = {name: query.get(name, "").strip() for name in FIELDS}
    for word in (found.replace('"', "") for found in _WORD.findall(query.get("q", ""))):
        name, colon, value = word.partition(":")
        if colon and name.startswith(ARGUMENT):
            asked["arg"] = f"{name.removeprefix(ARGUMENT)}={value}"
        elif colon and name in WORDS:
            asked[WORDS[name]] = value
        elif colon and name in TIMES:
            asked[name] = value
        elif word.endswith("."):
            asked["kind"] = word
        else:
            asked["id"] = word
    return asked


def which_of(asked: Mapping[str, str]) -> JobWhich:
    values: dict[str, Any] = {name: asked[name] for name in WORDS.values() if asked[name]}
    if "id" in values:
        values["id"] = values["id"].upper()
    for name, member in TIMES.items():
        if asked[name]:
            values[member] = past_ms(asked[name])
    try:
        return convert(values, JobWhich)
    except (msgspec.ValidationError, ValueError) as error:
        raise Usage(f"this filter is wrong: {error}") from None


JOBS = PageView("/jobs", "jobs.html", jobs, "Jobs")
