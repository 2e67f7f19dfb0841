"""What a handler takes and returns, read from its signature. A payload must have exactly the members that the function
takes, with values of the annotated types; msgspec checks that when a job is submitted and again before it runs. An
annotation that msgspec cannot check is not checked.
"""

import inspect
import typing
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cached_property
from inspect import Parameter
from pathlib import PurePath
from typing import Any, cast

import msgspec
import msgspec.inspect

from hocket.errors import Failed, Usage
from hocket.kernel.decoding import convert, json_decoder
from hocket.work.retrying import Fatal

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
    """Reads what `json_values` writes as text."""
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
