"""Job types: a kind, the options of its jobs, and the function that runs them. `@job` makes one from a function. The
worker finds the job type of a job by its kind: an exact match first, then the longest prefix that ends with a dot.
"""

import importlib
import importlib.util
import inspect
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, lru_cache, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Unpack

import msgspec

from hocket.errors import Usage
from hocket.kernel.beats.phases import BeatsLong, parse_length
from hocket.kernel.beats.score import Score, parse_score, read_score
from hocket.kernel.budgets import Budget, parse_budget, read_budget
from hocket.kernel.durations import duration_ms
from hocket.kernel.ids import parse_ulid
from hocket.kernel.kinds import covers, of_kind
from hocket.kernel.placement import check_labels, lacking
from hocket.kernel.policy import DEFAULT, LEASE_MS_DEFAULT, LEASE_MS_MAX, LEASE_MS_MIN, Policy, Rate, check_policy
from hocket.kernel.roster import Job
from hocket.store import Session
from hocket.work.job_options import Duration, JobOptions
from hocket.work.jobs import PAYLOAD_BYTES_MAX, Draft, check_kind
from hocket.work.json_values import encode_json
from hocket.work.retrying import ErrorTypes, error_types
from hocket.work.signature import HandlerSignature, PayloadRejected
from hocket.work.tracing import current_trace

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    # With the defaults, a bare `JobType` is one of any payload and any result.
    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import ParamSpec, TypeVar

    P, R_co = ParamSpec("P"), TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class JobType(Generic[P, R_co]):
    """The result of `@job`: P are the members of its payload, R is the result. Calling it calls the function;
    submitting it makes a job.
    """

    kind: str
    policy: Policy = DEFAULT
    function: Callable[..., Any] | None = None
    lease_ms: int = LEASE_MS_DEFAULT
    retries: int = 0
    retry_on: ErrorTypes = (BaseException,)
    give_up_on: ErrorTypes = ()
    said: frozenset[str] = frozenset()
    """The members of the policy that were chosen, even if they have Hocket's default."""
    keeps_budget: bool = False
    """Whether its function keeps the budgets of its jobs itself, because it measures what they use."""
    wants: Callable[[Session, bytes], bool] | None = None
    """Which jobs of the kind a worker accepts, judged from the log and the encoded ScheduleJob; None for all."""
    signature: HandlerSignature | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.function is not None and self.signature is None:
            object.__setattr__(self, "signature", HandlerSignature(self.function))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            raise TypeError(f"{self.kind} has no function here; submit it to a node instead")
        return self.function(*args, **kwargs)

    def using(self, **options: Unpack[JobOptions]) -> "JobType[P, R_co]":
        """The same job type with other options for its jobs (see `policy` for their meaning)."""
        return replace(self, policy=policy(self.policy, **options), said=self.said | said(options))

    def draft(self, payload: object, args: tuple[Any, ...] = ()) -> Draft:
        """A job of this type to submit. `args` are members of the payload by position. Raises Usage if the payload is
        not a JSON object, is too large, or does not fit the function.
        """
        return Draft(self.kind, self.encode(payload, args), self.policy, said=self.said, trace=current_trace())

    def encode(self, payload: object, args: tuple[Any, ...] = ()) -> bytes:
        signature = self.signature
        if args:
            if signature is None or not isinstance(payload, dict):
                raise Usage(f"{self.kind} has no function here; give the members of its payload by name")
            payload = signature.named(self.kind, args, payload)
        written = encode_payload(self.kind, payload)
        if signature is not None:
            try:
                signature.check(written)
            except ValueError as error:
                raise Usage(f"the payload of {self.kind} is wrong: {error}") from None
        return written

    def call(self, ctx: object, payload: bytes) -> Callable[[], Any]:
        """The call of the function for a job with this payload. Raises PayloadRejected if the payload does not fit."""
        signature, function = self.signature, self.function
        assert signature is not None and function is not None
        try:
            arguments = signature.arguments(payload)
        except ValueError as error:
            raise PayloadRejected(f"the payload of {self.kind} is wrong: {error}") from None
        return partial(function, ctx, **arguments) if signature.takes_context else partial(function, **arguments)

    @cached_property
    def options(self) -> Policy:
        """The options that hold for every job of the kind."""
        return DEFAULT if self.policy is DEFAULT else of_kind(self.policy)

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function) or inspect.isasyncgenfunction(self.function)


