"""The order of the house: each room imports only what stands above it, and the kernel touches nothing of the world.

Read from the syntax trees: nothing is imported, so the check also holds for rooms whose packages are not installed.
"""

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent / "src" / "hocket"

ORDER = [
    "kernel",
    "system",
    "cancelling",
    "breakers",
    "guard",
    "store",
    "bus",
    "log",
    "families",
    "work",
    "inference",
    "mesh",
    "node",
    "api",
    "extensions",
    "server",
    "page",
    "mcp",
    "a2a",
    "cli",
    "faces of extensions",
]
# In an extension, these modules are its faces, which may also import those of the core.
EXTENSION_FACES = ("admin", "commands", "run_command", "access", "hook", "metrics", "views")
# A family's facts and rules are decisions, as the kernel's are: they import the kernel and each other alone, and every
# room below the kernel may import them.
DECISIONS = {"candidates", "facts", "index", "key_patterns", "parts", "rendezvous", "rules"}
EVERYWHERE = {"__init__", "__main__", "testing"}  # may import any room
OPEN = {"errors", "events"}  # open to every room but the kernel; they know only the kernel
SIMULATOR = ("hocket", "extensions", "sim")  # simulates whole nodes, with everything in `testing`

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

# Databases are the store's affair: outside it nobody speaks to one, and nobody knows which one it is. The guard writes
# its statements for databases of the user's.
DATABASES = {"apsw", "libsql", "psycopg", "sqlite3"}
SQL = re.compile(
    r"SELECT\s.+\sFROM\s|(INSERT|REPLACE)\s(OR\s\w+\s)?INTO\s|UPDATE\s\w+\sSET\s|DELETE\sFROM\s"
    r"|(CREATE|ALTER|DROP)\s(TABLE|INDEX|TRIGGER)\s|PRAGMA\s|BEGIN\sIMMEDIATE",
    re.DOTALL,
)


@cache
def nodes(source: str) -> list[ast.AST]:
    """All nodes of a module, parsed once for all tests here."""
    return [*ast.walk(ast.parse(source))]


@pytest.fixture(scope="module", autouse=True)
def nodes_are_forgotten() -> Iterator[None]:
    yield
    nodes.cache_clear()


def imports(source: str, module: tuple[str, ...], is_package: bool) -> set[str]:
    """Every module that the source imports, as absolute dotted names. `from x import y` counts as x.y."""
    found: set[str] = set()
    for node in nodes(source):
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


def room_of(module: Sequence[str]) -> str:
    if module[1:2] == ["extensions"] or module[1:2] == ("extensions",):
        is_face = len(module) > 3 and module[3].endswith(EXTENSION_FACES)
        return "faces of extensions" if is_face else "extensions"
    return module[1] if len(module) > 1 else "__init__"


def is_decision(module: Sequence[str]) -> bool:
    return tuple(module[:2]) == ("hocket", "families") and len(module) > 3 and module[3] in DECISIONS


def broken_rules(source: str, module: tuple[str, ...], is_package: bool = False) -> list[str]:
    """What the source may not import, given the module that it is."""
    room = room_of(module)
    decides = room == "kernel" or is_decision(module)
    broken = []
    for name in sorted(imports(source, module, is_package)):
        parts = name.split(".")
        if decides and parts[0] in WORLD:
            broken.append(f"{'.'.join(module[1:])} decides, and imports {parts[0]}")
        if room != "store" and (parts[0] in DATABASES or parts[:3] == ["hocket", "store", "sqlite"]):
            broken.append(f"{room} imports {name}, which is for the store alone")
        if parts[0] != "hocket" or room in EVERYWHERE:
            continue
        target = room_of(parts)
        if is_decision(parts):
            allowed = room != "kernel"
        elif is_decision(module):
            allowed = target == "kernel"
        elif target == room or module[:3] == SIMULATOR:
            allowed = True
        elif target in OPEN:
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


