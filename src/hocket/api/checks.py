"""Checks everything that a home depends on, from the interpreter to the log's first op. Changes nothing and trusts
nothing: any error becomes a finding. It also checks homes that cannot be opened, so it needs no `Service`.
"""

import fcntl
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import distributions
from typing import Literal

from hocket.api import ServiceAnswer
from hocket.api.status import breakers_of
from hocket.errors import Conflict, HocketError, StoreError, Usage
from hocket.events.nodes import CheckpointsDiffer, NodeForked
from hocket.families.availability.requests import unavailable
from hocket.families.liveness import SILENT_S, WorkerState, machine_liveness, standing, whereabouts
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Authority
from hocket.kernel.clock import U32_MAX, Hlc, unpack
from hocket.kernel.extension import named_parts
from hocket.kernel.ids import node_id, node_text
from hocket.kernel.keys import RowMac
from hocket.kernel.mesh_rules import HOCKET, decode_kept_rules
from hocket.kernel.ops import decode
from hocket.kernel.retrying import BreakerState
from hocket.kernel.texts import counted, span
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import DelegateUcan
from hocket.log import RULES
from hocket.log.limits import OUTBOX_OPS_MAX, waiting
from hocket.log.lost_past import own_history
from hocket.log.permissions import Permissions, PermissionsReader, writers
from hocket.log.written.journal import noted, report_file
from hocket.mesh.incoming import BEHIND_SENTENCE
from hocket.node import variables
from hocket.node.home import Home, exposure, key_owner
from hocket.node.home_store import blob_place, check_sharing
from hocket.node.message_bus import bus_settings
from hocket.node.running import running_buses
from hocket.store import Session, WakeUp, backend
from hocket.store import open as open_store
from hocket.store.artifact_rows import BlobPlace
from hocket.store.checkpoint_rows import CheckpointState
from hocket.store.files import lock_holder
from hocket.store.intake import REFUSALS_KEPT

DISK_BAD, DISK_LOW = 16 * 1024 * 1024, 256 * 1024 * 1024
CLOCK_BEHIND_MS_MAX = 60_000
MIB = 1024 * 1024
# Ops that wait longer than this for what they depend on are reported.
WAITING_MS_MAX = 10 * 60 * 1000
# Ops of this node that came back from others are reported for this long: a week.
CAME_BACK_MS = 604_800_000
# A process that is seen to hold the write lock for this long holds up every other.
LOCKED_S = 2.0
TWINS = (
    "{count} ops have the same timestamp as another op of their author, so neither counts; that node's key is in use in"
    " two places, or its clock was set back behind its log's"
)


Verdict = Literal["ok", "warn", "bad"]


class Check(ServiceAnswer, frozen=True):
    verdict: Verdict
    check: str
    says: str


# What a check finds; a check of several things names each.
Findings = Iterator[tuple[Verdict, str] | Check]


def examine(home: Home) -> Iterator[Check]:
    yield from _guarded("python", _python)
    yield from _guarded("installation", _installation, "this one alone")
    yield from _guarded("home", lambda: _home(home))
    if not home.path.is_dir():
        return
    yield from _guarded("keys", lambda: _keys(home))
    yield from _guarded("disk", lambda: _disk(home))
    for name, look in named_parts("checks").items():
        yield from _guarded(name, partial(look, home))
    yield from _guarded("environment", _environment)
    yield from _guarded("bus", lambda: _bus(home))
    if not home.processes.exists():
        yield Check("warn", "locks and pipes", f"{home.processes} is missing; the next command makes it again")
    if home.processes.is_dir() and os.access(home.processes, os.W_OK):
        yield from _guarded("locks and pipes", lambda: _file_system(home))
    if home.has_store():
        yield from _guarded("database", lambda: _database(home))
    if (home.path / "crash.log").exists():
        yield Check("warn", "crash log", f"a command crashed; read {home.path / 'crash.log'}, then remove it")


