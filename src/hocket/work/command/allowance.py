"""Decides which commands of other nodes a worker runs, and how. The worker's owner decides; by default it runs none. A
pattern is matched argument by argument. A list of names limits the variables of such a command, and it runs in a
sandbox wherever one can be made, unless the owner says otherwise.
"""

import shlex
import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

from hocket.errors import Usage
from hocket.kernel.manifest import AGAIN_NAME, INPUTS_NAME, ON_NAME, OUTPUTS_NAME, SANDBOX_NAME, Manifest, Sandbox
from hocket.work.command import sandbox
from hocket.work.command.orders import PASSED_ON
from hocket.work.command.risky_patterns import is_deciding, trap
from hocket.work.command.secrets import SECRETS_NAME, secret_names

# `auto` means required where a sandbox can be made, and off elsewhere.
SandboxRule = Literal["auto", "required", "off"]

# The last word of a pattern: any number of further arguments.
MORE = "**"
# Variables that tell us how to run a command; the command does not need them.
_OURS = (AGAIN_NAME, INPUTS_NAME, ON_NAME, OUTPUTS_NAME, SANDBOX_NAME, SECRETS_NAME)
_KEYS = ("allow", "allow_any", "variables", "sandbox", "paths", "environment")


class Pattern(NamedTuple):
    """Matches a command line with as many arguments as it has words, or more if `has_more`."""

    text: str
    words: tuple[str, ...]
    has_more: bool

    def fits(self, argv: tuple[str, ...]) -> bool:
        if len(argv) < len(self.words) or (len(argv) > len(self.words) and not self.has_more):
            return False
        return all(map(_fits, self.words, argv))


def read_pattern(text: str) -> Pattern:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise Usage(f"bad pattern {text!r}: {error}; write it like a command line in a shell") from None
    if not words:
        raise Usage(f"bad pattern {text!r}: it is empty; write a program and its arguments, like 'ffmpeg -i *'")
    if words == (MORE,):
        raise Usage(f"bad pattern {text!r}: name a program, like 'ffmpeg {MORE}', or allow every command")
    if MORE in words[:-1]:
        raise Usage(f"bad pattern {text!r}: {MORE} matches all further arguments and must be the last word")
    has_more = words[-1] == MORE
    return Pattern(text, words[:-1] if has_more else words, has_more)


class Allowance(NamedTuple):
    """`variables` are the names, or patterns of names, that a manifest of another node may set; `paths` are visible in
    the sandbox besides the system; `environment` names the worker's own variables that every command gets.
    """

    patterns: tuple[Pattern, ...] = ()
    anything: bool = False
    variables: tuple[str, ...] = ()
    sandbox: SandboxRule = "auto"
    paths: tuple[str, ...] = ()
    environment: tuple[str, ...] = PASSED_ON

    @property
    def is_empty(self) -> bool:
        return not (self.anything or self.patterns)

    def allows(self, manifest: Manifest) -> bool:
        """Whether a command of another node may run here."""
        if self.sandbox == "required" and not sandbox.available():
            return False
        if self.anything:
            return True
        names = ({*(manifest.env or {})} | {*secret_names(manifest)}) - {*_OURS}
        return any(each.fits(manifest.argv) for each in self.patterns) and all(map(self._may_set, names))

    def sandbox_for(self, manifest: Manifest) -> Sandbox:
        """The sandbox for a command of another node. It has network access only if the command asks for it."""
        if self.sandbox == "off" or manifest.sandbox != "off":
            return manifest.sandbox
        return "on" if self.sandbox == "required" or sandbox.available() else "off"

    def extended(self, patterns: Iterable[str], anything: bool, variables: Iterable[str]) -> "Allowance":
        return self._replace(
            patterns=(*self.patterns, *map(read_pattern, patterns)),
            anything=self.anything or anything,
            variables=(*self.variables, *variables),
        )

    def warnings(self) -> Iterator[str]:
        """What an owner may not have meant, as sentences."""
        if self.is_empty:
            return
        for pattern in self.patterns:
            if (reason := trap(pattern.words, pattern.has_more)) is not None:
                yield f"the pattern {pattern.text!r} lets other nodes run anything: {reason}"
        for name in self.variables:
            if is_deciding(name):
                yield f"the variable {name!r} lets other nodes decide which program runs or what it loads"
        problem = "sandbox is off" if self.sandbox == "off" else sandbox.problem()
        if problem and self.sandbox == "required":
            yield f"commands of other nodes do not run: a sandbox is required, but {problem}"
        elif problem:
            yield f"commands of other nodes run without a sandbox, with all rights of this user: {problem}"

    def _may_set(self, name: str) -> bool:
        return any(fnmatchcase(name, each) for each in self.variables)


def _fits(pattern: str, argument: str) -> bool:
    # An option can change what a program does, so a wildcard for an argument does not match an option.
    return (pattern[:1] == "-" or argument[:1] != "-") and fnmatchcase(argument, pattern)


def configured(path: Path) -> Allowance:
    """The [commands] table of the home's configuration; nothing is allowed without it."""
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
    rule = table.get("sandbox", "auto")
    if rule not in get_args(SandboxRule):
        raise Usage(f"{path}: commands.sandbox must be one of {', '.join(get_args(SandboxRule))}, not {rule!r}")
    paths = _strings(path, table, "paths")
    for each in paths:
        if not each.startswith("/"):
            raise Usage(f"{path}: commands.paths must name whole paths, like /srv/models, not {each!r}")
    try:
        patterns = tuple(map(read_pattern, _strings(path, table, "allow")))
    except Usage as error:
        raise Usage(f"{path}: commands.allow: {error}") from None
    environment = (*PASSED_ON, *_strings(path, table, "environment"))
    variables = _strings(path, table, "variables")
    return Allowance(patterns, anything, variables, cast(SandboxRule, rule), paths, environment)


def _strings(path: Path, table: dict[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, ())
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise Usage(f"{path}: commands.{key} must be a list of strings, not {value!r}")
    return tuple(value)