def statements(source: str) -> list[str]:
    """The texts in the source that are SQL. An f-string counts as one text, with a mark where a value goes."""
    found = []
    for node in nodes(source):
        text = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "_" for part in node.values)
        if SQL.search(text):
            found.append(text)
    return found


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


def test_the_core_names_no_extension():
    named: dict[str, set[str]] = {}
    for path in modules():
        file = path.relative_to(HOUSE)
        if file.parts[0] not in ("extensions", "__init__.py"):
            names = imports(path.read_text(encoding="utf-8"), module_name(path), path.stem == "__init__")
            if found := {name for name in names if name.startswith("hocket.extensions")}:
                named[str(file)] = found
    assert not named


def test_the_engine_learns_of_families_from_their_records():
    """These are left: both are about jobs, claiming depends on kinds and availability, the store has a table of its own
    for messages, and retention lets jobs and messages go.
    """
    named: dict[str, set[str]] = {"kernel": set(), "store": set(), "bus": set(), "log": set()}
    for path in modules():
        if (room := path.relative_to(HOUSE).parts[0]) in named:
            found = imports(path.read_text(encoding="utf-8"), module_name(path), path.stem == "__init__")
            named[room] |= {name.split(".")[2] for name in found if name.startswith("hocket.families.")}
    assert named == {
        "kernel": set(),
        "store": {"availability", "inbox", "jobs", "kinds"},
        "bus": set(),
        "log": {"availability", "inbox", "jobs", "kinds", "retention"},
    }


def test_only_the_store_and_the_guard_speak_sql():
    assert not {
        str(path.relative_to(HOUSE)): found
        for path in modules()
        if path.relative_to(HOUSE).parts[0] not in ("store", "guard")
        and (found := statements(path.read_text(encoding="utf-8")))
    }


def test_only_the_stores_own_tests_know_which_store_it_is():
    tests = Path(__file__).parent
    assert not [
        str(path.relative_to(tests))
        for path in sorted(tests.rglob("*.py"))
        if path.relative_to(tests).parts[0] != "store"
        and "sqlite" in (source := path.read_text(encoding="utf-8"))
        and any(name.startswith("hocket.store.sqlite") for name in imports(source, (), False))
    ]


@pytest.mark.parametrize(
    "source",
    [
        'sql("SELECT id FROM jobs")',
        'sql(f"SELECT {columns} FROM jobs")',
        'sql(f"""SELECT {columns}\\n        FROM jobs""")',
        'sql("INSERT OR IGNORE INTO late VALUES (1)")',
        'sql(f"REPLACE INTO {table} VALUES (1)")',
        'sql("UPDATE jobs SET stage = 0")',
        'sql(f"DELETE FROM {table} WHERE one = 1")',
        'sql("DROP TABLE jobs")',
        'sql("PRAGMA user_version")',
    ],
)
def test_sql_is_found(source: str):
    assert statements(source)


def test_words_that_sql_uses_too_are_no_sql():
    assert statements('say("Update the jobs", "select one from the list", "delete from here on", "pragma")') == []


def typed_uses(source: str) -> list[str]:
    """Where the source has msgspec decode into a type."""
    found = []
    for node in nodes(source):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)).startswith("msgspec."):
            is_typed = any(keyword.arg == "type" for keyword in node.keywords)
            if name.endswith((".convert", ".Decoder")) or (name.endswith(".decode") and is_typed):
                found.append(f"{name} in line {node.lineno}")
    return found


def test_only_the_kernel_has_msgspec_decode_into_types():
    """Two threads that use a type for the first time crash the process: `kernel/decoding` lets in one at a time."""
    assert not {
        str(path.relative_to(HOUSE)): found
        for path in modules()
        if path != HOUSE / "kernel" / "decoding.py" and (found := typed_uses(path.read_text(encoding="utf-8")))
    }


@pytest.mark.parametrize(
    "source", ["msgspec.convert(a, B)", "msgspec.json.Decoder(B)", "msgspec.msgpack.decode(\n    a,\n    type=B,\n)"]
)
def test_decoding_into_a_type_is_found(source: str):
    assert typed_uses(source) and not typed_uses("msgspec.json.decode(a), decoder.decode(a, type=B)")


