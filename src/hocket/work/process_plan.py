"""Which handlers run in processes, and in how many. `handler_processes` starts them; a worker whose handlers run on its
own threads needs only this.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hocket.errors import Usage
from hocket.work.handlers import JobType

PROCESSES_MAX = 256


class ProcessPlan(NamedTuple):
    """How many processes, for the handlers of which kinds, and where those are defined; none if only runs that must be
    alone get a process. `program` is the module that a process runs.
    """

    processes: int
    program: str
    home: Path
    modules: list[tuple[str, str]]
    kinds: frozenset[str]


def plan(processes: int, program: str, home: Path, types: Iterable[JobType]) -> ProcessPlan:
    """Raises Usage if a process could not import the handlers."""
    if not 0 <= processes <= PROCESSES_MAX:
        raise Usage(f"{processes} processes are too few or too many; give 1 to {PROCESSES_MAX}")
    modules: dict[tuple[str, str], None] = {}
    served = [each for each in types if each.function is not None]
    for each in served:
        name = getattr(each.function, "__module__", "")
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None:
            raise Usage(f"the handler of {each.kind} is in no file, so no process can import it; put it into a module")
        modules[name, str(Path(file).resolve())] = None
    return ProcessPlan(processes, program, home, list(modules), frozenset(each.kind for each in served))
