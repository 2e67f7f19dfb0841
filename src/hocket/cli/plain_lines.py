"""Reads plain command lines: options by their long names, each with a value of its type, and arguments. It reads a line
as typer does, or not at all: typer reads everything else, and explains what is wrong with it. A test compares the two.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from hocket.cli.declarations import REQUIRED, App, Argument, Command, CommandContext, Option, arguments, parameters_of

# Attributes that change neither what a plain line may be nor what it means, and those that are honoured here.
_SHOWN = frozenset({"metavar", "help", "hidden", "show_default"})
_HONOURED = _SHOWN | {"callback", "min", "max"}


class NotPlain(Exception):
    """The line, or what is declared for it, is for typer."""


class Declared:
    """A parameter of a command. It has several values if it `is_list`, and none on the line if it `is_flag`."""

    def __init__(self, name: str, declared: Option | Argument, kind: type, is_list: bool, default: Any) -> None:
        self.name, self.declared, self.kind = name, declared, kind
        self.is_list, self.is_flag, self.default = is_list, kind is bool, default

    def value(self, text: str) -> Any:
        try:
            value = self.kind(text)
        except ValueError:
            raise NotPlain from None
        low, high = self.declared.attributes.get("min"), self.declared.attributes.get("max")
        if (low is not None and value < low) or (high is not None and value > high):
            raise NotPlain
        return value

    def noted(self, value: Any) -> Any:
        """The value as the parameter's callback returns it, which is called in any case."""
        callback = self.declared.attributes.get("callback")
        return value if callback is None else callback(value)


def declared(function: Callable[..., Any]) -> Iterator[Declared]:
    """The parameters of a command but for its context. Raises NotPlain if there is one that only typer can read."""
    for name, annotation, default in parameters_of(function):
        if annotation is CommandContext:
            continue
        if not hasattr(annotation, "__metadata__"):
            raise NotPlain
        parameter, kind = annotation.__metadata__[0], annotation.__origin__
        if not isinstance(parameter, Option | Argument) or not _HONOURED.issuperset(parameter.attributes):
            raise NotPlain
        if get_origin(kind) in (UnionType, Union):
            kind = next(each for each in get_args(kind) if each is not NoneType)
        is_list = get_origin(kind) is list
        if is_list:
            (kind,) = get_args(kind)
        if kind not in (str, int, float, bool, Path) and not (isinstance(kind, type) and issubclass(kind, Enum)):
            raise NotPlain
        yield Declared(name, parameter, kind, is_list, default)


def read(function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """The values of a command's parameters, from the words after its name, without a call of their callbacks. Raises
    NotPlain.
    """
    parameters = list(declared(function))
    options = {
        name: (each, is_off)
        for each in parameters
        if isinstance(each.declared, Option)
        for names in each.declared.names
        for is_off, name in enumerate(names.split("/"))
    }
    values: dict[str, Any] = {}
    rest: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        name, has_value, text = word.partition("=")
        if name not in options:
            raise NotPlain
        option, is_off = options[name]
        if option.is_flag:
            if has_value:
                raise NotPlain
            values[option.name] = not is_off
            continue
        if not has_value:
            if not words or (words[0].startswith("-") and words[0] != "-"):
                raise NotPlain
            text = words.pop(0)
        value = option.value(text)
        values[option.name] = [*values.get(option.name, ()), value] if option.is_list else value
    places = [each for each in parameters if isinstance(each.declared, Argument)]
    if any(each.is_list for each in places) and len(places) > 1:
        raise NotPlain
    for argument in places:
        if argument.is_list and rest:
            values[argument.name], rest = [argument.value(each) for each in rest], []
        elif rest:
            values[argument.name] = argument.value(rest.pop(0))
    values = {each.name: values.get(each.name, each.default) for each in parameters}
    if rest or any(each is REQUIRED for each in values.values()):
        raise NotPlain
    return values


def call(function: Callable[..., Any], values: dict[str, Any]) -> None:
    """Calls a command with the values that `read` gave."""
    noted = {each.name: each.noted(values[each.name]) for each in declared(function)}
    contexts = [name for name, kind, _ in parameters_of(function) if kind is CommandContext]
    function(**arguments(function, noted), **{name: CommandContext(noted) for name in contexts})


def chosen(app: object, words: Sequence[str]) -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    """What a line runs: the command of an app; of a group, what comes before each of its commands, and the command.
    Raises NotPlain.
    """
    if not isinstance(app, App) or app.has_groups:
        raise NotPlain
    if app.group is None:
        if len(app.commands) != 1:
            raise NotPlain
        return [_plain(app.commands[0], words)]
    names = {each.name or each.function.__name__.replace("_", "-"): each for each in app.commands}
    if app.group.attributes or not words or words[0] not in names:
        raise NotPlain
    return [_plain(app.group, ()), _plain(names[words[0]], words[1:])]


def _plain(command: Command, words: Sequence[str]) -> tuple[Callable[..., Any], dict[str, Any]]:
    if command.attributes:
        raise NotPlain
    return command.function, read(command.function, words)
