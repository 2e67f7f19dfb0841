"""An extension: a feature that few programs need, in a folder of its own that the core does not name. An `Extension`
record tells the program what it brings. Places in the record are names, `extensions.cost.commands:app`: a module is
loaded when its part is used.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import NamedTuple


class Extension(NamedTuple):
    """What the program needs to know about an extension. `commands` has, for each, its place and a sentence of help."""

    name: str
    commands: Mapping[str, tuple[str, str]] = MappingProxyType({})


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
