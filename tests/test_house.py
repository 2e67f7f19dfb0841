"""The order of the house: each room imports only what stands above it, and the kernel touches nothing of the world.

Read from the syntax trees: nothing is imported, so the check also holds for rooms whose packages are not installed.
"""

import ast
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent / "src" / "hocket"

ORDER = [
    "kernel",
    "store",
    "bus",
    "log",
    "coordination",
    "work",
    "inference",
    "mesh",
    "gitplane",
    "rhythm",
    "home",
    "runtime",
    "handles",
    "node",
    "service",
    "server",
    "cli",
    "dashboard",
    "mcp",
]
EVERYWHERE = {"__init__", "__main__", "testing"}  # may import any room
OPEN = {"errors", "events"}  # open to every room but the kernel; they know only the kernel
SIMULATOR = ("hocket", "cli", "sim")  # the one command that shows what is in `testing`

# The kernel is handed time, randomness and bytes as arguments, or it could not be replayed from a seed.
WORLD = {
    "apsw",
    "asyncio",
    "datetime",
    "os",
    "pathlib",
    "random",
    "secrets",
    "socket",
    "sqlite3",
    "subprocess",
    "time",
}


def imports(source: str, module: tuple[str, ...], is_package: bool) -> set[str]:
    """Every module that the source imports, as absolute dotted names. `from x import y` counts as x.y."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base: tuple[str, ...] = ()
            if node.level:
                package = module if is_package else module[:-1]
                base = package[: len(package) - (node.level - 1)]
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{prefix}.{alias.name}" for alias in node.names}
    return found


def broken_rules(source: str, module: tuple[str, ...], is_package: bool = False) -> list[str]:
    """What the source may not import, given the module that it is."""
    room = module[1] if len(module) > 1 else "__init__"
    broken = []
    for name in sorted(imports(source, module, is_package)):
        parts = name.split(".")
        if room == "kernel" and parts[0] in WORLD:
            broken.append(f"the kernel imports {parts[0]}")
        if parts[0] != "hocket" or room in EVERYWHERE:
            continue
        target = parts[1] if len(parts) > 1 else "__init__"
        if target == room or (target == "testing" and module == SIMULATOR):
            continue
        if target in OPEN:
            allowed = room != "kernel"
        elif room in OPEN:
            allowed = target == "kernel"
        elif target in ORDER and room in ORDER:
            allowed = ORDER.index(target) < ORDER.index(room)
        else:
            # The public face and `testing` stand below every room; a room that is not in ORDER has no place yet.
            allowed = False
        if not allowed:
            broken.append(f"{room} imports {name}")
    return broken


def modules() -> list[Path]:
    return sorted(path for path in HOUSE.rglob("*.py"))


def module_name(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(HOUSE.parent).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def test_rooms_import_only_what_stands_above_them():
    broken = {
        str(path.relative_to(HOUSE)): found
        for path in modules()
        if (found := broken_rules(path.read_text(encoding="utf-8"), module_name(path), path.stem == "__init__"))
    }
    assert not broken


def test_every_room_has_its_place():
    known = {*ORDER, *EVERYWHERE, *OPEN}
    rooms = {path.relative_to(HOUSE).parts[0].removesuffix(".py") for path in modules()}
    assert rooms <= known, "a new room needs its place in ORDER, and in the list in CONTRIBUTING.md"


def test_no_class_name_stands_for_two_things():
    found: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{path.relative_to(HOUSE)}:{node.lineno}")
    assert not {name: places for name, places in found.items() if len(places) > 1}


def sessions(source: str) -> list[str]:
    """Where the source of a face reaches into the store, which is the service's to do."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.alias(name=name) | ast.Attribute(attr=name):
                is_one = name.lower() == "session"
            case ast.Call(func=ast.Attribute(attr="read" | "write" | "peek"), args=[], keywords=[]):
                is_one = True
            case _:
                continue
        found += [f"{node.lineno}: {ast.unparse(node)}"] if is_one else []
    return found


def test_the_command_line_asks_the_service_and_reads_no_store():
    found = {path.name: found for path in (HOUSE / "cli").glob("*.py") if (found := sessions(path.read_text()))}
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "from hocket.store import JobEntry, Session",
        "with runtime.read() as session: pass",
        "with runtime.store.write() as view: pass",
        "def look(session): return True",
        "peers = session.peers()",
        "runtime.log.run(lambda tx: tx.session.peers())",
    ],
)
def test_a_session_in_a_face_is_found(source: str):
    assert sessions(source)


def test_reading_a_file_is_no_session():
    assert sessions("text = sys.stdin.read(LIMIT)\nwith service.view as found: found.items()") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hocket.kernel.clock", "import time"),
        ("hocket.kernel.clock", "def f():\n    from os import urandom"),
        ("hocket.kernel.clock", "from hocket.store import Store"),
        ("hocket.kernel.clock", "from hocket.errors import Refused"),
        ("hocket.kernel.clock", "from ..log import append"),
        ("hocket.store.sqlite", "import hocket.log.append"),
        ("hocket.store.sqlite", "from hocket import open"),
        ("hocket.store.sqlite", "from .. import log"),
        ("hocket.work.worker", "from hocket.testing import VirtualTime"),
        ("hocket.work.worker", "from hocket import node"),
        ("hocket.errors", "from hocket.store import Store"),
        ("hocket.events", "from hocket.work import jobs"),
        ("hocket.kernel.clock", "from hocket.events import Event"),
        ("hocket.attic.box", "import hocket.kernel"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str):
    assert broken_rules(source, tuple(module.split(".")))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hocket.kernel.clock", "from hocket.kernel import ids\nfrom .ids import Ulid\nimport hashlib"),
        ("hocket.store.sqlite", "import apsw, time\nfrom hocket.errors import Refused\nfrom ..kernel import ops"),
        ("hocket.node.node", "from .mesh import peers"),
        ("hocket.errors", "from hocket.kernel.reasons import Reason"),
        ("hocket.testing.network", "import hocket\nfrom hocket import node, cli"),
    ],
)
def test_a_right_import_passes(module: str, source: str):
    assert broken_rules(source, tuple(module.split("."))) == []


def test_relative_imports_of_a_package_count_from_itself():
    assert imports("from . import a\nfrom .. import b", ("hocket", "log"), is_package=True) == {
        "hocket.log.a",
        "hocket.b",
    }
