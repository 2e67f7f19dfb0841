"""What can be done on the page: operations, by a form whose fields are their parameters. One that ends or takes away
something asks first, and says how many things it is about.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from hocket.errors import NotFound, Usage
from hocket.kernel.decoding import convert
from hocket.server.routes import ROUTES, ApiRoute

# Fields of a form that are no parameters.
BACK, CONFIRMED = "back", "confirmed"
# Characters that a person may write of a reason; who it was comes after them.
REASON_CHARS_MAX = 400


class Action(NamedTuple):
    """`question` asks for confirmation, with the fields of the form in braces; empty if nothing asks. `done` says what
    has been done. `read` makes the parameters of the fields, and raises ValueError. Afterwards the page `then` is
    shown; if it is empty, the one that the form names.
    """

    operation: str
    verb: str
    done: str
    question: str = ""
    asks_reason: bool = False
    read: Callable[[Mapping[str, str]], Mapping[str, Any]] = dict
    then: str = ""


ACTIONS = {
    each.operation: each
    for each in (
        Action("cancel_job", "Cancel", "cancelled the job {job}", "Cancel the job {job}?", True),
        Action("retry_job", "Retry", "retried the job {job}"),
        Action("cancel_jobs", "Cancel all", "cancelled {changed} of {matched} jobs", "Cancel {matched}?", True),
        Action("retry_jobs", "Retry all", "retried {changed} of {matched} jobs", "Retry {matched}?", True),
        Action("drain_node", "Drain", "{node} takes no new jobs", "Let {node} finish its jobs and take no more?", True),
        Action("quarantine_node", "Quarantine", "{node} gets no jobs", "Take all jobs from {node}?", True),
        Action("resume_node", "Resume", "{node} takes jobs again"),
        Action("retry_message", "Deliver again", "the message {id} is delivered again"),
        Action("resolve_conflict", "Take this", "the conflict is resolved", "Make this the value of the row?"),
        Action("break_lock", "Break", "broke the lock {key}", "Take the lock {key} from its holder?", True),
    )
}
_ROUTES = {each.name: each for each in ROUTES}


def action_named(name: str, actions: Mapping[str, Action]) -> tuple[Action, ApiRoute]:
    if name not in actions:
        raise NotFound(f"there is no action {name!r}")
    return actions[name], _ROUTES[name]


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
    try:
        found = {name: convert(values.pop(name), route.parameter(name), strict=False) for name in route.parameters}
        if route.body is not None:
            found["body"] = convert(values, route.body, strict=False)
    except KeyError as error:
        raise Usage(f"the form lacks {error.args[0]!r}") from None
    except (msgspec.ValidationError, ValueError) as error:
        raise Usage(f"the form is wrong: {error}") from None
    return found