def _guarded(check: str, look: Callable[[], Findings], fine: str = "") -> Iterator[Check]:
    """The findings of one check. A check that raises yields a finding, too; one without findings is `fine`."""
    try:
        found = False
        for each in look():
            found = True
            yield each if isinstance(each, Check) else Check(each[0], check, each[1])
        if fine and not found:
            yield Check("ok", check, fine)
    except HocketError as error:
        yield Check("bad", check, str(error))
    except Exception as error:
        yield Check("bad", check, f"could not be checked: {type(error).__name__}: {error}")


def _python() -> Findings:
    yield ("ok", ".".join(map(str, sys.version_info[:3])))


def _installation() -> Findings:
    """Other copies of the package that this Python could load, and of the program that a shell could run."""
    copies = {str(each.locate_file("")): each.version for each in distributions(name="hocket")}
    if len(copies) > 1:
        listed = ", ".join(f"{version} in {place}" for place, version in copies.items())
        yield ("warn", f"Hocket is installed {len(copies)} times for this Python: {listed}; uninstall all but one")
    folders = os.environ.get("PATH", "").split(os.pathsep)
    programs = dict.fromkeys(
        os.path.realpath(found) for each in folders if (found := shutil.which("hocket", path=each))
    )
    if len(programs) > 1:
        first, *others = programs
        yield ("ok", f"a shell runs {first}; other copies, to be kept at one version: {', '.join(others)}")


def _environment() -> Findings:
    """Which variables are set. A bad value of one is reported."""
    for switch in (variables.MESH_ENABLED, variables.DB_CIRCUIT_BREAKER):
        variables.is_on(switch)
    names = [name for name in variables.ALL if variables.given(name) is not None]
    yield ("ok", f"{', '.join(names)} set" if names else "no variable of a node is set")


def _bus(home: Home) -> Findings:
    """The servers that carry messages, if any are set, and the connections of running processes to them."""
    settings = bus_settings(home)
    if settings is not None:
        yield ("ok", f"messages go over {settings}")
    for each in running_buses(home.processes):
        if not each.is_connected:
            yield ("warn", f"{each.server} is away for process {each.pid}: {each.detail}")
        elif each.detail or not each.keeps:
            yield ("warn", f"{each.server}: {each.detail or 'it keeps no announcements; turn on JetStream'}")


def _home(home: Home) -> Findings:
    home.check()
    yield ("ok", str(home.path))
    for path in home.exposed():
        mode = path.lstat().st_mode & 0o777
        yield ("warn", f"other users can access {path} (mode {mode:04o}); the next command stops that")


def _keys(home: Home) -> Findings:
    for path in home.key_files():
        whose = key_owner(path)
        exposed = exposure(path)
        if exposed is not None:
            yield ("bad", exposed)
        elif path.name == "user.key" and home.user_did() != whose:
            yield ("bad", f"{path} is not the key of this home's user; restore the right one")
        else:
            locked = path.name == "user.key" and home.is_locked()
            said = "locked" if locked else "there, and only its owner can read it"
            yield ("ok", f"{path.name} is {said}")


def _disk(home: Home) -> Findings:
    free = shutil.disk_usage(home.path).free
    if free >= DISK_LOW:
        yield ("ok", f"{free // MIB} MiB free")
    else:
        yield ("bad" if free < DISK_BAD else "warn", f"only {free // MIB} MiB free; free some space")


def _file_system(home: Home) -> Findings:
    """Whether the home's file system supports the locks and pipes that processes use to find and wake each other."""
    path = home.processes / f"doctor-{os.getpid()}"
    try:
        os.mkfifo(path, 0o600)
        path.unlink()
        first = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        second = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield ("ok", "the file system supports both")
            else:
                yield ("bad", "file locks do not work here; put the home on a local disk")
        finally:
            os.close(first)
            os.close(second)
    except OSError as error:
        yield ("bad", f"{error.strerror}; put the home on a local disk")
    finally:
        path.unlink(missing_ok=True)


