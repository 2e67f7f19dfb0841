"""Decides which commands of other nodes a worker runs, and how. The worker's owner decides; by default it runs none. A
pattern is matched argument by argument. A list of names limits the variables of such a command, and it runs in a
sandbox wherever one can be made, unless the owner says otherwise.

Patterns that allow more than they seem to: programs that run whatever their arguments or the files around them say, and
variables that change which program runs. The lists are for warnings; they are not complete, and they refuse nothing.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import msgspec

from hocket.errors import Usage
from hocket.extensions.command import sandbox
from hocket.extensions.command.command_runs import ResourceLimits
from hocket.extensions.command.execute import PASSED_ON
from hocket.extensions.command.manifest import (
    AGAIN_NAME,
    INPUTS_NAME,
    ON_NAME,
    OUTPUTS_NAME,
    SANDBOX_NAME,
    BadManifest,
    Manifest,
    Sandbox,
    parse_manifest,
)
from hocket.extensions.command.secrets import SECRETS_NAME, secret_names
from hocket.node.home import configured_table
from hocket.work.presence import Serving

_WILD = re.compile(r"[*?\[]")
_VERSION = re.compile(r"[-0-9.]+$")
_HARMLESS = ("--version", "--help")

_DECIDING_NAMES = """
    PATH HOME LD_* GLIBC_TUNABLES GCONV_PATH IFS ENV BASH_* SHELLOPTS SHELL PYTHON* PERL* RUBY* NODE_* JAVA_* CLASSPATH
    _JAVA_OPTIONS LUA_* PHP* GIT_* MAKEFILES MAKEFLAGS GNUMAKEFLAGS CARGO_* RUSTC* CC CXX EDITOR VISUAL PAGER XDG_*
"""
_RUNNER_NAMES = """
    sh bash dash ash zsh ksh mksh fish csh tcsh busybox toybox python pypy perl ruby irb node nodejs deno bun php lua
    luajit tclsh wish expect Rscript R julia octave java jshell groovy scala ghc runghc runhaskell awk gawk mawk nawk
    sed ed ex vi vim nvim emacs env xargs find parallel nice ionice nohup timeout time setsid stdbuf script strace
    ltrace gdb watch flock sudo su doas chroot unshare nsenter bwrap systemd-run docker podman kubectl ssh git tar
    rsync m4 gnuplot sqlite
"""
_BUILDER_NAMES = """
    make gmake bmake cmake ctest ninja meson scons bazel rake just task invoke snakemake nextflow npm npx yarn pnpm pip
    pipx poetry uv tox nox pytest cargo rustc go mvn gradle gradlew ant sbt cabal stack mix
