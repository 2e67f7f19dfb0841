"""Checks that a node which the user has admitted signed an op from elsewhere, and that the op's ids follow from its
content. The first op of every node is a delegation to itself that leads back to the user and states the node's key. No
other op of a node comes in before that one, even if another node has passed on its delegation and so its key. The fold
decides the rest: what the op means, whether its author may write it, and whether it counts.
"""

from collections.abc import Callable, Sequence

from hocket.families.jobs.rules import is_tick
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Authority, is_root_revocation
from hocket.kernel.bundles import read_facts
from hocket.kernel.clock import WALL_MAX
from hocket.kernel.ops import Op, foreseen_id, is_bound, is_misnamed, verify_op
from hocket.kernel.postcard import Malformed
from hocket.kernel.signing import BOUND_OP_BYTES_MAX, read_fork
from hocket.kernel.ucan import Delegation
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import (
    EXTENSION_BASE,
    Bundle,
    DelegateUcan,
    ReportFork,
    RevokeRoot,
    Sanitised,
    ScheduleJob,
    Unknown,
    discriminant,
)
from hocket.log.parallel import Helpers, Shared
from hocket.log.permissions import Permissions

# Reasons that can pass: the missing thing may arrive later, and then the op must be sent again.
CURABLE = frozenset(
    (Reason.UNKNOWN_NODE, Reason.UNRESOLVED, Reason.HELD_FULL, Reason.UNLINKED, Reason.QUOTA, Reason.IDLE)
)

# Reasons that are found only after the signature of a member was.
SIGNED = frozenset((Reason.UNKNOWN_VARIANT, Reason.UNBOUND, Reason.TOO_LARGE))

Received = tuple[bytes, Op]


class AuthorCheck:
    """`keys` are the nodes known so far; new delegations add to them. `has_written` says whether an op of a node is on
    the log: then the node has introduced itself. `reader` is the node that checks, and `now` its time.
    """

    def __init__(
        self,
        user: str,
        keys: dict[int, bytes],
        has_written: Callable[[int], bool],
        permissions: Permissions,
        reader: int,
        now: int,
    ) -> None:
        self._user = user
        self._is_bound = permissions.rules.bounds is not None
        self._is_strict = permissions.rules.is_strict
        self._keys = keys
        self._has_written = has_written
        self._introduced: dict[int, bool] = {}
        self._permissions = permissions
        self._authority = permissions.authority
        self._delegations = {each.cid: each for each in permissions.delegations}
        self._reader = reader
        self._now = now

    def judge(self, ops: Sequence[Received], helpers: Helpers | None) -> Shared[Received, Reason | None]:
        """Begins to find the reason to refuse each op, None for ops that may come in. The caller may start the next
        batch before this one is finished.
        """
        for author in {op.node_id for _, op in ops} - self._introduced.keys():
            self._introduced[author] = author in self._keys and self._has_written(author)
        # Introductions are few and come first, since the other ops depend on them; all cores verify the rest.
        introductions = self._introductions(ops)

        def check(part: Sequence[Received]) -> list[Reason | None]:
            return [introductions[raw] if raw in introductions else self._check(raw, op) for raw, op in part]

        return Shared(helpers, check, ops)

    def _introductions(self, ops: Sequence[Received]) -> dict[bytes, Reason | None]:
        """The verdicts on delegations, each by the op's bytes: another op can claim the same id."""
        tokens = {raw: _read(op) for raw, op in ops if isinstance(op.payload, DelegateUcan)}
        new = {each.cid: each for each in tokens.values() if isinstance(each, Delegation)}
        if new:
            self._delegations |= new
            # The fold judges revocations, since it looks back.
            self._authority = Authority(self._user, self._delegations.values(), ())
        verdicts: dict[bytes, Reason | None] = {}
        for own in (True, False):
            for raw, op in ops:
                if raw in tokens and _is_own(op, tokens[raw]) == own:
                    verdicts[raw] = self._introduce(raw, op, tokens[raw])
        return verdicts

    def _introduce(self, raw: bytes, op: Op, delegation: Delegation | Reason) -> Reason | None:
        if isinstance(delegation, Reason):
            return delegation
        fault = self._authority.fault(delegation)
        if fault is not None and not (fault is Reason.UNRESOLVED and op.node_id in self._keys):
            return fault
        if not _is_own(op, delegation):
            refused = self._check(raw, op)
        else:
            refused = self._verified(raw, op, self._keys.get(op.node_id, delegation.public))
            self._introduced[op.node_id] |= refused is None
        if refused is None:
            self._keys.setdefault(delegation.node, delegation.public)
        return refused

    def _check(self, raw: bytes, op: Op) -> Reason | None:
        if not self._introduced[op.node_id]:
            return Reason.UNKNOWN_NODE
        key = self._keys.get(op.node_id)
        if isinstance(op.payload, Sanitised) or op.signature is None:
            return self._unsigned(op, key)
        return self._verified(raw, op, key) or self._unknown(op)

    def _unknown(self, op: Op) -> Reason | None:
        """Ops of variants that this mesh does not have are refused: those that this node does not know, and in a strict
        mesh Hocket's own, as every other v0.1 node does.
        """
        is_foreign = isinstance(op.payload, Unknown) and not self._is_bound
        is_foreign |= isinstance(op.payload, Bundle) and not self._permissions.rules.bundles
        is_extension = self._is_strict and discriminant(op.payload) >= EXTENSION_BASE
        return Reason.UNKNOWN_VARIANT if is_foreign or is_extension else None

    def _verified(self, raw: bytes, op: Op, key: bytes | None) -> Reason | None:
        return op_fault(self._user, raw, op, key, self._is_bound)

    def _unsigned(self, op: Op, key: bytes | None) -> Reason | None:
        """A node takes in an op without a signature only if it may read no more of the op than is left."""
        payload = op.payload
        if op.signature is not None or not isinstance(payload, Sanitised) or self._is_strict:
            return Reason.BAD_SIGNATURE
        if op.timestamp.wall > WALL_MAX:
            return Reason.BEYOND_TIME
        if key is None:
            return Reason.UNKNOWN_NODE
        admitted = self._permissions.authority.sanitizes(self._reader, payload.rules, self._now)
        return None if admitted else Reason.BAD_MARKER


