"""Jobs to submit, from what people and programs write: the kind, the payload, and the options with their names."""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict

import msgspec

from hocket.errors import Usage
from hocket.families.jobs.requests import PAYLOAD_BYTES_MAX, Draft, check_kind
from hocket.families.jobs.tracing import current_trace
from hocket.families.json_values import encode_json
from hocket.kernel.extension import part
from hocket.kernel.ids import parse_ulid
from hocket.kernel.policy import (
    DEFAULT,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    Budget,
    Policy,
    Rate,
    Score,
    check_labels,
    check_policy,
)
from hocket.kernel.texts import BeatsLong, duration_ms, parse_length, size_bytes

Duration = str | int | float


class HasJobId(Protocol):
    """A handle on a job."""

    @property
    def job_id(self) -> str: ...


ErrorTypes = type[BaseException] | Iterable[type[BaseException]]


class JobOptions(TypedDict, total=False):
    """The options of `policy`."""

    priority: int
    not_before: int | str | datetime | None
    lease: Duration | None
    timeout: Duration | None
    retries: int | None
    backoff: Duration
    backoff_max: Duration
    after: str | HasJobId | Iterable[str | HasJobId]
    unique: str | None
    unique_for: Duration | None
    concurrency: int | None
    rate: str | Rate | None
    open: bool
    needs: str | Iterable[str]
    approval_by: str | None
    approval_within: Duration | None
    questions_to: str | None
    tags: str | Iterable[str]
    index: str | Iterable[str]
    ttl: Duration | None
    claim: Literal["first", "rendezvous", "sticky"]
    sticky: str | None
    claim_timeout: Duration
    content_apart: str | int | None
    budget: Budget | Mapping[str, Any] | PathLike[str] | None
    score: Score | Mapping[str, Any] | PathLike[str] | None


class HandlerOptions(JobOptions, total=False):
    """The options of `@job`: those of its jobs, and which errors are retried."""

    retry_on: ErrorTypes
    give_up_on: ErrorTypes


def policy(base: Policy, **options: Any) -> Policy:
    """A policy with options as people write them. Raises Usage with the name of a bad option.

    priority: higher runs sooner · not_before: a datetime, ISO-8601, "+30s" or milliseconds since the epoch · lease,
    backoff, backoff_max, unique_for: durations · timeout: how long one run may take, 0 for no limit · retries: a count
    · after: job ids or handles · unique: a key · concurrency: how many of the kind run at once · rate: "10/s", "100/1m"
    · open: True for jobs that need no decision of the coordinator · needs: labels that the worker must have, like "gpu"
    or "gpu=a100" · ttl: how long the job may wait for its first worker before it is cancelled · approval_by: the agent
    that must approve it before it starts · approval_within: after how long without that it is cancelled · questions_to:
    the agent that answers what the job asks while it runs · claim: how a job finds its worker, "first", "rendezvous" or
    "sticky" · sticky: the member of the payload whose value is the key of a sticky job · claim_timeout: how long each
    rank waits for the one before it · tags: words to find the job by, like "nightly" or "team=video" · index: members
    of the payload by which the job is found, like "frame" or "camera.name" · budget: the caps of the job and the
    account that pays, like {"max_cost": 2.5, "charge_to": "acme"}, or the path of a file with them · score: the beats
    of the job, as the path of a file or as its content.
    """
    made = base
    for name, value in options.items():
        if name not in _OPTIONS:
            raise Usage(f"unknown option {name!r}{likely(name, _OPTIONS)}; known are {', '.join(sorted(_OPTIONS))}")
        try:
            made = check_policy(msgspec.structs.replace(made, **_OPTIONS[name](value)))
        except Usage:
            raise
        except (ValueError, TypeError, AttributeError) as error:
            raise Usage(f"bad {name} {value!r}: {error}") from None
    if (made.claim == "sticky") != (made.sticky is not None):
        raise Usage('claim="sticky" and the name of the key, like sticky="repository", go together')
    if made.approval_within_ms is not None and made.approval_by is None:
        raise Usage("approval_within needs approval_by: who is to approve the job")
    return made


