"""Patterns that allow more than they seem to: programs that run whatever their arguments or the files around them say,
and variables that change which program runs. The lists are for warnings; they are not complete, and they refuse
nothing.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

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
