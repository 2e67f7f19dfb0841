"""The horizon up to which the log is settled, and pruning now."""

from collections.abc import Iterator

from hocket.api import Service, ServiceAnswer
from hocket.api.nodes import READ, WRITE
from hocket.api.operation import operation
from hocket.api.views import Line, View, moment
from hocket.errors import Conflict
from hocket.events.nodes import HorizonMoved, OpsPruned
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import node_text
from hocket.kernel.texts import counted
from hocket.store import Session

# A horizon may not let go what an op refers to that comes while it is computed: so often it is tried.
TRIES = 5


class HorizonShown(ServiceAnswer, frozen=True):
    """The horizon in force here. Everything up to `at_ms` is settled, and the node moved it at `moved_ms`. What has
    gone is `hidden` as soon as no view has it, and `deleted` when it is no longer in the store; `waits_for` is why it
    is not. `late_ops` are from before the horizon, came after it, and do not count.
    """

    at_ms: int | None
    moved_ms: int | None
    node: str | None
    hidden: bool
    deleted: bool
    waits_for: str | None
    late_ops: int


class Pruned(ServiceAnswer, frozen=True):
    """What pruning now has done: whether the horizon moved, how many ops were let go, and what was deleted."""

    moved: bool
    ops: int
    deleted_ops: int
    deleted_bytes: int
    horizon: HorizonShown


def _horizon(service: Service, session: Session) -> HorizonShown:
    row, keeper = session.horizon(), service.runtime.log.horizons
    late = session.refusal_counts().get(int(Reason.BEHIND_HORIZON), 0)
    if row is None:
        return HorizonShown(None, None, None, False, False, None, late)
    op = session.op(row.op)
    moved = None if op is None else int.from_bytes(op.hlc[:8], "big")
    node = None if op is None else node_text(int.from_bytes(op.hlc[12:], "big"))
    waits = None if row.is_deleted else keeper.missing(session, row)
    return HorizonShown(row.at_ms, moved, node, row.is_denied, row.is_deleted, waits, late)


def _show_horizon(found: HorizonShown) -> Iterator[View]:
    if found.at_ms is None:
        yield Line("there is no horizon: nothing was let go")
        return
    state = "deleted" if found.deleted else "hidden" if found.hidden else "being hidden"
    yield Line(f"settled up to {moment(found.at_ms)}; what was let go is {state}")
    if found.waits_for is not None:
        yield Line(f"deleting it waits for {found.waits_for}", "warn")
    if found.late_ops:
        yield Line(f"{counted(found.late_ops, 'op')} came too late and do not count")


@operation("show_horizon", "GET /v1/horizon", READ, show=_show_horizon)
def horizon(service: Service) -> HorizonShown:
    """Show up to where the log is settled here."""
    with service.read() as session:
        return _horizon(service, session)


def _show_pruned(done: Pruned) -> Iterator[View]:
    yield Line(f"{counted(done.ops, 'op')} let go, {done.deleted_ops} deleted with {done.deleted_bytes} bytes")
    yield from _show_horizon(done.horizon)


@operation("prune_log", "POST /v1/prune", WRITE, show=_show_pruned)
def prune(service: Service) -> Pruned:
    """Let go now what the rules say. The node that decides moves the horizon; every other one follows the horizon that
    it knows. Servers and workers do this by themselves from time to time.
    """
    service.check_writer()
    log = service.runtime.log
    keeper = log.horizons
    with service.read() as session:
        if (why := keeper.obstacle(session)) is not None:
            raise Conflict(f"nothing is pruned here: {why}")
    let_go = deleted = size = 0
    # Only entries that the trees of their authors have are deleted.
    log.checkpoints.make()
    before = keeper.follow()
    moved = _move(service)
    for event in (*before, *keeper.follow()):
        if isinstance(event, HorizonMoved):
            let_go += event.ops
        elif isinstance(event, OpsPruned):
            deleted, size = deleted + event.ops, size + event.bytes
        else:
            service.warn(str(event))
    if moved:
        service.wrote()
    with service.read() as session:
        return Pruned(moved, let_go, deleted, size, _horizon(service, session))


def _move(service: Service) -> bool:
    keeper = service.runtime.log.horizons
    for _ in range(TRIES):
        with service.read() as session:
            if not keeper.may_move(session):
                return False
            plan = keeper.plan(session)
        if plan is None or not plan.settlement.gone_ops:
            return False
        if keeper.move(plan):
            return True
    raise Conflict("ops about what would go came while it was computed; try again")
