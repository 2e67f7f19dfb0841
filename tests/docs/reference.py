"""The pages of the reference that come from the code itself: Python, the command line, HTTP. The site has them; nothing
of them is kept, so they cannot be out of date.
"""

import inspect
import re
from collections.abc import Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, Unpack, get_args, get_origin

import click
import typer.main

import hocket
from hocket.api.admin import Method, StreamMethod
from hocket.api.operation import Operation
from hocket.cli import typer_program
from hocket.server.description import describe
from hocket.server.routes import ROUTES
from tests.docs.reader import ROOT

WIDTH = 100
# What a class has because it is a struct, an exception or a generic.
INHERITED = (object, BaseException, Exception)


def pages() -> dict[str, str]:
    return {
        "reference/python.md": python(),
        "reference/cli.md": command_line(),
        "reference/http.md": http(),
    }


def fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def type_text(of: Any) -> str:
    """A type in few words: without bounds, descriptions and the names of modules."""
    arguments = get_args(of)
    if get_origin(of) is Annotated:
        return type_text(arguments[0])
    if get_origin(of) in (Union, UnionType):
        return " | ".join(map(type_text, arguments))
    if get_origin(of) is Unpack:
        return type_text(arguments[0])
    if of in (None, NoneType):
        return "None"
    if isinstance(of, list):
        return f"[{', '.join(map(type_text, of))}]"
    if arguments and (origin := get_origin(of)) is not None:
        name = "Literal" if origin is Literal else getattr(origin, "__name__", str(origin))
        inner = map(repr, arguments) if origin is Literal else map(type_text, arguments)
        return f"{name}[{', '.join(inner)}]"
    if isinstance(of, str):
        return of
    return "..." if of is ... else str(getattr(of, "__name__", of)).lstrip("~+-")


def parameter_text(of: inspect.Parameter) -> str:
    star = {of.VAR_POSITIONAL: "*", of.VAR_KEYWORD: "**"}.get(of.kind, "")
    text = star + of.name + (f": {type_text(of.annotation)}" if of.annotation is not of.empty else "")
    if of.default is of.empty:
        return text
    return f"{text} = {'…' if repr(of.default).startswith('<') else repr(of.default)}"


def signature(name: str, of: inspect.Signature) -> str:
    texts: list[str] = []
    last = None
    for each in of.parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and last not in (each.KEYWORD_ONLY, each.VAR_POSITIONAL):
            texts.append("*")
        texts.append(parameter_text(each))
        last = each.kind
    answer = "" if of.return_annotation is of.empty else f" -> {type_text(of.return_annotation)}"
    line = f"{name}({', '.join(texts)}){answer}"
    return line if len(line) <= WIDTH else f"{name}(\n    " + ",\n    ".join(texts) + f",\n){answer}"


@cache
def described() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))


def is_described(name: str) -> bool:
    """Whether a page shows the name in code. What none shows may change between versions."""
    return re.search(rf"\.{name}\(|`{name}[`(]", described()) is not None


class Member(NamedTuple):
    name: str
    shown: str
    text: str


def members(of: type) -> Iterator[Member]:
    """The public methods and properties. A method of `Admin` is an operation without its first arguments."""
    for name in sorted(dir(of)):
        value = inspect.getattr_static(of, name)
        if name.startswith("_") or any(name in vars(base) for base in INHERITED) or not is_described(name):
            continue
        if isinstance(value, Method | StreamMethod):
            behind: Any = vars(value).get("_function") or vars(value)["_operation"]
            function = behind.function if isinstance(behind, Operation) else behind
            bare = inspect.signature(function)
            rest = [*bare.parameters.values()][2 if isinstance(behind, Operation) and behind.waits else 1 :]
            yield Member(name, signature(name, bare.replace(parameters=rest)), documented(value))
        elif inspect.isfunction(value):
            yield Member(name, signature(name, inspect.signature(value)), documented(value))
        elif isinstance(value, property):
            yield Member(name, name, documented(value))


def documented(of: Any) -> str:
    """The docstring, but not one that a class has from its base."""
    own = vars(of).get("__doc__") if isinstance(of, type) else of.__doc__
    return inspect.cleandoc(own).replace("<", "&lt;") if own else ""


def python() -> str:
    lines = [
        "# Python: all names",
        "",
        "Every public name of `hocket` with its signature and docstring, for looking up; made from the code.",
        "[Python](../python.md) explains them with examples.",
    ]
    for name in sorted(hocket.__all__, key=str.lower):
        value = getattr(hocket, name)
        lines += ["", f"## {name}", ""]
        if not isinstance(value, type):
            lines += [fenced(signature(f"hocket.{name}", inspect.signature(value)), "py"), ""]
        lines.append(documented(value))
        if isinstance(value, type) and value is not hocket.AsyncAdmin:
            for each in members(value):
                lines += ["", f"### {name}.{each.name}", "", fenced(each.shown, "py"), "", each.text]
    return "\n".join([*lines, ""])


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Each command below this one, with its whole name and its help."""
    if isinstance(command, click.Group) or hasattr(command, "list_commands"):
        for name in command.list_commands(context):  # type: ignore[union-attr]
            inner = command.get_command(context, name)  # type: ignore[union-attr]
            if inner is not None and not inner.hidden:
                yield from commands(inner, type(context)(inner, info_name=name, parent=context))
    else:
        yield context.command_path, command.get_help(context)


def command_line() -> str:
    program = typer.main.get_command(typer_program.app)
    context = program.context_class(program, info_name="hocket", terminal_width=WIDTH, max_content_width=WIDTH)
    lines = [
        "# Command line: all commands",
        "",
        "The help of every command, for looking up; made from the program.",
        "[Command line](../cli.md) explains them with examples.",
    ]
    for name, text in commands(program, context):
        lines += ["", f"## {name.removeprefix('hocket ')}", "", fenced(text)]
    return "\n".join([*lines, ""])


def http() -> str:
    lines = [
        "# HTTP: all routes",
        "",
        "Every route of `/v1` with what it does and its parameters, for looking up; made from the description that the",
        "server answers at `/v1/openapi.json`. [HTTP API](../http.md) explains tokens, errors and streams.",
    ]
    for path, operations in describe(ROUTES)["paths"].items():
        for method, operation in operations.items():
            text = operation["description"].replace("<", "&lt;")
            lines += ["", f"## {method.upper()} {path}", "", text]
            rows = [each for each in operation["parameters"] if "$ref" not in each]
            if rows:
                lines += ["", "| parameter | in | |", "|---|---|---|"]
                lines += [f"| `{each['name']}` | {each['in']} | {about(each)} |" for each in rows]
    return "\n".join([*lines, ""])


def about(parameter: dict[str, Any]) -> str:
    text = parameter.get("description") or parameter.get("schema", {}).get("description") or ""
    needed = "required" if parameter.get("required") else ""
    return " ".join(filter(None, (needed, text))).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