def test_a_docstring_makes_sense_by_itself():
    """An editor shows a docstring without the one above it."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    assert not {
        str(path.relative_to(HOUSE)): found
        for path in modules()
        if (
            found := [
                getattr(node, "name", "the module")
                for node in nodes(path.read_text(encoding="utf-8"))
                if isinstance(node, documented) and (ast.get_docstring(node) or "").startswith("The same")
            ]
        )
    }


@cache
def defined(source: str) -> set[str]:
    """The names that a module defines or imports; also the strings in it, if it loads names lazily."""
    found: set[str] = set()
    for node in nodes(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "def __getattr__(" in source:
            found.add(node.value)
    return found


def unknown_names(source: str) -> list[str]:
    """The names of Hocket that the source imports and that are not there."""
    absent = []
    for name in sorted(imports(source, (), False)):
        module, _, last = name.rpartition(".")
        if f"{module}.".startswith("hocket."):
            place = HOUSE.joinpath(*module.split(".")[1:])
            file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            is_module = (place / last).is_dir() or (place / f"{last}.py").exists()
            if not is_module and (not file.exists() or last not in defined(file.read_text(encoding="utf-8"))):
                absent.append(name)
    return absent


@pytest.mark.parametrize("folder", ["bench", "examples", "tests"])
def test_programs_outside_the_house_import_names_that_are_there(folder: str):
    """No test runs the benchmarks, and mypy does not read them."""
    programs = sorted((HOUSE.parent.parent / folder).rglob("*.py"))
    assert programs
    assert not {path.name: absent for path in programs if (absent := unknown_names(path.read_text(encoding="utf-8")))}


def test_an_import_of_a_name_that_is_gone_is_found():
    assert unknown_names("from hocket.families.jobs.rendezvous import rank, rank_of") == [
        "hocket.families.jobs.rendezvous.rank_of"
    ]
    assert unknown_names("from hocket.gone import name") == ["hocket.gone.name"]
    assert unknown_names("import hocket\nfrom hocket import job\nfrom hocket.kernel import keys") == []


def test_every_room_has_its_place():
    known = {*ORDER, *EVERYWHERE, *OPEN}
    rooms = {path.relative_to(HOUSE).parts[0].removesuffix(".py") for path in modules()}
    assert rooms <= known, "a new room needs its place in ORDER, and in the list in CONTRIBUTING.md"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_pages_about_the_house_name_modules_that_are_there(page: str):
    text = (HOUSE.parent.parent / page).read_text(encoding="utf-8")
    paths = {name for name in re.findall(r"`([\w/]+\.py)`", text)}
    dotted = {name for name in re.findall(r"`(\w+(?:\.\w+)+)`", text) if name.split(".")[0] in ORDER}
    assert paths and not {
        name
        for name in paths | {name.replace(".", "/") + ".py" for name in dotted}
        if not any(
            (base / name).exists() or (base / name).with_suffix("").is_dir()
            for base in (HOUSE, HOUSE.parent, HOUSE.parent.parent)
        )
    }


# The parts that every family has, and the session that every database has.
PARTS = {"__init__.py", "__main__.py", "facts.py", "requests.py", "rules.py", "session.py"}
FILES_MAX = 25
# Below this a file needs a reason.
LINES_MIN = 40
SMALL = {
    "bus/listener.py": "short commands do not load asyncio",
    "events/event_logging.py": "only programs that want log lines load logging",
    "families/json_values.py": "handlers, drafts and artifacts have no other file in common",
    "guard/fences.py": "each guard is loaded without the others",
}


def test_a_folder_is_seen_at_a_glance():
    folders = Counter(path.parent for path in modules())
    assert {str(folder.relative_to(HOUSE)): count for folder, count in folders.items() if count > FILES_MAX} == {}


def test_the_name_of_a_file_is_known_from_at_most_one_other_folder():
    names = Counter(path.name for path in modules() if path.name not in PARTS)
    assert [name for name, count in names.items() if count > 2] == []


def test_a_small_file_has_a_reason():
    small = {
        str(path.relative_to(HOUSE))
        for path in modules()
        if path.name not in PARTS and len(path.read_text(encoding="utf-8").splitlines()) < LINES_MIN
    }
    assert small == SMALL.keys()


def circles(sources: dict[str, str], packages: Collection[str] = ()) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others. Every import counts, also one inside a
    function or under TYPE_CHECKING. `sources` has each module's text under its name.
    """
    needs: dict[str, set[str]] = {}
    for name, source in sources.items():
        found = imports(source, tuple(name.split(".")), name in packages)
        needs[name] = {each if each in sources else each.rpartition(".")[0] for each in found} & sources.keys()
    reached = {name: _reached(name, needs) for name in needs}
    groups = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in needs}
    return sorted(list(group) for group in groups if group)


