"""What can be done on the page: operations, by a form whose fields are their parameters. One that ends or takes away
something asks first, and says how many things it is about. And what a browser can save: artifacts, and what proves a
job. These are files of strangers, so a browser is told to save them, whatever they say that they are.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from hocket.api.operation import Download
from hocket.errors import NotFound, Usage
from hocket.kernel.decoding import convert, decode_json
from hocket.mesh.wire import Reply
from hocket.page.views import PagePath
from hocket.server.routes import ROUTES, ApiRoute

# Fields of a form that are no parameters.
BACK, CONFIRMED = "back", "confirmed"
# The field that is written as JSON.
_JSON = "value"
# Characters that a person may write of a reason; who it was comes after them.
REASON_CHARS_MAX = 400


class Choice(NamedTuple):
    """A field that the confirmation asks for, and its values with what people read."""

    field: str
    label: str
    values: Mapping[str, str]


class Action(NamedTuple):
    """`question` asks for confirmation, with the fields of the form in braces; empty if nothing asks. `done` says what
    has been done.
    """

    operation: str
    verb: str
    done: str
    question: str = ""
    asks_reason: bool = False
    choices: tuple[Choice, ...] = ()


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
ACTIONS = {
    each.operation: each
    for each in (
        Action("cancel_job", "Cancel", "cancelled the job {job}", "Cancel the job {job}?", True),
        Action("retry_job", "Retry", "retried the job {job}"),
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
        Action("resolve_conflict", "Take this", "the conflict is resolved", "Make this the value of the row?"),
        Action("break_lock", "Break", "broke the lock {key}", "Take the lock {key} from its holder?", True),
    )
}
_ROUTES = {each.name: each for each in ROUTES}


class PageDownload(PagePath):
    """The path of an operation that gives bytes, and how the file is called."""

    def __init__(self, path: str, operation: str, file_name: Callable[[Download, Mapping[str, str]], str]) -> None:
        super().__init__(path)
        self.route, self.file_name = _ROUTES[operation], file_name


DOWNLOADS = (
    PageDownload("/artifacts/{id}", "download_artifact", lambda content, values: f"blake3-{content.hash.hex()}.bin"),
    PageDownload("/jobs/{job}/ops", "download_job_ops", lambda content, values: f"{values['job']}.ops"),
    PageDownload("/jobs/{job}/proof", "download_job_proof", lambda content, values: f"{values['job']}.proof.json"),
)


def _json(text: str) -> Any:
    try:
        return decode_json(text.encode(), Any)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Usage(f"the value is no JSON: {error}") from None


def named(file: str, reply: Reply) -> Reply:
    """A reply that a browser saves under this name."""
    if "content-disposition" not in reply.headers:
        return reply
    return reply._replace(headers={**reply.headers, "content-disposition": f'attachment; filename="{file}"'})


def action_named(name: str) -> tuple[Action, ApiRoute]:
    if name not in ACTIONS:
        raise NotFound(f"there is no action {name!r}")
    return ACTIONS[name], _ROUTES[name]


def can_only_count(route: ApiRoute) -> bool:
    """Whether the operation can say how many things it would change."""
    return "dry_run" in getattr(route.body, "__struct_fields__", ())


def arguments_of(route: ApiRoute, fields: Mapping[str, str], agent: str) -> dict[str, Any]:
    """The arguments of a route from the fields of a form. Empty fields count as left out. A reason, which is on the
    log, names who gave it.
    """
    values: dict[str, Any] = {name: value for name, value in fields.items() if value and name not in (BACK, CONFIRMED)}
    if _JSON in values and route.name == "resolve_conflict":
        values[_JSON] = _json(values[_JSON])
    if "reason" in getattr(route.body, "__struct_fields__", ()):
        given = values.get("reason", "")
        values["reason"] = f"{given[:REASON_CHARS_MAX]} (by {agent})" if given else f"by {agent}"
    try:
        found = {name: convert(values.pop(name), route.parameter(name), strict=False) for name in route.parameters}
        if route.body is not None:
            found["body"] = convert(values, route.body, strict=False)
    except KeyError as error:
        raise Usage(f"the form lacks {error.args[0]!r}") from None
    except (msgspec.ValidationError, ValueError) as error:
        raise Usage(f"the form is wrong: {error}") from None
    return found