def _database(home: Home) -> Findings:
    if home.server is None:
        yield from _guarded("write lock", lambda: _write_lock(home), "no process keeps the others from writing")
    store = open_store(home.store_address)
    try:
        with suppress(HocketError):  # the check of the keys says why
            store.mac_rows(RowMac(home.node_key()))
        with store.read() as session:
            damage = session.damage()
            yield from (("bad", f"damaged: {what}; restore a backup") for what in damage)
            if not damage:
                yield ("ok", f"opens and is intact, {counted(session.op_count(), 'op')}")
            now_ms = round((store.server_clock or time.time)() * 1000)
            if home.server is None:
                yield from _guarded("first op", lambda: _first_op(home, session), "the keys match the first op")
            else:
                yield from _guarded("store", lambda: _sharing(home, session, now_ms))
            yield from _guarded(
                "rows beside the log", lambda: _macs(session), "this node has written all that are its own"
            )
            yield from _guarded("integrity", lambda: _integrity(home, session))
            yield from _guarded("history", lambda: _history(home, session))
            yield from _guarded("waiting ops", lambda: _waiting(session), "none has waited for long")
            yield from _guarded(
                "outbox", lambda: _outbox(home, session), "no op has waited for the coordinator for long"
            )
            yield from _guarded("breakers", lambda: _breakers(home, session), "none is open")
            yield from _guarded("clock", lambda: _clock(session, now_ms), "not behind the log's")
            yield from _guarded("workers", lambda: _workers(home, session, now_ms))
            yield from _guarded("work", lambda: _availability(home, session), "this node takes new jobs")
            yield from _guarded("rebuild", lambda: _rebuild(session), "no unfinished rebuild")
    finally:
        store.close()
    if (server := home.server) is not None:
        yield from _guarded("wake-ups", lambda: _wake_ups(server))


def _wake_ups(server: str) -> Findings:
    """How processes learn of changes that other machines commit."""
    database = backend(server)
    if database.listener is None:
        yield ("ok", f"polling, because {database.name} sends no notifications")
        return
    direct = variables.listen_address()
    listener = database.listener(server, direct)
    try:
        way = listener.open()
    except StoreError as error:
        yield ("warn", f"polling: {error}")
        return
    finally:
        listener.close()
    if way is WakeUp.LISTENING:
        how = "on the store's own address" if direct is None else f"past the pooler, on {variables.STORE_LISTEN}"
        yield ("ok", f"listening {how}")
    else:
        whose = "the store's address" if direct is None else variables.STORE_LISTEN
        yield (
            "warn",
            f"polling, because {whose} leads to a pooler; set {variables.STORE_LISTEN} to an address of the database"
            " itself",
        )


def _write_lock(home: Home) -> Findings:
    """Whether one process keeps every other from writing."""
    holder, until = lock_holder(str(home.database)), time.monotonic() + LOCKED_S
    while holder is not None and not holder.is_stopped and time.monotonic() < until:
        time.sleep(LOCKED_S / 100)
        now = lock_holder(str(home.database))
        holder = holder if now is not None and now.pid == holder.pid else None
    if holder is not None:
        says = f"{holder}, holds the write lock, and nothing can be written" if holder.is_stopped else ""
        says = says or f"{holder} has held the write lock for {LOCKED_S:.0f} seconds"
        yield ("bad", f"{says}; {holder.remedy}")


def _macs(session: Session) -> Findings:
    """Whether this node has written the rows of the store that are its own."""
    found = session.without_mac()
    for table in dict.fromkeys(each.table for each in found):
        old = [each.key for each in found if each.table == table and each.is_old]
        forged = [each.key for each in found if each.table == table and not each.is_old]
        if old:
            which = f"{counted(len(old), 'row')} of {table} {_some(old)} from before rows had MACs"
            yield ("warn", f"{which}, which no node believes; {_ANEW.get(table, _DROP)}")
        if forged:
            which = f"{counted(len(forged), 'row')} of {table} {_some(forged)} that this node has not written"
            yield ("bad", f"{which} and does not believe; find out who writes to the store")


_DROP = "they can be deleted"
_ANEW = {
    "tokens": "make the tokens anew with `hocket token create`",
    "invitations": "invite again with `hocket mesh invite`",
    "peers": "add the peers again with `hocket mesh peers add`",
}
_NAMED_MAX = 5


def _some(keys: list[str]) -> str:
    """The first keys in parentheses."""
    return f"({', '.join(keys[:_NAMED_MAX])}{', …' if len(keys) > _NAMED_MAX else ''})"