def _reached(name: str, needs: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(needs[name])
    while waiting:
        if (each := waiting.pop()) not in found:
            found.add(each)
            waiting += needs[each]
    return found


def test_no_modules_import_each_other():
    # The public face imports lazily what it shows, so that importing it is quick; that is the one exception.
    sources = {".".join(module_name(path)): path.read_text(encoding="utf-8") for path in modules()}
    packages = {".".join(module_name(path)) for path in modules() if path.stem == "__init__"}
    del sources["hocket"]
    assert not circles(sources, packages)


@pytest.mark.parametrize(
    "source",
    [
        "from hocket.room.b import B",
        "from hocket.room import b",
        "import hocket.room.b",
        "from .b import B",
        "def f():\n    from hocket.room.b import B",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from hocket.room.b import B",
    ],
)
def test_a_circle_is_found(source: str):
    sources = {
        "hocket.room.a": source,
        "hocket.room.b": "from hocket.room import c",
        "hocket.room.c": "from hocket.room.a import A",
        "hocket.room.d": "from hocket.room.a import A",
    }
    assert circles(sources) == [["hocket.room.a", "hocket.room.b", "hocket.room.c"]]


def test_a_package_that_imports_its_modules_and_is_imported_by_them_is_a_circle():
    sources = {"hocket.room": "from .a import A", "hocket.room.a": "from hocket.room import B"}
    assert circles(sources, {"hocket.room"}) == [["hocket.room", "hocket.room.a"]]
    assert circles(sources | {"hocket.room.a": "import os"}, {"hocket.room"}) == []


def test_no_class_name_stands_for_two_things():
    found: dict[str, list[str]] = {}
    for path in modules():
        for node in nodes(path.read_text(encoding="utf-8")):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{path.relative_to(HOUSE)}:{node.lineno}")
    assert not {name: places for name, places in found.items() if len(places) > 1}


def sessions(source: str) -> list[str]:
    """Where the source of a face reaches into the store, which is the service's to do."""
    found = []
    for node in nodes(source):
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
        ("hocket.extensions.sim.disk", "from hocket.store.sqlite import SqliteStore"),
        ("hocket.cli.doctor", "def f():\n    import hocket.store.sqlite.session"),
        ("hocket.log.audit", "import apsw"),
        ("hocket.kernel.ops", "from hocket.families.locks.facts import AcquireLocks"),
        ("hocket.families.locks.rules", "from hocket.store import Session"),
        ("hocket.families.locks.rules", "import os"),
        ("hocket.log.audit", "from hocket.families.locks.requests import LockClient"),
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
        ("hocket.errors", "from hocket.kernel.arbitration import Reason"),
        ("hocket.families.locks.rules", "from hocket.families.locks.facts import LOCK\nfrom hocket.kernel import ids"),
        ("hocket.work.claim_order", "from hocket.families import liveness"),
        ("hocket.store.message_rows", "from hocket.families.inbox.rules import Message"),
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
