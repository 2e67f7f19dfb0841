"""What is derived from ops that are about no job: which key a node has, what is delegated and revoked, who is the
coordinator, where kinds are routed, which schedules are set, which artifacts exist. Each register is entered when an
op counts and struck when it does not any more; whether it counts is the projection's question.
"""

from collections.abc import Callable, Iterable

from hocket.kernel.clock import Hlc, pack
from hocket.kernel.forks import read_fork
from hocket.kernel.ops import Op
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import (
    ClearSchedule,
    CreateArtifact,
    DelegateUcan,
    DesignateCoordinator,
    EvictArtifact,
    ReportFork,
    RevokeRoot,
    RevokeUcan,
    RouteKind,
    SetSchedule,
    number_of,
)
from hocket.store import Artifact, Coordinator, Delegated, Fork, Revoked, Schedule, Session

_ARTIFACT_OPS = (number_of(CreateArtifact),)
# What SQLite's integers can hold.
NEVER = 2**62


class Registers:
    """`known` gives an op by its id; `counting` gives every op of some variants that counts; `is_bound` says that ids
    follow from content.
    """

    def __init__(
        self,
        session: Session,
        known: Callable[[bytes], Op | None],
        counting: Callable[[tuple[int, ...]], Iterable[Op]],
        is_bound: bool,
    ) -> None:
        self._session = session
        self._known = known
        self._counting = counting
        self._is_bound = is_bound
        # Artifacts that are not stored yet.
        self._made: dict[bytes, Artifact] = {}
        # Asked once, when it matters: most logs have no routes.
        self._any_routes: bool | None = None

    def route(self, kind: str, at: Hlc) -> int | None:
        """The node that the kind is routed to at that time, if any."""
        if self._any_routes is None:
            self._any_routes = self._session.has_routes()
        if not self._any_routes:
            return None
        node = self._session.route(kind, pack(at))
        return None if node is None else int.from_bytes(node, "big")

    def introduce(self, op: Op) -> None:
        """Notes the key of a node that a delegation names, whether or not that op counts: which key a node has
        is the user's signed word and must not hang on the order in which ops arrive. What the node may do is
        another question.
        """
        if isinstance(op.payload, DelegateUcan):
            delegation = read_ucan(op.payload.ucan_bytes)
            node = delegation.node.to_bytes(8, "big")
            self._session.bind(node, delegation.public, delegation.issuer, pack(op.timestamp))

    def enact(self, op: Op) -> bool:
        """Enters a delegation, a revocation or a proof of two histories in the permissions, whatever its author may do:
        what each of them is worth is found out by reading all of them together. False when it is there already.
        """
        hlc, payload = pack(op.timestamp), op.payload
        if isinstance(payload, DelegateUcan):
            return self._session.set_delegation(Delegated(op.id, payload.ucan_cid, hlc, payload.ucan_bytes))
        if isinstance(payload, ReportFork):
            forked = read_fork(payload)
            assert forked is not None
            return self._session.set_fork(Fork(op.id, forked.node.to_bytes(8, "big"), pack(forked.since)))
        assert isinstance(payload, RevokeUcan | RevokeRoot)
        is_root = isinstance(payload, RevokeRoot)
        return self._session.set_revocation(Revoked(op.id, payload.ucan_cid, hlc, int(is_root)))

    def repeal(self, op: Op) -> bool:
        """Takes it out again. False when it was not there."""
        session = self._session
        return session.drop_delegation(op.id) or session.drop_revocation(op.id) or session.drop_fork(op.id)

    def is_designated(self, op: Op) -> bool:
        """Whether a designation was entered already."""
        if not isinstance(op.payload, DesignateCoordinator):
            return False
        return any(each.op_id == op.id for each in self._session.coordinators())

    def enter(self, op: Op) -> None:
        payload = op.payload
        hlc = pack(op.timestamp)
        if isinstance(payload, DesignateCoordinator):
            # A pin looks back, so nothing that comes to light may change whether it counts.
            pin = None if op.pin is None or op.cited else op.pin.commitment
            self._session.set_coordinator(Coordinator(hlc, op.id, payload.coordinator.to_bytes(8, "big"), pin))
        elif isinstance(payload, EvictArtifact):
            self._session.add_eviction(op.id, payload.artifact_id)
        elif isinstance(payload, CreateArtifact):
            expires = None if payload.ttl_ms is None else min(op.timestamp.wall + payload.ttl_ms, NEVER)
            what = payload.artifact_type, payload.source_job, payload.content_hash, min(payload.size_bytes, NEVER)
            is_inline = int(payload.content_inline is not None)
            artifact = Artifact(payload.artifact_id, op.id, *what, expires, is_inline, hlc)
            if self._is_bound and artifact.id == op.id:
                # What bears the id of its own op can have no rival.
                self._made[artifact.id] = artifact
            else:
                self._enter_artifact(artifact, op)
        elif isinstance(payload, RouteKind):
            self._any_routes = True
            node = None if payload.route is None else payload.route.to_bytes(8, "big")
            self._session.set_route(payload.kind, hlc, node)
        elif isinstance(payload, SetSchedule | ClearSchedule):
            self._session.set_schedule(scheduled(op), counts=True)

    def strike(self, op: Op) -> None:
        payload = op.payload
        if isinstance(payload, DesignateCoordinator):
            self._session.drop_coordinator(op.id)
        elif isinstance(payload, EvictArtifact):
            self._session.drop_eviction(op.id)
        elif isinstance(payload, CreateArtifact):
            artifact = self.artifact(payload.artifact_id)
            if artifact is not None and artifact.op_id == op.id:
                self._made.pop(payload.artifact_id, None)
                self._session.drop_artifact(payload.artifact_id)
                self._enter_again(_ARTIFACT_OPS, "artifact_id", payload.artifact_id)
        elif isinstance(payload, RouteKind):
            self._session.drop_route(payload.kind, pack(op.timestamp))
        elif isinstance(payload, SetSchedule | ClearSchedule):
            self._session.strike_schedule(op.id)

    def _enter_artifact(self, artifact: Artifact, op: Op) -> None:
        """Of several ops that make the same artifact the earliest counts."""
        rival = self._session.artifact(artifact.id)
        if rival is not None and (other := self._known(rival.op_id)) and other.timestamp > op.timestamp:
            self._session.drop_artifact(artifact.id)
        self._session.add_artifacts([artifact])

    def artifact(self, artifact_id: bytes) -> Artifact | None:
        return self._made.get(artifact_id) or self._session.artifact(artifact_id)

    def flush(self) -> None:
        """Stores what was made, so that the store's queries see it."""
        if self._made:
            self._session.add_artifacts(list(self._made.values()))
            self._made.clear()

    def _enter_again(self, variants: tuple[int, ...], field: str, value: object) -> None:
        """What else was said of the same thing has force again."""
        for other in self._counting(variants):
            if getattr(other.payload, field, None) == value:
                self.enter(other)


def scheduled(op: Op) -> Schedule:
    """What an op says of a schedule."""
    payload = op.payload
    hlc = pack(op.timestamp)
    if isinstance(payload, SetSchedule):
        job = payload.kind, payload.payload, payload.policy_envelope
        return Schedule(payload.name, hlc, payload.cron, payload.timezone, *job, op.timestamp.wall, op.id)
    assert isinstance(payload, ClearSchedule)
    return Schedule(payload.name, hlc, None, "", "", b"", b"", 0, op.id)