def op_fault(user: str, raw: bytes, op: Op, key: bytes | None, ids_are_bound: bool) -> Reason | None:
    """Why these bytes are not an op of the node that has this key, or its ids do not follow from its content."""
    if op.timestamp.wall > WALL_MAX:
        return Reason.BEYOND_TIME
    if key is None:
        return Reason.UNKNOWN_NODE
    if not verify_op(raw, op, key):
        return Reason.BAD_SIGNATURE
    return binding_fault(user, raw, op) if ids_are_bound else None


def binding_fault(user: str, raw: bytes, op: Op) -> Reason | None:
    """Why the ids of a signed op do not follow from its content, or what it carries proves nothing."""
    if len(raw) > BOUND_OP_BYTES_MAX and not isinstance(op.payload, ReportFork):
        return Reason.TOO_LARGE
    if op.link is None or not is_bound(raw, op) or _is_misnamed(op):
        return Reason.UNBOUND
    if isinstance(op.payload, Bundle):
        return _bundle_fault(raw)
    if isinstance(op.payload, ReportFork) and read_fork(op.payload) is None:
        return Reason.MALFORMED
    if isinstance(op.payload, RevokeRoot) and not is_root_revocation(user, op.payload):
        return Reason.BAD_SIGNATURE
    return None


def _bundle_fault(bundle: bytes) -> Reason | None:
    try:
        ops = [each.op for each in read_facts(bundle)]
    except Malformed:
        return Reason.MALFORMED
    return Reason.UNBOUND if any(is_misnamed(op) or _is_misnamed(op) for op in ops) else None


def _is_misnamed(op: Op) -> bool:
    """Whether a job has neither its op's id nor one that its author foresaw, and does not name the schedule of which it
    is a tick. The fold checks the tick.
    """
    payload = op.payload
    if not isinstance(payload, ScheduleJob) or payload.job_id == op.id or is_tick(payload):
        return False
    return payload.job_id != foreseen_id(op.node_id, payload)


def _is_own(op: Op, delegation: Delegation | Reason) -> bool:
    """Whether the op states its own author's key."""
    return isinstance(delegation, Delegation) and delegation.node == op.node_id


def _read(op: Op) -> Delegation | Reason:
    assert isinstance(op.payload, DelegateUcan)
    try:
        delegation = read_ucan(op.payload.ucan_bytes)
    except Malformed:
        return Reason.MALFORMED
    return delegation if delegation.cid == op.payload.ucan_cid else Reason.MALFORMED