def likely(name: str, known: Iterable[str]) -> str:
    """A question that names what was probably meant; empty if nothing is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def said(options: Iterable[str]) -> frozenset[str]:
    """The members of the policy that these options set."""
    members = Policy.__struct_fields__
    said = {name if name in members else f"{name}_ms" for name in options}
    return frozenset(said | ({"lease_beats"} if "lease_ms" in said else set()))


def draft(kind: str, payload: object, options: dict[str, Any]) -> Draft:
    """A job to submit, of a kind without a function here. Raises Usage if the kind, the payload or an option is bad."""
    chosen = policy(DEFAULT, **options)
    return Draft(check_kind(kind), encode_payload(kind, payload), chosen, said=said(options), trace=current_trace())


def encode_payload(kind: str, payload: object) -> bytes:
    if not isinstance(payload, dict):
        raise Usage(f"the payload of {kind} must be a JSON object, not {type(payload).__name__}")
    try:
        written = encode_json(payload, "it")
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise Usage(f"the payload of {kind} cannot be written as JSON: {error}") from None
    if len(written) > PAYLOAD_BYTES_MAX:
        raise Usage(
            f"the payload of {kind} has {len(written)} bytes, at most {PAYLOAD_BYTES_MAX}; pass a reference instead"
        )
    return written


def lease_members(value: Duration | None) -> dict[str, int | None]:
    """The members of the policy for a lease: a duration, or beats such as "4b"."""
    if value is None:
        return {"lease_ms": None, "lease_beats": None}
    try:
        lease_ms = parse_length(value)
    except ValueError as error:
        raise Usage(f"bad lease {value!r}: {error}") from None
    if isinstance(lease_ms, BeatsLong):
        return {"lease_ms": None, "lease_beats": lease_ms.beats}
    if not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        raise Usage(f"bad lease {value!r}: it must be between {LEASE_MS_MIN} ms and {LEASE_MS_MAX // 86_400_000} days")
    return {"lease_ms": lease_ms, "lease_beats": None}


def moment_ms(value: int | str | datetime) -> int:
    """Milliseconds since the epoch. A time without a zone is local, as ISO-8601 defines it."""
    if isinstance(value, int):
        return value
    if isinstance(value, datetime):
        return int(value.timestamp() * 1000)
    written = value.strip()
    if written.isascii() and written.isdigit():
        return int(written)
    try:
        if written.startswith("+"):
            return int(time.time() * 1000) + duration_ms(written[1:])
        return int(datetime.fromisoformat(written).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ValueError("write it like 2030-01-31T09:00:00Z, +30s, or milliseconds since 1970") from None


def _rate(value: object) -> Rate:
    if isinstance(value, Rate):
        return value
    count, _, period = str(value).partition("/")
    if not period:
        raise ValueError("write it like 10/s or 100/5m")
    return Rate(int(count), duration_ms(period if period[0].isdigit() else "1" + period))


def _after(value: Any) -> tuple[str, ...]:
    named = [value] if isinstance(value, str) or not isinstance(value, Iterable) else value
    ids = tuple(each if isinstance(each, str) else each.job_id for each in named)
    for text in ids:
        parse_ulid(text)
    return ids


def _of_extension(name: str, value: Any) -> dict[str, Any]:
    """A member of the policy whose extension reads it, from a value or a file."""
    content = _content(value) if isinstance(value, PathLike) else value
    return {name: None if value is None else part("members", name)(content)}


def _content(file: PathLike[str]) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ValueError(str(error.strerror)) from None


_OPTIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "priority": lambda value: {"priority": value},
    "not_before": lambda value: {"not_before": None if value is None else moment_ms(value)},
    "lease": lease_members,
    "retries": lambda value: {"retries": value},
    "timeout": lambda value: {"timeout_ms": None if value is None else duration_ms(value)},
    "backoff": lambda value: {"backoff_ms": duration_ms(value)},
    "backoff_max": lambda value: {"backoff_max_ms": duration_ms(value)},
    "after": lambda value: {"after": _after(value)},
    "unique": lambda value: {"unique": value},
    "unique_for": lambda value: {"unique_for_ms": None if value is None else duration_ms(value)},
    "concurrency": lambda value: {"concurrency": value},
    "rate": lambda value: {"rate": None if value is None else _rate(value)},
    "open": lambda value: {"open": value},
    "ttl": lambda value: {"ttl_ms": None if value is None else duration_ms(value)},
    "needs": lambda value: {"needs": check_labels([value] if isinstance(value, str) else value)},
    "tags": lambda value: {"tags": check_labels([value] if isinstance(value, str) else value)},
    "index": lambda value: {"index": (value,) if isinstance(value, str) else tuple(value)},
    "approval_by": lambda value: {"approval_by": value},
    "questions_to": lambda value: {"questions_to": value},
    "approval_within": lambda value: {"approval_within_ms": None if value is None else duration_ms(value)},
    "claim": lambda value: {"claim": value},
    "sticky": lambda value: {"sticky": value},
    "claim_timeout": lambda value: {"claim_timeout_ms": duration_ms(value)},
    "content_apart": lambda value: {"content_apart": None if value is None else size_bytes(value)},
    "budget": lambda value: _of_extension("budget", value),
    "score": lambda value: _of_extension("score", value),
}


OPTION_NAMES = frozenset(_OPTIONS)
