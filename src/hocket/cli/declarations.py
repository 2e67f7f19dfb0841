"""How a command declares its arguments and options. Typer reads them for help, for completion and for every command
line that is not plain; loading it takes longer than most commands run, so nothing here loads it. `plain_lines` reads
plain command lines without it.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_origin

from hocket.cli.settings import settings

if TYPE_CHECKING:
    import typer

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
    """Stands in an annotation: `limit: Annotated[int, Option("--limit", metavar="N")]`. The attributes are typer's."""

    __slots__ = ("attributes", "names")

    def __init__(self, *names: str, **attributes: Any) -> None:
        self.names, self.attributes = names, attributes


class Option(Parameter):
    __slots__ = ()


class Argument(Parameter):
    __slots__ = ()


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
    Path | None,
    Option("--home", metavar="DIR", help="The node's home; default $HOCKET_HOME, else ~/.hocket.", callback=_note_home),
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
    """`attributes` are typer's. `cls` among them is the place of a class, like `lock_command:RunCommand`."""

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

    def typer(self) -> "typer.Typer":
        """Builds the typer application of these commands and groups."""
        import typer

        made = typer.Typer(add_completion=False, **TYPER_OPTIONS)
        if self.group is not None:
            made.callback(**self.group.attributes)(for_typer(self.group.function))
        for each in self.commands:
            place = each.attributes.get("cls")
            more = {} if place is None else {"cls": loaded(place)}
            made.command(each.name, **(each.attributes | more))(for_typer(each.function))
        for app, name in self._groups:
            made.add_typer(app.typer(), name=name)
        return made


def new_app() -> App:
    return App()


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
    return Annotated[annotation.__origin__, kind(*declared.names, **declared.attributes)]
