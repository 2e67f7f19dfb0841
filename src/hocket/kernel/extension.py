"""An extension: a feature that few programs need, in a folder of its own that the core does not name. An `Extension`
record tells the program what it brings. Places in the record are names, `extensions.cost.commands:app`: a module is
loaded when its part is used.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

Places = Mapping[str, str]
_NONE: Places = MappingProxyType({})


class Extension(NamedTuple):
    """What the program needs to know about an extension: for each seam, the places by the names that the seam has.

    `commands` have a sentence of help besides. `members` are those of a job's policy: a place gives the value from what
    people write (the value itself, plain data, or the bytes of a file), and raises ValueError. `submits` are called
    with a runtime and drafts before jobs with such a member are submitted, and `pacers` make the pacers of their runs.
    `context` and `node` have what methods of a handler's context and of a node call. `runtime` is called with each
    runtime that opens, and `worker` gives a context manager round each worker, of a node and its options, if a file in
    the home, a variable or a setting of the worker with the extension's name switches the extension on.
    """

    name: str
    commands: Mapping[str, tuple[str, str]] = MappingProxyType({})
    members: Places = _NONE
    submits: Places = _NONE
    pacers: Places = _NONE
    context: Places = _NONE
    node: Places = _NONE
    file: str = ""
    variable: str = ""
    runtime: str = ""
    worker: str = ""


_EXTENSIONS: dict[str, Extension] = {}
_PROGRAM = "hocket.extensions"


def register(*extensions: Extension) -> None:
    """Adds extensions to the program."""
    for extension in extensions:
        _EXTENSIONS[extension.name] = extension


def extensions() -> tuple[Extension, ...]:
    """The extensions of this program, which register themselves when they are first asked for."""
    import_module(_PROGRAM)
    return tuple(_EXTENSIONS.values())


def loaded(place: str) -> Any:
    """What has this place in the package `hocket`."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"hocket.{module}"), name)


def parts(seam: str, name: str) -> list[Any]:
    """What the extensions have under this name at a seam, loaded."""
    return [loaded(places[name]) for each in extensions() if name in (places := getattr(each, seam))]


def part(seam: str, name: str) -> Any:
    """What an extension has under this name at a seam."""
    return parts(seam, name)[0]
