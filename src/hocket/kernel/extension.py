"""An extension: a feature that few programs need, in a folder of its own that the core does not name. An `Extension`
record tells the program what it brings. Places in the record are names, `extensions.cost.commands:app`: a module is
loaded when its part is used. `hocket run` reads the records before anything else, so this imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any


class ExtensionKind:
    """A kind whose jobs print to stdout and stderr; `printed` gives what the log has of a stream. If workers serve the
    kind without a handler of the program's, `worker` makes the `WorkerPart` that does, and `server` the server that
    `hocket work` runs beside it; `refusal` says why workers do not run a job of another node. The runs of a kind that
    `counts_fences` have fences of their own, and not those of the log.
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
    ) -> None:
        self.kind, self.printed, self.worker, self.server = kind, printed, worker, server
        self.refusal, self.counts_fences = refusal, counts_fences


class Extension:
    """What the program needs to know about an extension. `commands` has, for each, its place and a sentence of help,
    and `shortcuts` what may run a command before the program is loaded. `tasks` run beside every process that keeps a
    node up, and `watches` beside a server, for each value of its option of that name; `checks` are for `hocket doctor`.
    `proof` finds the proof of a job.
    """

    def __init__(
        self,
        name: str,
        *,
        commands: Mapping[str, tuple[str, str]] = {},
        shortcuts: Mapping[str, str] = {},
        kinds: Sequence[ExtensionKind] = (),
        tasks: Mapping[str, str] = {},
        watches: Mapping[str, str] = {},
        checks: Mapping[str, str] = {},
        proof: str = "",
    ) -> None:
        self.name, self.commands, self.shortcuts, self.kinds = name, commands, shortcuts, kinds
        self.tasks, self.watches, self.checks, self.proof = tasks, watches, checks, proof


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


def load_part(place: str) -> Any:
    """What has this place."""
    module, _, name = place.partition(":")
    return getattr(__import__(f"hocket.{module}", fromlist=[name]), name)


def loaded(field: str) -> dict[str, Any]:
    """What the extensions have in a field that maps names to places."""
    return {name: load_part(place) for each in extensions() for name, place in getattr(each, field).items()}


def extension_kinds() -> Iterator[ExtensionKind]:
    return (kind for each in extensions() for kind in each.kinds)


def extension_kind(kind: str) -> ExtensionKind | None:
    return next((each for each in extension_kinds() if each.kind == kind), None)
