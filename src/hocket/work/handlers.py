"""Job types: a kind, the options of its jobs, and the function that runs them. `@job` makes one from a function. The
worker finds the job type of a job by its kind: an exact match first, then the longest prefix that ends with a dot.
"""

import importlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from inspect import Parameter
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Generic, Unpack, cast

import msgspec
import msgspec.inspect

from hocket.errors import Failed, Usage
from hocket.families.jobs.drafts import Duration, JobOptions, encode_payload, lease_members, policy, said
from hocket.families.jobs.requests import Draft, check_kind
from hocket.families.jobs.tracing import current_trace
from hocket.families.kinds.facts import DefineKind
from hocket.kernel.arbitration import Reason
from hocket.kernel.decoding import convert, json_decoder
from hocket.kernel.policy import DEFAULT, LEASE_MS_DEFAULT, Policy, covers, encode_policy, is_placed, lacking, of_kind
from hocket.log import Transaction
from hocket.store import Session
from hocket.work.handler_errors import ErrorTypes, Fatal, error_types

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    # With the defaults, a bare `JobType` is one of any payload and any result.
    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import ParamSpec, TypeVar

    P, R_co = ParamSpec("P"), TypeVar("R_co", covariant=True)

# Stands for a member that the payload leaves out; the function has a default for it.
_ABSENT: Any = object()


class PayloadRejected(Fatal):
    """The payload of a job does not fit the handler that is about to run it. A retry cannot help."""


