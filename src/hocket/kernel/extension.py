"""An extension: a feature that few programs need, in a folder of its own that the core does not name. An `Extension`
record tells the program what it brings. Places in the record are names, such as `extensions.cost.cost_commands:app`: a
module is loaded when its part is used. `hocket run` reads the records before anything else, so this imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    Places = Mapping[str, str]


_NONE: Mapping[str, Any] = {}


class ExtensionKind:
    """A kind whose jobs print to stdout and stderr; `printed` gives what the log has of a stream. If workers serve the
    kind without a handler of the program's, `worker` makes the `WorkerPart` that does, and `server` the server that
    `hocket work` runs beside it; `refusal` says why workers do not run a job of another node. The runs of a kind that
    `counts_fences` have fences of their own, and not those of the log. Workers that serve a kind of `commands` need a
    system that can bind processes.
    """

    def __init__(
        self,
        kind: str,
        *,
        printed: str,
        worker: str = "",
        server: str = "",
        refusal: str = "",
        counts_fences: bool = False,
        commands: bool = False,
    ) -> None:
        self.kind, self.printed, self.worker, self.server = kind, printed, worker, server
        self.refusal, self.counts_fences, self.commands = refusal, counts_fences, commands


class Extension:
    """What the program needs to know about an extension: for each seam, the places by the names that the seam has.

    `operations` are modules whose operations get routes, and methods of `hocket.admin`, under their names. `views` are
    places of views of the page.

    `commands` have for each a sentence of help besides, and stand under the `noun`, if there is one, which has such a
    sentence, too. `shortcuts` may run a command before the program is loaded.
    `members` are those of a job's policy: a place gives the value from what people write (the value itself, plain data,
    or the bytes of a file), and raises ValueError. `submits` are called with a runtime and drafts before jobs with such
    a member are submitted. `tasks` run beside every process that keeps a node up. `watches` run beside a server, for
    each value of its option of that name: a place gives a context manager of a node, the value and `emit`. `checks` are
    for `hocket node doctor`, and `proof` finds the proof of a job. `counts` are called with the counts of a process and
    each event of such a type.

    `pacers` make the pacers of the runs of jobs with such a member. `context` and `node` have what methods of a
    handler's context and of a node call. A `file` in the home, a `variable` or a setting of a worker with the
    extension's name switches it on: then `runtime` is called with each runtime that opens, and `worker` gives a context
    manager, of a node and its options, round each worker. A file of the home that `request_proofs` name adds a second
    proof to the requests between nodes.
    """

    def __init__(
        self,
        name: str,
        *,
        commands: Mapping[str, tuple[str, str]] = _NONE,
        noun: tuple[str, str] | None = None,
        operations: Sequence[str] = (),
        views: Sequence[str] = (),
        shortcuts: Places = _NONE,
        members: Places = _NONE,
        submits: Places = _NONE,
        kinds: Sequence[ExtensionKind] = (),
        tasks: Places = _NONE,
        watches: Places = _NONE,
        checks: Places = _NONE,
        counts: Places = _NONE,
        proof: str = "",
        pacers: Places = _NONE,
        context: Places = _NONE,
        node: Places = _NONE,
        file: str = "",
        variable: str = "",
        runtime: str = "",
        worker: str = "",
        request_proofs: Places = _NONE,
    ) -> None:
        self.name, self.commands, self.noun, self.shortcuts = name, commands, noun, shortcuts
        self.operations, self.views = operations, views
        self.members, self.submits, self.kinds = members, submits, kinds
        self.tasks, self.watches, self.checks, self.counts, self.proof = tasks, watches, checks, counts, proof
        self.pacers, self.context, self.node = pacers, context, node
        self.file, self.variable, self.runtime, self.worker = file, variable, runtime, worker
        self.request_proofs = request_proofs


_EXTENSIONS: dict[str, Extension] = {}
_PROGRAM = "hocket.extensions"


def register(*extensions: Extension) -> None:
    """Adds extensions to the program."""
    for extension in extensions:
        _EXTENSIONS[extension.name] = extension


def extensions() -> tuple[Extension, ...]:
    """The extensions of this program, which register themselves when they are first asked for."""
    __import__(_PROGRAM)
    return tuple(_EXTENSIONS.values())


def loaded(place: str) -> Any:
    """What has this place in the package `hocket`."""
    module, _, name = place.partition(":")
    return getattr(__import__(f"hocket.{module}", fromlist=[name]), name)


def parts(seam: str, name: str) -> list[Any]:
    """What the extensions have under this name at a seam, loaded."""
    return [loaded(places[name]) for each in extensions() if name in (places := getattr(each, seam))]


def part(seam: str, name: str) -> Any:
    """What an extension has under this name at a seam."""
    return parts(seam, name)[0]


def named_parts(seam: str) -> dict[str, Any]:
    """Everything that extensions have at a seam, loaded, by its name."""
    return {name: loaded(place) for each in extensions() for name, place in getattr(each, seam).items()}


def extension_kinds() -> Iterator[ExtensionKind]:
    return (kind for each in extensions() for kind in each.kinds)


def extension_kind(kind: str) -> ExtensionKind | None:
    return next((each for each in extension_kinds() if each.kind == kind), None)