def job(
    kind: str,
    *,
    lease: Duration = "30s",
    retries: int = 0,
    retry_on: type[BaseException] | ErrorTypes = BaseException,
    give_up_on: type[BaseException] | ErrorTypes = (),
    **options: Any,
) -> Callable[[Callable[..., Any]], JobType]:
    """Makes a job type from a function `(ctx, **payload)`, sync or async, and registers it for workers of this process.

    `lease` is how long a claim lasts unless renewed (the worker renews it automatically), `retries` how often a failed
    job is retried. An error is retried if it is one of `retry_on` (all, unless given) and none of `give_up_on`. The
    other options are those of `policy`: timeout, priority, backoff, backoff_max, concurrency, rate, unique, unique_for,
    not_before, after, open, needs, ttl, claim, sticky, claim_timeout, budget, score. A kind that ends with a
    dot stands for every kind below it.
    """
    check_kind(kind[:-1] if kind.endswith(".") else kind)
    lease_ms = _lease(lease)["lease_ms"]
    # Defaults are not stored with every job.
    own = ({"lease": lease} if lease_ms != LEASE_MS_DEFAULT else {}) | ({"retries": retries} if retries else {})
    carried = policy(DEFAULT, **own, **options)
    retried, given_up = error_types("retry_on", retry_on), error_types("give_up_on", give_up_on)

    def make(function: Callable[..., Any]) -> JobType:
        made = JobType(
            kind, carried, function, lease_ms or LEASE_MS_DEFAULT, retries, retried, given_up, said(own | options)
        )
        registered = REGISTRY.setdefault(kind, made)
        if registered is not made and not _same_function(registered.function, function):
            raise Usage(f"two handlers for the kind {kind}: {_where(registered.function)} and {_where(function)}")
        REGISTRY[kind] = made
        return made

    return make


def kind(name: str, **options: Unpack[JobOptions]) -> JobType:
    """A job type without a function here: enough to submit jobs of that kind."""
    return JobType(check_kind(name), policy(DEFAULT, **options), said=said(options))


def named_kind(job: JobType[Any, Any] | str) -> JobType:
    """The job type itself, or one for the kind of that name."""
    return _kinds(job) if isinstance(job, str) else job


# Building a job type takes a tenth of the time of a submit, not counting the commit.
_kinds = lru_cache(maxsize=1_024)(kind)

REGISTRY: dict[str, JobType] = {}


class Handlers:
    """The job types that a worker runs, all or only those that some names cover."""

    def __init__(self, types: Iterable[JobType], only: Iterable[str] = ()) -> None:
        self._types = {each.kind: each for each in types if each.function is not None}
        self._prefixes = sorted((kind for kind in self._types if kind.endswith(".")), key=len, reverse=True)
        self._only = tuple(only)

    def __len__(self) -> int:
        return len(self._types)

    def plus(self, one: JobType) -> "Handlers":
        """These and one more."""
        return Handlers([*self._types.values(), one], self._only)

    def kinds(self) -> list[str]:
        """The kinds that this worker runs."""
        return sorted(self.topics())

    def unmatched(self) -> list[str]:
        """Those of the prefixes that match no job type."""
        return [only for only in self._only if not Handlers(self._types.values(), (only,)).topics()]

    def served(self) -> list[JobType]:
        """The job types of which this worker runs jobs."""
        return [each for kind, each in sorted(self._types.items()) if self.find(kind) is not None]

    def topics(self) -> frozenset[str]:
        """The kinds that this worker runs, as topics for a listener."""
        served = {kind for kind in self._types if self.find(kind) is not None}
        inner = [only for only in self._only if any(only.startswith(prefix) for prefix in self._prefixes)]
        return frozenset(served.union(inner))

    def find(self, kind: str) -> JobType | None:
        if self._only and not any(covers(only, kind) for only in self._only):
            return None
        exact = self._types.get(kind)
        if exact is not None:
            return exact
        return next((self._types[prefix] for prefix in self._prefixes if kind.startswith(prefix)), None)

    def takes_all(self, kind: str) -> bool:
        found = self.find(kind)
        return found is not None and found.wants is None

    def wants(self, session: Session, kind: str, schedule: bytes) -> bool:
        """Whether this worker would accept this very job, judged by the op that scheduled it."""
        found = self.find(kind)
        return found is not None and (found.wants is None or found.wants(session, schedule))

    def fits(self, job: Job, labels: Collection[str]) -> bool:
        """Whether a worker with these labels has what the job needs, or else what its handler needs."""
        found = self.find(job.kind)
        needs = () if found is None else job.policy.needs or found.policy.needs
        return not needs or not lacking(needs, labels)

    def options_of(self, kind: str) -> Policy:
        """The options of the handler for this kind."""
        found = self.find(kind)
        return DEFAULT if found is None else found.options

    def lease_of(self, kind: str) -> int | None:
        found = self.find(kind)
        return None if found is None else found.lease_ms