def _integrity(home: Home, session: Session) -> Findings:
    """Nodes with two histories, or with two votes in one term, and ops of one author with the same timestamp."""
    count = session.refusal_counts().get(Reason.INTEGRITY, 0)
    for node in {fork.node for fork in session.forks()}:
        yield ("bad", str(NodeForked(node_text(int.from_bytes(node, "big")))))
    for voter in sorted(_permissions(home, session).chain.double_voters) if session.successions() else ():
        twice = f"node {node_text(voter)} has voted for two nodes in one term, so neither became the coordinator"
        yield ("bad", f"{twice}; revoke it, and invite its machine again")
    conflicts = [each for each in session.checkpoints() if each.state == CheckpointState.CONFLICT]
    for each in conflicts:
        yield ("bad", str(CheckpointsDiffer(node_text(int.from_bytes(each.author, "big")), each.size)))
    if count:
        yield ("bad", f"{TWINS.format(count=count)}; `hocket log` marks them")
    else:
        yield ("ok", "no two ops of one author share a timestamp")


def _history(home: Home, session: Session) -> Findings:
    """Whether this node has lost ops of its own that others have."""
    node = node_id(home.node_key().public)
    history, recent = own_history(session, node), int(time.time() * 1000) - CAME_BACK_MS
    came_back = [each for each in session.refusals(REFUSALS_KEPT) if each.reason == Reason.TWIN and each.wall > recent]
    if history.is_behind:
        yield ("bad", BEHIND_SENTENCE)
    elif came_back:
        yield (
            "warn",
            f"{len(came_back)} ops of this node came back from other nodes: the home was restored from a backup, or"
            " another copy of it is in use; if so, stop one of them",
        )
    else:
        yield ("ok", "nothing of this node's own is known to be lost")
    if (lost := noted(home.written)) is not None and (lost.missing or lost.refused or lost.at_ms > recent):
        remedy = f"; remove {report_file(home.written)} when you have dealt with it"
        yield ("bad", f"{lost}{remedy}") if lost.missing or lost.refused else ("warn", str(lost))
    if history.has_set_aside:
        yield ("warn", "ops written after a restore wait to be written again; run `hocket mesh sync`")


def _availability(home: Home, session: Session) -> Findings:
    """Whether this node takes new jobs."""
    state = unavailable(session).get(node_id(home.node_key().public))
    if state is not None:
        reason = f" ({state.reason})" if state.reason else ""
        how = f"{state.availability.name.lower()}{reason}, for {span(int(time.time() * 1000) - state.at.wall)}"
        yield ("warn", f"this node is {how}, and takes no new jobs; `hocket node resume here` ends that")


def _waiting(session: Session) -> Findings:
    """Ops that wait for what they depend on. Usually that comes within seconds."""
    now = max(session.head().wall, int(time.time() * 1000))
    waited = [now - unpack(row.hlc).wall for row in session.ops_refused_for((int(Reason.WAITING),))]
    if old := [each for each in waited if each > WAITING_MS_MAX]:
        yield (
            "warn",
            f"{len(old)} ops wait for ops that have not come, the oldest for {span(max(old))}: a node has lost some of"
            " its ops, or one that has them is away; check `hocket mesh peers list` here, and `hocket node doctor`"
            " there",
        )


def _outbox(home: Home, session: Session) -> Findings:
    """Ops that wait for a coordinator which is out of reach."""
    now, node = int(time.time() * 1000), node_id(home.node_key().public)
    coordinator = _permissions(home, session).leader(Hlc(max(session.head().wall, now), U32_MAX, node))
    found = waiting(session, node, coordinator)
    if found.since_ms is not None and now - found.since_ms > WAITING_MS_MAX:
        says = f"{counted(found.ops, 'op')} of at most {OUTBOX_OPS_MAX:,} wait for the coordinator, the oldest for"
        yield ("warn", f"{says} {span(now - found.since_ms)}; check `hocket mesh peers list`")


def _permissions(home: Home, session: Session) -> Permissions:
    kept = session.meta(RULES)
    reader = PermissionsReader(home.user_did(), HOCKET if kept is None else decode_kept_rules(kept))
    return reader.read(session, session.head().permissions_state)


