"""`@hocket.job`, with types: a type checker sees the parameters of the function, without the context, as the payload
that `submit` takes, and what it returns as the result of the job.
"""

import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from hocket.errors import Usage
from hocket.families.jobs.drafts import HandlerOptions
from hocket.work import handlers
from hocket.work.context import Context
from hocket.work.handlers import JobType

P = ParamSpec("P")
R = TypeVar("R")
# What a generator yields whose parts are joined.
S = TypeVar("S", str, bytes)


class JobDecorator(Protocol):
    """Makes a job type from a function, sync or async, with or without a context as its first parameter."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context[Any], P], AsyncIterator[S]], /) -> JobType[P, S]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context[Any], P], Iterator[S]], /) -> JobType[P, S]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context[Any], P], Coroutine[Any, Any, R]], /
    ) -> JobType[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context[Any], P], R], /) -> JobType[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobType[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobType[P, R]: ...


@overload
def job(kind: str | None = None, /, **options: Unpack[HandlerOptions]) -> JobDecorator: ...
@overload
def job(function: Callable[Concatenate[Context[Any], P], AsyncIterator[S]], /) -> JobType[P, S]: ...
@overload
def job(function: Callable[Concatenate[Context[Any], P], Iterator[S]], /) -> JobType[P, S]: ...
@overload
def job(function: Callable[Concatenate[Context[Any], P], Coroutine[Any, Any, R]], /) -> JobType[P, R]: ...
@overload
def job(function: Callable[Concatenate[Context[Any], P], R], /) -> JobType[P, R]: ...
@overload
def job(function: Callable[P, Coroutine[Any, Any, R]], /) -> JobType[P, R]: ...
@overload
def job(function: Callable[P, R], /) -> JobType[P, R]: ...
def job(kind: Any = None, /, **options: Any) -> Any:
    """Makes a job type from a function, sync or async, and registers it for workers of this process. The function takes
    the context, if its first parameter is called `ctx` or annotated with `Context`, and the members of the payload.

    `lease` is how long a claim lasts unless renewed (the worker renews it automatically), `retries` how often a failed
    job is retried. An error is retried if it is one of `retry_on` (all, unless given) and none of `give_up_on`. The
    other options are those of `policy`: timeout, priority, backoff, backoff_max, concurrency, rate, unique, unique_for,
    not_before, after, open, needs, ttl, claim, sticky, claim_timeout, budget, score. A kind that ends with a
    dot stands for every kind below it. Without a kind, the names of the module and the function are the kind.
    """
    if callable(kind):
        return handlers.job(_kind_of(kind))(kind)
    if kind is None:
        return lambda function: handlers.job(_kind_of(function), **options)(function)
    return handlers.job(kind, **options)


def _kind_of(function: Callable[..., Any]) -> str:
    name, module = getattr(function, "__name__", None), getattr(function, "__module__", None)
    if name is None or module is None:
        raise Usage(f"{function!r} has no name; give its kind, like @hocket.job('acme.render')")
    if isinstance(function, JobType):
        raise Usage(f"{function.kind} is a job type already")
    return f"{_main_module() if module == '__main__' else module}.{name}"


def _main_module() -> str:
    """The name under which a worker would import the program that runs."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return "__main__" if file is None else Path(file).stem