def policy(base: Policy, **options: Any) -> Policy:
    """A policy with options as people write them. Raises Usage with the name of a bad option.

    priority: higher runs sooner · not_before: a datetime, ISO-8601, "+30s" or milliseconds since the epoch · lease,
    backoff, backoff_max, unique_for: durations · timeout: how long one run may take, 0 for no limit · retries: a count
    · after: job ids or handles · unique: a key · concurrency: how many of the kind run at once · rate: "10/s",
    "100/1m" · open: True for jobs that need no decision of the coordinator · needs: labels that the worker must have,
    like "gpu" or "gpu=a100" · ttl: how long the job may wait for its first worker before it is cancelled · claim:
    how a job finds its worker, "first", "rendezvous" or "sticky" · sticky: the member of the payload whose value is the
    key of a sticky job · claim_timeout: how long each rank waits for the one before it · budget: the caps of the job
    and the account that pays, like {"max_cost": 2.5, "charge_to": "acme"}, or the path of a file with them · score: the
    beats of the job, as the path of a file or as its content.
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


def load(modules: Iterable[str]) -> list[JobType]:
    """Imports modules by dotted name or by the path of a .py file; returns every job type registered by then."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in modules:
        try:
            if name.endswith(".py") or "/" in name:
                _import_file(Path(name))
            else:
                importlib.import_module(name)
        except Usage:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise Usage(f"cannot import the handler module {name}: {type(error).__name__}: {error}") from error
    return list(REGISTRY.values())


def _import_file(path: Path) -> None:
    if not path.is_file():
        raise Usage(f"no handler module at {path}")
    # As for a program, the file's directory comes first: it may import its siblings.
    if (directory := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise Usage(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)


def _lease(value: Duration | None) -> dict[str, int | None]:
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


def _moment(value: int | str | datetime) -> int:
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


def _score(value: Any) -> Score | None:
    if value is None or isinstance(value, Score):
        return value
    if isinstance(value, PathLike):
        try:
            return read_score(Path(value).read_bytes())
        except OSError as error:
            raise ValueError(str(error.strerror)) from None
    return parse_score(value if isinstance(value, dict) and "score" in value else {"score": value})


def _budget(value: Any) -> Budget | None:
    if value is None or isinstance(value, Budget):
        return value
    if isinstance(value, PathLike):
        try:
            return read_budget(Path(value).read_bytes())
        except OSError as error:
            raise ValueError(str(error.strerror)) from None
    return parse_budget(value)


_OPTIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "priority": lambda value: {"priority": value},
    "not_before": lambda value: {"not_before": None if value is None else _moment(value)},
    "lease": _lease,
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
    "claim": lambda value: {"claim": value},
    "sticky": lambda value: {"sticky": value},
    "claim_timeout": lambda value: {"claim_timeout_ms": duration_ms(value)},
    "budget": lambda value: {"budget": _budget(value)},
    "score": lambda value: {"score": _score(value)},
}


OPTION_NAMES = frozenset(_OPTIONS)


def _same_function(left: Callable[..., Any] | None, right: Callable[..., Any]) -> bool:
    """Importing a module again defines its handlers again; that is not a conflict."""
    return _where(left) == _where(right)


def _where(function: Callable[..., Any] | None) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
