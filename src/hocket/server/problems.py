"""The errors of the HTTP API: which status and which words each gets, and the answer itself, which is a problem of
RFC 9457. docs/errors.md explains every type.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from hocket.api.programs import KeyReused, KeyUnderWay, OutcomeUnknown, TooManyKeys, UnknownToken
from hocket.errors import Conflict, HocketError, NotAuthorised, NotFound, StaleFence, Unreachable, Usage
from hocket.mesh.wire import BodyTooLong, NoRoom
from hocket.node.log_events import PlaceGone
from hocket.work.remote.remote_parts import RemoteLimit

PROBLEM = "application/problem+json"
# Before the name of each type. It has no base path, so that a type is the same text behind every proxy.
TYPES = "/v1/errors/"
RETRY_S = 1


class TooBusy(HocketError):
    """The caller must come back later."""

    def __init__(self, sentence: str, retry_s: float = RETRY_S) -> None:
        super().__init__(sentence)
        self.retry_s = max(1, round(retry_s))


class WaitEnded(HocketError):
    """A request that waited was ended: its caller has disconnected, or the server stops."""


class BadContentType(HocketError):
    """The body of a request is not said to be of a type that the route reads."""


class BadRange(HocketError):
    """A range of bytes that the content does not have."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the content has {size} bytes, and the range begins after them")
        self.size = size


class BadMethod(HocketError):
    def __init__(self, methods: Sequence[str]) -> None:
        super().__init__(f"this path supports {', '.join(methods)}")
        self.methods = methods


class ApiError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was not done (RFC 9457)."""

    type: Annotated[str, Meta(description="Which kind of error it is: a path that never changes.")]
    title: Annotated[str, Meta(description="The type in a few words.")]
    status: Annotated[int, Meta(ge=400, le=599, description="The status of the answer.")]
    detail: Annotated[str, Meta(description="What was wrong with this request: a sentence for people.")]
    error: Annotated[str, Meta(description="A word for programs. Several types may share one.")]
    message: Annotated[str, Meta(description="The same sentence as `detail`.")]
    first: Annotated[int | None, Meta(description="The smallest place from which the log can go on.")] = None
    final: Annotated[bool, Meta(description="Whether the same request can never succeed: do not repeat it.")] = False


class Problem(NamedTuple):
    """What errors of some classes are over HTTP. `name` is the end of their type, `advice` says to people what it means
    and what to do, and `is_final` is whether the same request can never succeed.
    """

    classes: tuple[type[Exception], ...]
    status: int
    name: str
    error: str
    title: str
    advice: str
    is_final: bool = False

    def answer(self, message: str) -> ApiError:
        return ApiError(
            *(TYPES + self.name, self.title, self.status, message, self.error, message), final=self.is_final
        )


INTERNAL = Problem(
    *((), 500, "internal", "internal", "This node failed"),
    "A bug. The server's log has it.",
)
# The first one with a class that fits counts.
PROBLEMS: tuple[Problem, ...] = (
    Problem(
        *((UnknownToken,), 401, "unknown-token", "unknown_token", "The token is missing or not in force"),
        "Send `Authorization: Bearer TOKEN`. `hocket token list` shows which tokens are active, expired or revoked.",
    ),
    Problem(
        *((NotAuthorised,), 403, "not-authorised", "not_authorised", "The token does not grant this"),
        "`detail` names the grant that is missing. Ask for a token that has it; the node must have it, too.",
    ),
    Problem(
        *((NotFound,), 404, "not-found", "not_found", "Nothing has this name or id"),
        "No such path, node, job, artifact, message, row or conflict. The description lists all paths.",
    ),
    Problem(
        *((PlaceGone,), 410, "place-gone", "place_gone", "The log does not have what comes after this place"),
        "It was archived, or the place is of another log. Go on after `first`, and list anew what you need.",
    ),
    Problem(
        *((BadMethod,), 405, "bad-method", "bad_method", "The path does not have this method"),
        "The header `Allow` names the methods of the path.",
    ),
    Problem(
        *((TooManyKeys, RemoteLimit, TooBusy), 429, "too-many", "too_many", "Too many requests"),
        "A limit of the token, of the address or of the server. Wait for the seconds in `Retry-After`.",
    ),
    Problem(
        *((StaleFence,), 409, "stale-fence", "stale-fence", "The hold is over"),
        "Another holds it now, or the lease has ended. Nothing was written. Stop the work that had this fence.",
        True,
    ),
    Problem(
        *((KeyUnderWay,), 409, "key-under-way", "conflict", "The first request with this key has not ended"),
        "Send the same request again after `Retry-After` to get the answer of the first one.",
    ),
    Problem(
        *((OutcomeUnknown,), 409, "outcome-unknown", "conflict", "Nobody knows whether the request was done"),
        "The server died or failed while it worked on the first request with this key. Look whether it was done, then"
        " take a new key.",
    ),
    Problem(
        *((Conflict,), 409, "conflict", "conflict", "Another was first"),
        "A held lock, a changed row, a message that another holds, a job whose state has changed. Read again, then"
        " decide.",
    ),
    Problem(
        *((BodyTooLong,), 413, "too-large", "too_large", "The body is too long"),
        "`detail` has the limit. Send several requests.",
    ),
    Problem(
        *((BadContentType,), 415, "bad-content-type", "bad_content_type", "The body is of another type"),
        "Send the body as `detail` says, and name its type in the header `Content-Type`.",
    ),
    Problem(
        *((BadRange,), 416, "bad-range", "bad_range", "The content does not have this range"),
        "The header `Content-Range` has the number of bytes.",
    ),
    Problem(
        *((KeyReused,), 422, "key-reused", "key_reused", "The key was used for another request"),
        "An `Idempotency-Key` belongs to one request: the same method, path, query and body. Take a new key.",
        True,
    ),
    Problem(
        *((Usage,), 400, "usage", "usage", "The request is wrong"),
        "A missing field, a bad value, an unknown parameter. `detail` names it.",
    ),
    INTERNAL,
    Problem(
        *((NoRoom, WaitEnded, Unreachable), 503, "unreachable", "unreachable", "Not now"),
        "The store or the coordinator does not answer, the server stops, or its memory for bodies is full. Come back"
        " after `Retry-After`.",
    ),
)


def problem_of(error: Exception) -> Problem:
    return next((each for each in PROBLEMS if isinstance(error, each.classes)), INTERNAL)


def listed() -> str:
    """All types as the table of docs/errors.md."""
    rows = [
        f"| `{each.name}` | {each.status} | `{each.error}` | {each.title}. {each.advice}"
        f"{' **Final.**' if each.is_final else ''} |"
        for each in sorted(PROBLEMS, key=lambda each: each.status)
    ]
    return "\n".join(["| type | status | `error` | |", "|---|---|---|---|", *rows])