def _breakers(home: Home, session: Session) -> Findings:
    """Peers and stores that have failed so often that nothing calls them now."""
    found = [each for each in breakers_of(session, home) if each.state != BreakerState.CLOSED]
    for each in found:
        whose = each.what if each.process is None else f"{each.what} in process {each.process}"
        yield ("warn", f"{whose} is {each.state} after {each.failures} failures: {each.error}")


def _sharing(home: Home, session: Session, now_ms: int) -> Findings:
    """Whether this node may use a store that nodes share."""
    node, permissions = node_id(home.node_key().public), _permissions(home, session)
    try:
        check_sharing(session, node, permissions, now_ms)
    except Conflict as error:
        yield ("bad", str(error))
    else:
        count, where = len(writers(session, permissions)), backend(home.server or home.database).name
        shared = f", shared by {counted(count, 'node')}" if count > 1 else ""
        blobs = ", with their blobs" if blob_place(session) is BlobPlace.STORE else ""
        yield ("ok", f"in {where}{shared}{blobs}")


def _first_op(home: Home, session: Session) -> Findings:
    """Whether the log begins with a delegation to this node that leads back to the user."""
    row = session.entry(1)
    payload = None if row is None else decode(row.body).payload
    if not isinstance(payload, DelegateUcan):
        yield ("bad", "the log does not begin with a delegation; restore a backup")
        return
    delegation = read_ucan(payload.ucan_bytes)
    known = [read_ucan(each.token) for each in session.delegations()]
    if delegation.node != node_id(home.node_key().public):
        yield ("bad", "node.key does not belong to this log; restore the right key")
    elif Authority(home.user_did(), [delegation, *known], ()).fault(delegation) is not None:
        whose = "user.key does not belong to this log's user" if home.has_user_key() else "user.did names another user"
        yield ("bad", f"{whose}; restore the right one")


def _clock(session: Session, now_ms: int) -> Findings:
    behind = session.head().wall - now_ms
    if behind > CLOCK_BEHIND_MS_MAX:
        yield (
            "warn",
            f"the log has times up to {span(behind)} ahead of this machine's clock; if the clock is right now, leave"
            f" it: time here runs at half speed until it has caught up, in at most {span(2 * behind)}; else set it",
        )


def _workers(home: Home, session: Session, now_ms: int) -> Findings:
    liveness = machine_liveness(home.processes, time.monotonic)
    now = max(session.head().wall, now_ms)
    workers = session.workers()
    stand = {each.number: standing(liveness, each, now) for each in workers}
    held = Counter(stand[entry.worker] for entry in session.claimed() if entry.worker in stand)
    count = Counter(stand.values())
    if died := count[WorkerState.DIED]:
        left = f"{died} died and left {counted(held[WorkerState.DIED], 'job')} behind"
        yield ("warn", f"{left}; the next worker returns them to the queue")
    for each in workers:
        if stand[each.number] is WorkerState.SILENT:
            which = f"process {each.pid} {whereabouts(each.place, liveness.place)}".strip()
            then = f"a worker that runs here for {SILENT_S:.0f} s returns its jobs to the queue"
            yield ("warn", f"{which} has been silent for {span(now - each.beat)}; {then}")
    if count[WorkerState.RUNNING] == len(workers):
        yield ("ok", f"{len(workers)} running, none died" if workers else "none running, none died")


def _rebuild(session: Session) -> Findings:
    if session.head().rebuilding is not None:
        yield ("bad", "a rebuild is running or was interrupted; run `hocket log rebuild` to finish it")


def user_of(home: Home) -> str:
    """The user of a home. If the user's key is lost, the first op still has it: the user's delegation."""
    try:
        return home.user_did()
    except StoreError:
        store = open_store(home.store_address)
        try:
            with store.read() as session:
                row = session.entry(1)
        finally:
            store.close()
        payload = None if row is None else decode(row.body).payload
        if not isinstance(payload, DelegateUcan):
            raise Usage(f"the home {home.path} does not name its user; restore all of it from a backup") from None
        return read_ucan(payload.ucan_bytes).issuer
