"""What can be done on the page: operations, by a form whose fields are their parameters. One that ends or takes away
something asks first, and says how many things it is about. And what a browser can save: artifacts, and what proves a
job. These are files of strangers, so the browser saves them and never shows them, whatever their type.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hocket.api.operation import Download
from hocket.errors import NotFound, Usage
from hocket.kernel.decoding import convert, decode_json
from hocket.mesh.wire import Reply
from hocket.page.views import Action, Choice, PagePath
from hocket.server.routes import ROUTES_BY_NAME, ApiRoute

# Fields of a form that are no parameters.
BACK, CONFIRMED = "back", "confirmed"
# The field that is written as JSON.
_JSON = "value"
# Characters that a person may write of a reason; who it was comes after them.
REASON_CHARS_MAX = 400


_DELAY = Choice(
    "delay_ms",
    "May start",
    {
        "600000": "in 10 minutes",
        "3600000": "in an hour",
        "86400000": "in a day",
        "604800000": "in a week",
        "0": "now",
    },
)


def _with_value(fields: Mapping[str, str]) -> dict[str, Any]:
    """A value is written as JSON."""
    if _JSON not in fields:
        return dict(fields)
    try:
        return {**fields, _JSON: decode_json(fields[_JSON].encode(), Any)}
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"the value is no JSON: {error}") from None


ACTIONS = {
    each.operation: each
    for each in (
        Action("cancel_job", "Cancel", "cancelled the job {job}", "Cancel the job {job}?", True),
        Action("retry_job", "Retry", "retried the job {job}"),
        Action("approve_job", "Approve", "approved the job {job}", "Approve the job {job}?", True),
        Action("refuse_job", "Refuse", "refused the job {job}", "Refuse the job {job}? It is cancelled.", True),
        Action("answer_job", "Answer", "answered what the job {job} asked"),
        Action("cancel_jobs", "Cancel all", "cancelled {changed} of {matched} jobs", "Cancel {matched}?", True),
        Action("retry_jobs", "Retry all", "retried {changed} of {matched} jobs", "Retry {matched}?", True),
        Action(
            "reschedule_job", "Postpone", "moved the start of the job {job}", "Postpone the job {job}?", True, (_DELAY,)
        ),
        Action(
            "reschedule_jobs",
            *("Postpone all", "moved the start of {changed} of {matched} jobs", "Postpone {matched}?", True, (_DELAY,)),
        ),
        Action("drain_node", "Drain", "{node} takes no new jobs", "Let {node} finish its jobs and take no more?", True),
        Action("quarantine_node", "Quarantine", "{node} gets no jobs", "Take all jobs from {node}?", True),
        Action("resume_node", "Resume", "{node} takes jobs again"),
        Action("retry_message", "Deliver again", "the message {id} is delivered again"),
        Action(
            *("resolve_conflict", "Take this", "the conflict is resolved", "Make this the value of the row?"),
            read=_with_value,
        ),
        Action("break_lock", "Break", "broke the lock {key}", "Take the lock {key} from its holder?", True),
    )
}


class PageDownload(PagePath):
    """The path of an operation that gives bytes, and how the file is called."""

    def __init__(self, path: str, operation: str, file_name: Callable[[Download, Mapping[str, str]], str]) -> None:
        super().__init__(path)
        self.route, self.file_name = ROUTES_BY_NAME[operation], file_name


DOWNLOADS = (
    PageDownload("/artifacts/{id}", "download_artifact", lambda content, values: f"blake3-{content.hash.hex()}.bin"),
    PageDownload("/jobs/{job}/ops", "download_job_ops", lambda content, values: f"{values['job']}.ops"),
    PageDownload("/jobs/{job}/proof", "download_job_proof", lambda content, values: f"{values['job']}.proof.json"),
)


def named(file: str, reply: Reply) -> Reply:
    """A reply that a browser saves under this name."""
    if "content-disposition" not in reply.headers:
        return reply
    return reply._replace(headers={**reply.headers, "content-disposition": f'attachment; filename="{file}"'})


def action_named(name: str, actions: Mapping[str, Action]) -> tuple[Action, ApiRoute]:
    if name not in actions:
        raise NotFound(f"there is no action {name!r}")
    return actions[name], ROUTES_BY_NAME[name]


def can_only_count(route: ApiRoute) -> bool:
    """Whether the operation can say how many things it would change."""
    return "dry_run" in getattr(route.body, "__struct_fields__", ())


def arguments_of(action: Action, route: ApiRoute, fields: Mapping[str, str], agent: str) -> dict[str, Any]:
    """The arguments of a route from the fields of a form. Empty fields count as left out. A reason, which is on the
    log, names who gave it.
    """
    given = {name: value for name, value in fields.items() if value and name not in (BACK, CONFIRMED)}
    try:
        values = dict(action.read(given))
    except ValueError as error:
        raise Usage(f"the form is wrong: {error}") from None
    if "reason" in getattr(route.body, "__struct_fields__", ()):
        reason = values.get("reason", "")
        values["reason"] = f"{reason[:REASON_CHARS_MAX]} (by {agent})" if reason else f"by {agent}"
    if "note" in getattr(route.body, "__struct_fields__", ()):
        values["note"] = values.pop("reason", "")
    try:
        found = {name: convert(values.pop(name), route.parameter(name), strict=False) for name in route.parameters}
        if route.body is not None:
            found["body"] = convert(values, route.body, strict=False)
    except KeyError as error:
        raise Usage(f"the form lacks {error.args[0]!r}") from None
    except (msgspec.ValidationError, ValueError) as error:
        raise Usage(f"the form is wrong: {error}") from None
    return found
