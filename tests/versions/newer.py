"""A newer program: a copy of this one that knows one more payload, one more resource and one more caveat. It is made by
changing its source, as a developer would, and run in processes of its own.
"""

import os
import shutil
import sys
from functools import cache
from pathlib import Path

import hocket
from tests.cli.conftest import Result
from tests.cli.fork_server import ForkServer, forked_program
from tests.scenarios.machines import CHECKOUT, Machine

NOTE = 2000
_CHANGES = {
    "kernel/vocabulary.py": [
        ("class Unknown(Struct", "class Note(Struct, frozen=True):\n    text: str\n\n\nclass Unknown(Struct"),
        ("PAYLOAD: Codec", f"VARIANTS[{NOTE}] = fields(Note, STR)\nPAYLOAD: Codec"),
    ],
    "kernel/needs.py": [("    v.Unknown:", '    v.Note: Judged("Moon", "Write"),\n    v.Unknown:')],
    "kernel/capabilities.py": [
        ("RESOURCES = RESOURCES_V01 | KEYED", 'RESOURCES = RESOURCES_V01 | KEYED | {"Moon"}'),
        ("    audit_inference: bool = False\n", "    audit_inference: bool = False\n    gravity: bool = False\n"),
        ('    "audit_inference": _read_flag,\n', '    "audit_inference": _read_flag,\n    "gravity": _read_flag,\n'),
    ],
    "mesh/grants.py": [
        ('        *("Lock", "Inbox", "Row", "Account"),\n', '        *("Lock", "Inbox", "Row", "Account", "Moon"),\n'),
        ('    "Registration": "delegations",\n', '    "Registration": "delegations",\n    "Moon": "moons",\n'),
    ],
}


def make(place: Path) -> Path:
    """Puts the newer program there; gives what goes first on its path."""
    source = Path(hocket.__file__).parent
    shutil.copytree(source, place / "hocket", ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in _CHANGES.items():
        path = place / "hocket" / name
        text = path.read_text()
        for before, after in changes:
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, after)
        path.write_text(text)
    return place


def upgrade(machine: Machine, newer: Path) -> None:
    """From now on the machine runs that program."""
    machine.program = forked_program(_server(newer))
    machine.environment["PYTHONPATH"] = _path(newer)


def _path(newer: Path) -> str:
    return os.pathsep.join([str(newer), CHECKOUT])


@cache
def _server(newer: Path) -> ForkServer:
    return ForkServer(os.environ | {"PYTHONPATH": _path(newer)})


def script(machine: Machine, code: str) -> Result:
    """Runs a script with the machine's program."""
    program, machine.program = machine.program, [sys.executable, "-c", code]
    try:
        return machine()
    finally:
        machine.program = program
