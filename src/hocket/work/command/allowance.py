"""Which commands of others a worker runs: its owner's decision, and none unless they say so. A pattern is compared with
the whole command line, as a shell would have to be given it. Where only patterns allow a command, its manifest may not
set a variable that changes which program runs or what it loads.
"""

import shlex
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from hocket.errors import Usage
from hocket.kernel.manifest import Manifest
from hocket.work.command.orders import PASSED_ON

_DECIDING = (
    *("PATH", "LD_*", "GCONV_PATH", "IFS", "ENV", "BASH_*", "SHELLOPTS", "PYTHON*", "PERL5*", "RUBY*", "NODE_*"),
    *("JAVA_*", "GIT_*"),
)
_KEYS = ("allow", "allow_any", "environment")


class Allowance(NamedTuple):
    """`environment` names the worker's own variables that every command is given."""

    patterns: tuple[str, ...] = ()
    anything: bool = False
    environment: tuple[str, ...] = PASSED_ON

    def allows(self, manifest: Manifest) -> bool:
        if self.anything:
            return True
        line = shlex.join(manifest.argv)
        names = manifest.env or {}
        return any(fnmatchcase(line, pattern) for pattern in self.patterns) and not any(map(_decides, names))

    def with_patterns(self, patterns: Iterable[str], anything: bool) -> "Allowance":
        return self._replace(patterns=(*self.patterns, *patterns), anything=self.anything or anything)


def _decides(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _DECIDING)


def configured(path: Path) -> Allowance:
    """What the home's configuration says under [commands]; nothing is allowed where it says nothing."""
    try:
        table = tomllib.loads(path.read_text("utf-8")).get("commands", {})
    except FileNotFoundError:
        return Allowance()
    except (OSError, ValueError) as error:
        raise Usage(f"cannot read {path}: {error}") from None
    if not isinstance(table, dict):
        raise Usage(f"{path}: commands must be a table, like [commands]")
    for key in table:
        if key not in _KEYS:
            raise Usage(f"{path}: unknown key commands.{key}; known are {', '.join(_KEYS)}")
    anything = table.get("allow_any", False)
    if not isinstance(anything, bool):
        raise Usage(f"{path}: commands.allow_any must be true or false, not {anything!r}")
    patterns = _strings(path, table, "allow", ())
    return Allowance(patterns, anything, (*PASSED_ON, *_strings(path, table, "environment", ())))


def _strings(path: Path, table: dict[str, Any], key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    value = table.get(key, default)
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise Usage(f"{path}: commands.{key} must be a list of strings, not {value!r}")
    return tuple(value)
