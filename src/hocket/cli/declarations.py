"""How a command declares its arguments and options. Typer reads them for help, for completion and for every command
line that is not plain; loading it takes longer than most commands run, so nothing here loads it.

Plain command lines are read here: options by their long names, each with a value of its type, and arguments. A line is
read as typer does it, or not at all: typer reads everything else, and explains what is wrong with it. A test compares
the two.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin

from hocket.cli.settings import settings

if TYPE_CHECKING:
    import typer


# Set by a shell that asks for completions.
COMPLETION = "_HOCKET_COMPLETE"
# The default of a parameter that has none.
REQUIRED: Any = object()

F = TypeVar("F", bound=Callable[..., Any])

# Help is plain, without boxes. Errors go to `hocket.cli.main`.
TYPER_OPTIONS: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 110},
}


class Parameter:
    """Stands in an annotation: `limit: Annotated[int, Option("--limit", "N", "How many at most.")]`. `metavar` is what
    its value is called. The attributes are typer's.
    """

    __slots__ = ("attributes", "names")

    def __init__(self, names: str, **attributes: Any) -> None:
        self.names, self.attributes = names.split(), attributes


class Option(Parameter):
    """`names` are one or several, with spaces between them."""

    __slots__ = ()

    def __init__(self, names: str, metavar: str | None = None, help: str | None = None, **attributes: Any) -> None:
        super().__init__(names, metavar=metavar, help=help, **attributes)


class Argument(Parameter):
    __slots__ = ()

    def __init__(self, metavar: str | None = None, help: str | None = None, **attributes: Any) -> None:
        super().__init__("", metavar=metavar, help=help, **attributes)


class OptionGroup:
    """Stands in an annotation, like `options: Annotated[dict[str, Any], OptionGroup(...)]`, for options that several
    commands have, each with an annotation of its own. The parameter gets their values by name.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options


def _note_home(value: Path | None) -> Path | None:
    if value is not None:
        settings.home = value
    return value


def _note_json(value: bool) -> bool:
    settings.as_json = settings.as_json or value
    return value


HomeOption = Annotated[
    Path | None, Option("--home", "DIR", "The node's home; default $HOCKET_HOME, else ~/.hocket.", callback=_note_home)
]
JsonOption = Annotated[bool, Option("--json", help="Answer in JSON, for programs.", callback=_note_json)]
# The options that the program and each command have, so that they work before and after its name; the last one given
# counts. The name, the annotation and the default of each. A command is called without them.
COMMON: tuple[tuple[str, Any, Any], ...] = (("home", HomeOption, None), ("as_json", JsonOption, False))


class CommandContext:
    """What a command was called with. Typer gives its own, with the same attributes."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params
        self.meta: dict[str, Any] = {}
        self.invoked_subcommand: str | None = None


class Command:
    """`attributes` are typer's. `cls` among them is the place of a class, like `typer_program:RunCommand`."""

    def __init__(self, name: str | None, function: Callable[..., Any], attributes: dict[str, Any]) -> None:
        self.name, self.function, self.attributes = name, function, attributes


class App:
    """A command, or a group of commands."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.group: Command | None = None
        self._groups: list[tuple[App, str]] = []

    def command(self, name: str | None = None, **attributes: Any) -> Callable[[F], F]:
        def declare(function: F) -> F:
            self.commands.append(Command(name, function, attributes))
            return function

        return declare

    def callback(self, **attributes: Any) -> Callable[[F], F]:
        """Declares what runs before each command of a group."""

        def declare(function: F) -> F:
            self.group = Command(None, function, attributes)
            return function

        return declare

    def add_group(self, app: "App", name: str) -> None:
        self._groups.append((app, name))

    @property
    def has_groups(self) -> bool:
        return bool(self._groups)

    def typer(self, **attributes: Any) -> "typer.Typer":
        """Builds the typer application of these commands and groups."""
        import typer

        made = typer.Typer(add_completion=False, **TYPER_OPTIONS, **attributes)
        if self.group is not None:
            made.callback(**self.group.attributes)(for_typer(self.group.function))
        for each in self.commands:
            place = each.attributes.get("cls")
            more = {} if place is None else {"cls": loaded(place)}
            made.command(each.name, **(each.attributes | more))(for_typer(each.function))
        for app, name in self._groups:
            made.add_typer(app.typer(), name=name)
        return made


def loaded(place: str) -> Any:
    """What has this place in the command line's modules, `jobs:app`, or in another folder, `api.nodes:drain`."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"hocket.{'' if '.' in module else 'cli.'}{module}"), name)


def parameters_of(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """The name, the annotation and the default of each parameter, with groups of options one by one, and of the options
    of every command. The command of an operation says its own.
    """
    own: list[tuple[str, Any, Any]] | None = getattr(function, "declarations", None)
    if own is None:
        code, defaults = function.__code__, function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)) | (function.__kwdefaults__ or {})
        annotations = function.__annotations__
        own = []
        for each in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            if (group := _group(annotations[each])) is None:
                own.append((each, annotations[each], given.get(each, REQUIRED)))
            else:
                own += [(name, annotation, None) for name, annotation in group.options.items()]
    known = {name for name, _, _ in own}
    return [*own, *(each for each in COMMON if each[0] not in known)]


def arguments(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """What a command is called with: each group of options as one, and nothing of the options of every command."""
    groups = {
        name: group
        for name, annotation in getattr(function, "__annotations__", {}).items()
        if (group := _group(annotation)) is not None
    }
    grouped = {name for group in groups.values() for name in group.options} | {name for name, _, _ in COMMON}
    return {name: value for name, value in values.items() if name not in grouped} | {
        name: {each: values[each] for each in group.options} for name, group in groups.items()
    }


def _group(annotation: Any) -> OptionGroup | None:
    first = getattr(annotation, "__metadata__", (None,))[0]
    return first if isinstance(first, OptionGroup) else None


def for_typer(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with typer's own declarations in its signature."""
    from inspect import Parameter, Signature

    def called(**values: Any) -> Any:
        return function(**arguments(function, values))

    parameters = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            annotation=_typer_type(annotation),
            default=Parameter.empty if default is REQUIRED else default,
        )
        for name, annotation, default in parameters_of(function)
    ]
    called.__name__, called.__doc__ = function.__name__, function.__doc__
    called.__module__, called.__qualname__ = function.__module__, function.__qualname__
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return called


def _typer_type(annotation: Any) -> Any:
    import typer

    if annotation is CommandContext:
        return typer.Context
    if get_origin(annotation) is not Annotated or not isinstance(declared := annotation.__metadata__[0], Parameter):
        return annotation
    kind = typer.Option if isinstance(declared, Option) else typer.Argument
    attributes = dict(declared.attributes)
    if COMPLETION in os.environ and "metavar" in attributes:
        from hocket.cli.typer_program.completion import offers

        attributes["autocompletion"] = offers(attributes["metavar"])
    return Annotated[annotation.__origin__, kind(*declared.names, **attributes)]


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
