"""Commands of operations: their arguments and options come from the operation's parameters, what they print from its
answer. `hocket show` has one option more, an archive, which is not for programs over HTTP.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin

from hocket.api import ListPage, Service, ServiceAnswer
from hocket.api.operation import Form, Input, InShell, Operation, OperationGroup
from hocket.api.views import Line, Pairs, Table, Terminal, View
from hocket.cli.declarations import REQUIRED, App, Argument, CommandContext, Option
from hocket.cli.options import GROUPS, ArchiveOption, job_options, milliseconds, payload
from hocket.cli.printing import emit, fields, notice, on_terminal, say, table
from hocket.cli.settings import open_service, settings

P = ParamSpec("P")
A = TypeVar("A")

Declaration = tuple[str, Any, Any]


class OperationCommand:
    """Its `declarations`, the name, annotation and default of each parameter, are read as a function's."""

    def __init__(self, operation: Operation[..., Any]) -> None:
        self._operation = operation
        self._spelled = [_Spelled(each) for each in operation.parameters]
        self.__name__ = self.__qualname__ = operation.name
        self.__module__ = operation.function.__module__
        self.__doc__ = operation.__doc__

    @property
    def declarations(self) -> list[Declaration]:
        return [declared for spelled in self._spelled for declared in spelled.declarations]

    def __call__(self, **values: Any) -> None:
        with open_service() as service:
            read = {each.name: each.value(service, values) for each in self._spelled}
            answer = self._operation(service, **read)
            named = _names(service, self._operation)
            if isinstance(answer, Iterator):
                for each in answer:
                    show(self._operation, each, *named)
                    sys.stdout.flush()
                return
        show(self._operation, answer, *named)


class _Spelled:
    """A parameter of an operation as an argument or an option. The one of an earlier name is hidden."""

    def __init__(self, parameter: Input) -> None:
        self.name, self._default = parameter.name, parameter.default
        self._spelling = parameter.note(InShell) or InShell()
        if self._spelling.options_of is None:
            self.declarations = list(self._declared(parameter))
        else:
            self.declarations = [(name, each, None) for name, each in GROUPS[self._spelling.options_of].items()]

    def _declared(self, parameter: Input) -> Iterator[Declaration]:
        spelling, attributes = self._spelling, dict[str, Any](help=self._spelling.help or parameter.description)
        if spelling.metavar is not None:
            attributes["metavar"] = spelling.metavar
        kind, default = _shell_type(parameter, spelling.form), parameter.default
        if kind in (int, float):
            attributes |= {name: value for name, value in parameter.bounds.items() if value is not None}
        if not parameter.is_required and default in (None, ""):
            attributes["show_default"] = False
        declared: Argument | Option
        if spelling.is_argument or (parameter.is_required and spelling.name is None):
            attributes.setdefault("metavar", self.name.upper())
            declared = Argument(**attributes)
        else:
            if kind in (str, int):
                attributes.setdefault("metavar", self.name.upper())
            declared = Option(spelling.name or f"--{self.name.replace('_', '-')}", **attributes)
        given = default if spelling.form is None and isinstance(default, str | int | float) else None
        if not parameter.is_required and given is None:
            kind = kind | None
        yield self.name, Annotated[kind, declared], REQUIRED if parameter.is_required else given
        if spelling.earlier is not None:
            yield f"earlier_{self.name}", Annotated[str | None, Option(spelling.earlier, hidden=True)], None

    def value(self, service: Service, values: dict[str, Any]) -> Any:
        if self._spelling.options_of is not None:
            return job_options({name: values[name] for name, _, _ in self.declarations})
        given = values[self.name]
        if given is None:
            given = values.get(f"earlier_{self.name}")
        if given is None:
            return self._default
        if self._spelling.form is None:
            return given.value if isinstance(given, StrEnum) else given
        return READERS[self._spelling.form](service, given, self._spelling.name or self.name)


def _shell_type(parameter: Input, form: Form | None) -> Any:
    if form is not None:
        return str
    kind = parameter.kind
    if get_origin(kind) is Literal:
        return StrEnum(parameter.name, {each.replace("-", "_"): each for each in get_args(kind)})
    return list[str] if get_origin(kind) in (list, Sequence) else kind


def _length(service: Service, text: str, name: str) -> Any:
    from hocket.errors import Usage

    try:
        return service.runtime.hold_length(text)
    except ValueError as error:
        raise Usage(f"bad {name.lstrip('-')}: {error}") from None


def _duration(service: Service, text: str, name: str) -> int:
    return milliseconds(text, name)


def _json(service: Service, text: str, name: str) -> Any:
    return payload(text)


READERS: dict[Form, Callable[[Service, str, str], Any]] = {"json": _json, "duration": _duration, "length": _length}


def app_of_group(group: OperationGroup) -> App:
    def begin(context: CommandContext) -> None:
        if group.alone is not None and context.invoked_subcommand is None:
            perform(group.alone)

    begin.__doc__ = group.help
    app = App()
    app.callback(**({} if group.alone is None else {"invoke_without_command": True}))(begin)
    add_operations(app, *group.operations)
    return app


def add_operations(app: App, *operations: Operation[..., Any]) -> None:
    """Adds the commands of operations to a group, each under the last word of its command."""
    for operation in operations:
        assert operation.command is not None
        app.command(operation.command.rpartition(" ")[2])(OperationCommand(operation))


def perform(operation: Operation[P, A], *args: P.args, **kwargs: P.kwargs) -> A:
    """Does it for a command that is more than one operation, and prints the answer."""
    with open_service() as service:
        answer = operation(service, *args, **kwargs)
        named = _names(service, operation)
    show(operation, answer, *named)
    return answer


def _names(service: Service, operation: Operation[..., Any]) -> tuple[dict[str, str], ...]:
    return (service.names(),) if operation.names_nodes else ()


def show(operation: Operation[..., Any], answer: Any, *named: dict[str, str]) -> None:
    emit(answer.items if isinstance(answer, ListPage) else answer)
    if isinstance(answer, ServiceAnswer):
        answer.ensure()
    draw(operation.show(answer, *named))
    if isinstance(answer, ListPage) and answer.next is not None and not settings.as_json:
        notice(f"there are more: continue with --after {answer.next!r}")


def draw(views: Iterable[View]) -> None:
    for view in views:
        match view:
            case Terminal(terminal, pipe):
                draw([terminal if on_terminal() else pipe])
            case Line(text, style, lines):
                say(text, style, lines=lines)
            case Pairs(pairs):
                fields(pairs)
            case Table(columns, rows, empty, is_cut):
                table(columns, rows, empty, is_cut=is_cut)


def show_job(
    job: Annotated[str, Argument("JOB", "A job id, or a unique beginning or end of one.")],
    archive: ArchiveOption = None,
) -> None:
    """Show everything about one job: state, payload, result, error with traceback, and its ops.

    \b
      hocket show 01J9ZC
      hocket show 01J9ZC --json | jq .result
      hocket show 01J9ZC7K2QWE --archive /backup/hocket
    """
    from hocket.api import jobs

    settings.archive = archive
    perform(jobs.show, job)
