"""Other versions of this program: copies whose source is changed, as a developer would, that run in processes of their
own. A newer one knows one more payload, one more resource and one more caveat. One older one is from before bundles,
another from before jobs could be postponed or approved.
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
BUNDLE = 1051
POSTPONE = 1052
Changes = dict[str, list[tuple[str, str]]]
NEWER: Changes = {
    "kernel/vocabulary.py": [
        ("class Unknown(Struct", "class Note(Struct, frozen=True):\n    text: str\n\n\nclass Unknown(Struct"),
        (
            "    Variant(1051,",
            f'    Variant({NOTE}, fields(Note, STR), Judged("Moon", "Write")),\n    Variant(1051,',
        ),
    ],
    "kernel/capabilities.py": [
        ("RESOURCES: Set[str] = _RESOURCES.keys()", 'RESOURCES: Set[str] = _RESOURCES.keys() | {"Moon"}'),
        ("    audit_inference: bool = False\n", "    audit_inference: bool = False\n    gravity: bool = False\n"),
        ('    "audit_inference": _read_flag,\n', '    "audit_inference": _read_flag,\n    "gravity": _read_flag,\n'),
    ],
    "mesh/grants.py": [
        ('        *("Registration", "Account"),\n', '        *("Registration", "Account", "Moon"),\n'),
        ('    "Registration": "delegations",\n', '    "Registration": "delegations",\n    "Moon": "moons",\n'),
    ],
}


OLDER: Changes = {
    "kernel/vocabulary.py": [
        ("PAYLOAD: Codec", f"del VARIANTS[{BUNDLE}]\nPAYLOAD: Codec"),
    ],
    "kernel/mesh_rules.py": [
        ("bounds=Bounds(), bundles=True)", "bounds=Bounds())"),
        ("min(r.remaining(), 2)", "min(r.remaining(), 1)"),
    ],
}

BEFORE_POSTPONING: Changes = {
    "kernel/vocabulary.py": [("PAYLOAD: Codec", f"del VARIANTS[{POSTPONE}]\nPAYLOAD: Codec")],
}


def make(place: Path, changes_of: Changes) -> Path:
    """Puts the program there; gives what goes first on its path."""
    source = Path(hocket.__file__).parent
    shutil.copytree(source, place / "hocket", ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in changes_of.items():
        path = place / "hocket" / name
        text = path.read_text()
        for before, after in changes:
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, after)
        path.write_text(text)
    return place


def install(machine: Machine, program: Path) -> None:
    """From now on the machine runs that program."""
    machine.program = forked_program(_server(program))
    machine.environment["PYTHONPATH"] = _path(program)


def _path(program: Path) -> str:
    return os.pathsep.join([str(program), CHECKOUT])


@cache
def _server(program: Path) -> ForkServer:
    return ForkServer(os.environ | {"PYTHONPATH": _path(program)})


def script(machine: Machine, code: str) -> Result:
    """Runs a script with the machine's program."""
    program, machine.program = machine.program, [sys.executable, "-c", code]
    try:
        return machine()
    finally:
        machine.program = program
