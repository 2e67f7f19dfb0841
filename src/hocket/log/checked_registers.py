"""The rows from which permissions are made: delegations, revocations, designations and proofs of two histories. In a
store that nodes share, a row counts if the op that it names says the same and is the one that its author signed. Such a
store may also lose a revocation; a home keeps those that its processes have seen.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hocket.errors import StoreError
from hocket.kernel.clock import pack
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.signing import read_fork
from hocket.kernel.vocabulary import DelegateUcan, DesignateCoordinator, ReportFork, RevokeRoot, RevokeUcan
from hocket.store import Coordinator, Delegated, Fork, Revoked, RowCheck, Session

HLC_BYTES = 20
_Row = Delegated | Revoked | Coordinator | Fork


class RegisterRows(NamedTuple):
    """`designations` are the ops of the coordinators; none in a store of one node, which entered only good ones."""

    delegations: list[Delegated]
    revocations: list[Revoked]
    coordinators: list[Coordinator]
    forks: list[Fork]
    designations: dict[bytes, Op]


class RevocationFile:
    """The revocations that the processes of a home have seen in a store that nodes share, one on a line. Without a path
    nothing is kept.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def read(self) -> list[Revoked]:
        try:
            lines = () if self._path is None else self._path.read_text().splitlines()
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise StoreError(f"{self._path} cannot be read: {error}") from error
        found = []
        for line in lines:
            with suppress(ValueError):  # a process was killed while it wrote the line
                op_id, cid, hlc, root = line.split()
                found.append(Revoked(bytes.fromhex(op_id), bytes.fromhex(cid), bytes.fromhex(hlc), int(root)))
        return [each for each in found if len(each.hlc) == HLC_BYTES]

    def add(self, revocations: Iterable[Revoked]) -> None:
        text = "".join(f"{each.op_id.hex()} {each.cid.hex()} {each.hlc.hex()} {each.root}\n" for each in revocations)
        if self._path is None or not text:
            return
        try:
            with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w") as file:
                file.write(text)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error}") from error


class CheckedRegisters:
    def __init__(self, kept: RevocationFile | None = None) -> None:
        self._kept = kept or RevocationFile()
        self._revocations = {each.op_id: each for each in self._kept.read()}

    @property
    def revocations_seen(self) -> int:
        return len(self._revocations)

    def read(self, session: Session, fresh: Iterable[Op]) -> RegisterRows:
        """`fresh` are ops of the transaction that are not stored yet."""
        rows = RegisterRows(session.delegations(), session.revocations(), session.coordinators(), session.forks(), {})
        check = session.row_check
        return rows if check is None else self._checked(session, check, fresh, rows)

    def _checked(self, session: Session, check: RowCheck, fresh: Iterable[Op], rows: RegisterRows) -> RegisterRows:
        ops = {op.id: op for op in fresh}
        everything: list[_Row] = [*rows.delegations, *rows.revocations, *rows.coordinators, *rows.forks]
        missing = [each.op_id for each in everything if each.op_id not in ops]
        stored = {row.id: decode(row.body) for row in session.ops_by_id(missing)}
        ops |= stored

        made = {op_id: row_of(op) for op_id, op in ops.items()}

        def is_sound(table: str, row: _Row) -> bool:
            if made.get(row.op_id) == row:
                return True
            check.refuse(table, ulid_text(row.op_id[:16].ljust(16, b"\0")), "no op of its author says so")
            return False

        good = RegisterRows(
            [each for each in rows.delegations if is_sound("delegations", each)],
            [each for each in rows.revocations if is_sound("revocations", each)],
            [each for each in rows.coordinators if is_sound("coordinators", each)],
            [each for each in rows.forks if is_sound("forks", each)],
            {each.op_id: ops[each.op_id] for each in rows.coordinators if each.op_id in ops},
        )
        # An op that revokes does so, whatever its row says.
        others = [made.get(each.op_id) for each in rows.revocations if each not in good.revocations]
        good.revocations.extend(each for each in others if isinstance(each, Revoked))
        return good._replace(revocations=self._with_lost(session, check, good.revocations, stored))

    def _with_lost(
        self, session: Session, check: RowCheck, revocations: list[Revoked], stored: dict[bytes, Op]
    ) -> list[Revoked]:
        """Adds those that were stored before, unless another op of the same author and time has come: then none of the
        two counts.
        """
        here = {each.op_id for each in revocations}
        for lost in [each for each in self._revocations.values() if each.op_id not in here]:
            if len(session.ops_at(lost.hlc)) > 1:
                del self._revocations[lost.op_id]
            else:
                check.refuse("revocations", ulid_text(lost.op_id[:16]), "it was there and is gone; it still counts")
                revocations.append(lost)
        new = [each for each in revocations if each.op_id in stored and each.op_id not in self._revocations]
        self._kept.add(new)
        self._revocations.update((each.op_id, each) for each in new)
        return sorted(revocations, key=lambda each: each.hlc)


def row_of(op: Op) -> _Row | None:
    """The row that an op enters in one of these registers."""
    hlc, payload = pack(op.timestamp), op.payload
    if isinstance(payload, DelegateUcan):
        return Delegated(op.id, payload.ucan_cid, hlc, payload.ucan_bytes)
    if isinstance(payload, RevokeUcan | RevokeRoot):
        return Revoked(op.id, payload.ucan_cid, hlc, int(isinstance(payload, RevokeRoot)))
    if isinstance(payload, DesignateCoordinator):
        # A pin looks back, so no later arrival may change whether it counts.
        pin = None if op.cited else op.pin
        return Coordinator(hlc, op.id, payload.coordinator.to_bytes(8, "big"), pin)
    forked = read_fork(payload) if isinstance(payload, ReportFork) else None
    return None if forked is None else Fork(op.id, forked.node.to_bytes(8, "big"), pack(forked.since))
