"""What ops about the mesh itself establish: which key a node has, what is delegated and revoked, who is the
coordinator, and where kinds are routed. The engine decides whether an op counts.
"""

from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.ops import Op, pinned_time
from hocket.kernel.policy import names_of
from hocket.kernel.reasons import Reason
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import (
    JOB,
    NAMES,
    DelegateUcan,
    DesignateCoordinator,
    ReportFork,
    RevokeRoot,
    RevokeUcan,
    RouteKind,
    Subject,
)
from hocket.log.checked_registers import row_of
from hocket.log.projectors import Engine, Projector, family_names
from hocket.store import Coordinator, Delegated, Fork, Revoked, Session


class GrantRegister:
    """Delegations, revocations and proofs of two histories. Each takes effect as soon as every op that it cites is
    here, whatever its author may do: reading all of them together shows what each is worth.
    """

    payloads = (DelegateUcan, RevokeUcan, RevokeRoot, ReportFork)

    def __init__(self, session: Session) -> None:
        self._session = session

    def introduce(self, op: Op) -> None:
        """Stores the key of a node that a delegation names, whether or not that op counts: the user has signed which
        key a node has, and that must not depend on the order of arrival. What the node may do is another question.
        """
        if isinstance(op.payload, DelegateUcan):
            delegation = read_ucan(op.payload.ucan_bytes)
            node = delegation.node.to_bytes(8, "big")
            self._session.bind(node, delegation.public, delegation.issuer, pack(op.timestamp))

    def enact(self, op: Op) -> bool:
        """False if it is already there."""
        row = row_of(op)
        if isinstance(row, Delegated):
            return self._session.set_delegation(row)
        if isinstance(row, Fork):
            return self._session.set_fork(row)
        assert isinstance(row, Revoked)
        return self._session.set_revocation(row)

    def repeal(self, op: Op) -> bool:
        """Removes it. False if it was not there."""
        session = self._session
        return session.drop_delegation(op.id) or session.drop_revocation(op.id) or session.drop_fork(op.id)

    def revocations(self) -> list[bytes]:
        return [revoked.op_id for revoked in self._session.revocations()]


class CoordinatorRegister:
    payloads = (DesignateCoordinator,)

    def __init__(self, session: Session, engine: Engine, projectors: dict[str, Projector[object]]) -> None:
        self._session, self._engine, self._projectors = session, engine, projectors

    def has(self, op: Op) -> bool:
        """Whether a designation is already entered."""
        if not isinstance(op.payload, DesignateCoordinator):
            return False
        return any(each.op_id == op.id for each in self._session.coordinators())

    def put(self, op: Op) -> None:
        row = row_of(op)
        assert isinstance(row, Coordinator)
        self._session.set_coordinator(row)

    def enter(self, op: Op) -> None:
        self.put(op)
        self._follow(op)

    def strike(self, op: Op) -> None:
        self._session.drop_coordinator(op.id)
        self._follow(op)

    def _follow(self, op: Op) -> None:
        """A designation that arrives late, or no longer counts, changes who could decide since then."""
        engine = self._engine
        engine.permissions_changed(op)
        engine.flush()
        since = self._decided_since(op)
        for family in family_names():
            projector = self._projectors[family]
            for key in projector.keys_since(since):
                engine.ask_again(Subject(family, key), permissions=True)
        for subject in engine.offered_since(unpack(since)):
            engine.ask_again(subject, permissions=True)
        derivations = tuple(number for number, name in NAMES.items() if name in engine.permissions.derivation_ops)
        for row in self._session.ops_of_variants(derivations) if derivations else ():
            if row.hlc > pack(op.timestamp):
                engine.doubt(row.id)
        for row in self._session.ops_refused_for((Reason.WAITING,)):
            if row.subject is None:
                engine.doubt(row.id)
            else:
                engine.ask_again(row.subject)

    def _decided_since(self, designation: Op) -> bytes:
        """Since when a designation changes who decides: its own time, that of the predecessor's op that it pins, or
        what the next designation pins, since that bounds another tenure then.
        """
        at = pack(designation.timestamp)
        later = next((each for each in self._session.coordinators() if each.hlc > at), None)
        pins = (None if designation.cited else designation.pin, None if later is None else later.pin)
        return min((at, *(pack(pinned_time(pin, 0)) for pin in pins if pin is not None)))


class RouteRegister:
    payloads = (RouteKind,)

    def __init__(self, session: Session, engine: Engine) -> None:
        self._session, self._engine = session, engine
        # Read once, on first use: most logs have no routes.
        self._names: set[str] | None = None

    def route(self, kind: str, at: Hlc) -> int | None:
        """The node that the kind is routed to at that time, if any. Its own route goes before that of a prefix, and a
        longer prefix before a shorter one.
        """
        if self._names is None:
            session = self._session
            self._names = {name for name, _, _ in session.routes()} if session.has_routes() else set()
        if not self._names:
            return None
        for name in names_of(kind):
            if name in self._names and (node := self._session.route(name, pack(at))) is not None:
                return int.from_bytes(node, "big")
        return None

    def log_changed(self) -> None:
        """Others may have written since."""
        self._names = None

    def enter(self, op: Op) -> None:
        assert isinstance(op.payload, RouteKind)
        if self._names is not None:
            self._names.add(op.payload.kind)
        node = None if op.payload.route is None else op.payload.route.to_bytes(8, "big")
        if (check := self._session.row_check) is not None:
            check.enter_route(op.payload.kind, pack(op.timestamp), node)
        self._session.set_route(op.payload.kind, pack(op.timestamp), node)
        self._follow(op)

    def strike(self, op: Op) -> None:
        assert isinstance(op.payload, RouteKind)
        self._session.drop_route(op.payload.kind, pack(op.timestamp))
        self._follow(op)

    def _follow(self, op: Op) -> None:
        """A route that arrives late changes who could claim since then."""
        assert isinstance(op.payload, RouteKind)
        self._engine.flush()
        for job_id in self._session.jobs_of_kinds_since(op.payload.kind, pack(op.timestamp)):
            self._engine.ask_again(Subject(JOB, job_id))