class HandlerSignature:
    """The parameters and the result of one handler. Annotations are resolved on first use, because they may name types
    that the module defines after the handler.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._name = getattr(function, "__qualname__", repr(function))
        try:
            found = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # some builtins do not tell
            found = [Parameter("args", Parameter.VAR_POSITIONAL), Parameter("kwargs", Parameter.VAR_KEYWORD)]
        self.takes_context = _takes_context(found)
        """Whether the first argument is the context. A handler may do without."""
        parameters = found[1:] if self.takes_context else found
        self._takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
        named = [each for each in parameters if each.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)]
        hidden = [each.name for each in named if each.kind is Parameter.POSITIONAL_ONLY]
        if hidden:
            raise Usage(
                f"the handler {self._name} takes {hidden[0]!r} by position only; the members of a payload have names"
            )
        self._parameters = {each.name: each for each in named}
        self._by_position = [each.name for each in named if each.kind is Parameter.POSITIONAL_OR_KEYWORD]

    def named(self, kind: str, args: tuple[Any, ...], payload: dict[str, Any]) -> dict[str, Any]:
        """The payload with the arguments that were given by position. Raises Usage if there are too many."""
        if len(args) > len(self._by_position):
            raise Usage(f"{kind} takes {len(self._by_position)} members of a payload by position, not {len(args)}")
        by_position = dict(zip(self._by_position, args, strict=False))
        if twice := sorted(by_position.keys() & payload.keys()):
            raise Usage(f"the member {twice[0]!r} of the payload of {kind} is given twice")
        return by_position | payload

    def check(self, payload: bytes) -> Any:
        """The payload as a value with the members as attributes. Raises ValueError, with the name of the member, if one
        is missing, unknown or of the wrong type.
        """
        return self._decoder.decode(payload or b"{}")

    def arguments(self, payload: bytes) -> dict[str, Any]:
        """The keyword arguments of the handler. Raises ValueError as `check` does."""
        checked = self.check(payload)
        given = {name: value for name in self._parameters if (value := getattr(checked, name)) is not _ABSENT}
        if not self._takes_any:
            return given
        return cast(dict[str, Any], msgspec.json.decode(payload or b"{}")) | given

    def result(self, job_id: str, value: Any) -> Any:
        """The decoded result of a job as the type that the handler says it returns. Raises Failed if it is another."""
        returns = self._hints.get("return", Any)
        if inspect.isgeneratorfunction(self._function) or inspect.isasyncgenfunction(self._function):
            returns = _of_parts(returns)
        # Of a handler that returns nothing, the parts together are the result.
        if returns is type(None) or not _is_checkable(returns):
            return value
        try:
            return convert(value, returns, str_keys=True, hook=decode_hook)
        except msgspec.ValidationError as error:
            raise Failed(f"the result of job {job_id} is not what {self._name} returns: {error}") from None

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        fields = []
        for name, parameter in self._parameters.items():
            hint = self._hints.get(name, Any)
            checked = hint if _is_checkable(hint) else Any
            is_needed = parameter.default is Parameter.empty
            fields.append((name, checked, msgspec.NODEFAULT if is_needed else _ABSENT))
        taken = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=not self._takes_any)
        return json_decoder(taken, hook=decode_hook)

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        try:
            return typing.get_type_hints(self._function, include_extras=True)
        except Exception:  # an annotation may name anything, also what only a type checker imports
            found = getattr(self._function, "__annotations__", {})
            return {name: hint for name, hint in found.items() if not isinstance(hint, str)}


def decode_hook(wanted: type, value: Any) -> Any:
    """Reads what `families.json_values` writes as text."""
    if issubclass(wanted, PurePath) and isinstance(value, str):
        return wanted(value)
    raise TypeError(f"Expected `{wanted.__name__}`, got `{type(value).__name__}`")


def _of_parts(hint: Any) -> Any:
    """The type of the result of a generator: what it returns, or else its parts, joined if they are text or bytes."""
    yielded, *rest = typing.get_args(hint) or (Any,)
    if typing.get_origin(hint) is Generator and rest[1:] != [type(None)]:
        return rest[1]
    if yielded is Any:
        return Any
    whole: Any = yielded if yielded in (str, bytes) else list.__class_getitem__(yielded)
    return whole | None


def _takes_context(parameters: list[Parameter]) -> bool:
    if not parameters:
        return False
    first = parameters[0]
    if first.kind is Parameter.POSITIONAL_OR_KEYWORD:
        return first.name == "ctx" or first.name.startswith("_") or _is_context(first.annotation)
    return first.kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL)


def _is_context(annotation: Any) -> bool:
    """Whether the annotation is `Context`, under whatever path. Annotations may be text."""
    named = annotation if isinstance(annotation, str) else typing.get_origin(annotation) or annotation
    text = named if isinstance(named, str) else getattr(named, "__name__", "")
    return text.partition("[")[0].rpartition(".")[2] == "Context"


def _is_checkable(hint: Any) -> bool:
    """Whether msgspec can check values against the annotation and turn JSON into them."""
    try:
        return all(issubclass(each, PurePath) for each in _classes(msgspec.inspect.type_info(hint)))
    except Exception:
        return False


def _classes(info: Any) -> Iterator[type]:
    """The classes in a type that msgspec knows nothing about, also inside collections and unions."""
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    for name in ("item_type", "key_type", "value_type"):
        if hasattr(info, name):
            yield from _classes(getattr(info, name))
    for name in ("item_types", "types"):
        for part in getattr(info, name, ()):
            yield from _classes(part)


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
    is_isolated: bool = False
    """Whether its function runs each job in processes of their own."""
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
        """Returns a copy of this job type with other options for its jobs (see `policy` for their meaning)."""
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
    not_before, after, open, needs, ttl, claim, sticky, claim_timeout, budget, score. A kind that ends with a dot stands
    for every kind below it.
    """
    check_kind(kind[:-1] if kind.endswith(".") else kind)
    lease_ms = lease_members(lease)["lease_ms"]
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

    def fits(self, kind: str, policy: Policy, labels: Collection[str]) -> bool:
        """Whether a worker with these labels has what a job of this kind and policy needs, or else what its handler
        needs.
        """
        found = self.find(kind)
        needs = () if found is None else policy.needs or found.policy.needs
        return not needs or not lacking(needs, labels)

    def options_of(self, kind: str) -> Policy:
        """The options of the handler for this kind."""
        found = self.find(kind)
        return DEFAULT if found is None else found.options

    def lease_of(self, kind: str) -> int | None:
        found = self.find(kind)
        return None if found is None else found.lease_ms


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


def _same_function(left: Callable[..., Any] | None, right: Callable[..., Any]) -> bool:
    """Importing a module again defines its handlers again; that is not a conflict."""
    return _where(left) == _where(right)


def _where(function: Callable[..., Any] | None) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"


def define_kinds(tx: Transaction, handlers: Handlers) -> list[str]:
    """Writes the options of the kinds that have other ones on the log. Returns the kinds that this node may not define,
    if that matters: their options also say how jobs wait, which only a submitter writes down. In a strict mesh nothing
    is written: Likewise v0.1 has no op for it.
    """
    refused = []
    for each in () if tx.is_strict else handlers.served():
        options = each.options
        if options == tx.projection.defaults(each.kind):
            continue
        if isinstance(tx.author(DefineKind(each.kind, encode_policy(options))), Reason) and is_placed(options):
            refused.append(each.kind)
    return refused