"""
_DECIDING = _DECIDING_NAMES.split()
# Programs that run what their arguments say.
_RUNNERS = frozenset(_RUNNER_NAMES.split())
# Programs that run what they find in their directory, which the submitter fills.
_BUILDERS = frozenset(_BUILDER_NAMES.split())


def trap(words: Sequence[str], has_more: bool) -> str | None:
    """Why a pattern allows anything at all; None if it does not. `has_more`: it matches any further arguments."""
    program, *arguments = words
    if _WILD.search(program):
        return "it matches any program"
    if "/" in program and not program.startswith("/"):
        return f"{program} is a file that the submitter provides"
    name = _VERSION.sub("", program.rpartition("/")[2])
    is_literal = not has_more and not any(map(_WILD.search, arguments))
    if name in _RUNNERS and not (_has_script(arguments) or (is_literal and _says_all(arguments))):
        return f"{name} runs what its arguments say"
    if name in _BUILDERS and not (is_literal and len(arguments) == 1 and arguments[0] in _HARMLESS):
        return f"{name} runs what the submitter's files say"
    return None


def _has_script(arguments: Sequence[str]) -> bool:
    """Whether the owner names a script of their own to run."""
    return bool(arguments) and arguments[0].startswith("/") and not _WILD.search(arguments[0])


def _says_all(arguments: Sequence[str]) -> bool:
    return bool(arguments) and arguments[0] in ("-c", *_HARMLESS)


def is_deciding(name: str) -> bool:
    """Whether a variable that matches this pattern can change which program runs or what it loads."""
    return any(fnmatchcase(name, each) or fnmatchcase(each.replace("*", "X"), name) for each in _DECIDING)


# `auto` means required where a sandbox can be made, and off elsewhere.
SandboxRule = Literal["auto", "required", "off"]

# The last word of a pattern: any number of further arguments.
MORE = "**"
# Variables that tell us how to run a command; the command does not need them.
_OURS = (AGAIN_NAME, INPUTS_NAME, ON_NAME, OUTPUTS_NAME, SANDBOX_NAME, SECRETS_NAME)
_SWITCHES = ("allow_any", "network", "as_root")
_LISTS = ("allow", "variables", "paths", "hide", "environment")
_LIMITS = ("memory_mib", "processes")
_KEYS = (*_LISTS, *_SWITCHES, "sandbox", *_LIMITS)
# Does what commands.as_root does, for containers.
AS_ROOT = "HOCKET_COMMANDS_AS_ROOT"
# The processes of a command of another node, and the open files of each process.
PROCESSES_MAX = 1_024
OPEN_FILES_MAX = 4_096
MIB = 1024 * 1024


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


class Obstacle(StrEnum):
    ROOT = "root"
    NO_SANDBOX = "sandbox"


OBSTACLES = {
    Obstacle.ROOT: "the worker runs as root; run it as a user of its own",
    Obstacle.NO_SANDBOX: "its owner requires a sandbox, and none can be made",
}


class Allowance(NamedTuple):
    """`variables` are the names, or patterns of names, that a manifest of another node may set; `paths` are visible in
    the sandbox besides the system, and `hide` names files and directories that are not; `environment` names the
    worker's own variables that every command gets. Commands of other nodes get the `network` only with this switch, run
    on a worker of root's only with `as_root`, and under `limits`.
    """

    patterns: tuple[Pattern, ...] = ()
    anything: bool = False
    variables: tuple[str, ...] = ()
    sandbox: SandboxRule = "auto"
    paths: tuple[str, ...] = ()
    environment: tuple[str, ...] = PASSED_ON
    network: bool = False
    as_root: bool = False
    hide: tuple[str, ...] = ()
    limits: ResourceLimits = ResourceLimits()

    @property
    def is_empty(self) -> bool:
        return not (self.anything or self.patterns)

    def allows(self, manifest: Manifest) -> bool:
        """Whether a command of another node may run here."""
        if self.obstacle() or (manifest.sandbox == "network" and not self.network):
            return False
        if self.anything:
            return True
        names = ({*(manifest.env or {})} | {*secret_names(manifest)}) - {*_OURS}
        return any(each.fits(manifest.argv) for each in self.patterns) and all(map(self._may_set, names))

    def obstacle(self) -> "Obstacle | None":
        """Why no command of another node runs here, whatever it is; None if some may."""
        if os.geteuid() == 0 and not self.as_root:
            return Obstacle.ROOT
        if self.sandbox == "required" and not sandbox.available():
            return Obstacle.NO_SANDBOX
        return None

    def sandbox_for(self, manifest: Manifest) -> Sandbox:
        """The sandbox for a command of another node. It has network access only if the command asks for it and the
        owner's switch is on.
        """
        if manifest.sandbox == "network" and not self.network:
            return "on"
        if self.sandbox == "off" or manifest.sandbox != "off":
            return manifest.sandbox
        return "on" if self.sandbox == "required" or sandbox.available() else "off"

    def extended(self, patterns: Iterable[str], anything: bool, variables: Iterable[str]) -> "Allowance":
        return self._replace(
            patterns=(*self.patterns, *map(read_pattern, patterns)),
            anything=self.anything or anything,
            variables=(*self.variables, *variables),
        )

    def limit(self, serving: Serving) -> Serving:
        """What other nodes are told about a worker with this allowance."""
        if self.is_empty:
            return serving
        if obstacle := self.obstacle():
            return msgspec.structs.replace(serving, refuses=obstacle)
        allow = tuple(each.text for each in self.patterns)
        return msgspec.structs.replace(
            serving, allow=allow, allow_any=self.anything, variables=self.variables, network=self.network
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
        if obstacle := self.obstacle():
            is_root = obstacle is Obstacle.ROOT
            why = OBSTACLES[obstacle] if is_root else f"a sandbox is required, but {sandbox.problem()}"
            yield f"commands of other nodes do not run: {why}"
            return
        if os.geteuid() == 0:
            yield "commands of other nodes run as root: a fault of the sandbox or of the kernel gives them the machine"
        if problem := "sandbox is off" if self.sandbox == "off" else sandbox.problem():
            yield f"commands of other nodes run without a sandbox, with all rights of this user: {problem}"
        elif self.network:
            yield "commands of other nodes may use the network, and reach this machine's own ports"

    def _may_set(self, name: str) -> bool:
        return any(fnmatchcase(name, each) for each in self.variables)


def refusal(payload: bytes, workers: Sequence[Serving], nodes: str) -> str | None:
    """Why none of the workers on these nodes runs a command of another node, in a sentence; None if one does."""
    if any(_is_allowed(each, payload) for each in workers):
        return None
    if obstacle := next((each.refuses for each in workers if each.refuses in OBSTACLES), None):
        return f"the worker on {nodes} runs no commands of other nodes: {OBSTACLES[Obstacle(obstacle)]}"
    if any(_is_allowed(msgspec.structs.replace(each, network=True), payload) for each in workers):
        return f"the worker on {nodes} gives commands of other nodes no network"
    return f"the worker on {nodes} does not allow this command; start it there with --allow"


def _is_allowed(worker: Serving, payload: bytes) -> bool:
    """Whether a worker, by what it tells others, runs the command in this payload for another node."""
    try:
        patterns = tuple(map(read_pattern, worker.allow))
        manifest = parse_manifest(msgspec.json.decode(payload))
    except (BadManifest, Usage, msgspec.MsgspecError, RecursionError):
        return worker.allow_any
    allowance = Allowance(patterns, worker.allow_any, worker.variables, "off", network=worker.network, as_root=True)
    return not worker.refuses and allowance.allows(manifest)


def _fits(pattern: str, argument: str) -> bool:
    # An option can change what a program does, so a wildcard for an argument does not match an option.
    return (pattern[:1] == "-" or argument[:1] != "-") and fnmatchcase(argument, pattern)


def configured(path: Path) -> Allowance:
    """The [commands] table of the home's configuration; nothing is allowed without it."""
    table = configured_table(path, "commands", _KEYS)
    for key in _SWITCHES:
        if not isinstance(value := table.get(key, False), bool):
            raise Usage(f"{path}: commands.{key} must be true or false, not {value!r}")
    for key in _LIMITS:
        if not isinstance(value := table.get(key, 1), int) or isinstance(value, bool) or value < 1:
            raise Usage(f"{path}: commands.{key} must be a whole number above 0, not {value!r}")
    rule = table.get("sandbox", "auto")
    if rule not in get_args(SandboxRule):
        raise Usage(f"{path}: commands.sandbox must be one of {', '.join(get_args(SandboxRule))}, not {rule!r}")
    lists = {key: _strings(path, table, key) for key in _LISTS}
    for key in ("paths", "hide"):
        for each in lists[key]:
            if not each.startswith("/") or os.path.normpath(each) in ("/", "/proc"):
                raise Usage(f"{path}: commands.{key} must name whole paths, like /srv/models, not {each!r}")
    try:
        patterns = tuple(map(read_pattern, lists["allow"]))
    except Usage as error:
        raise Usage(f"{path}: commands.allow: {error}") from None
    return Allowance(
        patterns,
        table.get("allow_any", False),
        lists["variables"],
        cast(SandboxRule, rule),
        tuple(map(os.path.normpath, lists["paths"])),
        (*PASSED_ON, *lists["environment"]),
        table.get("network", False),
        table.get("as_root", False) or _is_on(AS_ROOT),
        lists["hide"],
        _limits(table),
    )


def _limits(table: dict[str, Any]) -> ResourceLimits:
    """By default a command may use as much memory as the machine has."""
    memory = table.get("memory_mib", 0) * MIB or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return ResourceLimits(memory, table.get("processes", PROCESSES_MAX), OPEN_FILES_MAX)


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on")


def _strings(path: Path, table: dict[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, ())
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise Usage(f"{path}: commands.{key} must be a list of strings, not {value!r}")
    return tuple(value)
