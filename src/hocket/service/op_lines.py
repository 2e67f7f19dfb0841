"""An op as a line: in the lists of the log, and with its job."""

from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from hocket.kernel.beats.placing import BeatPlace
from hocket.kernel.decoding import convert
from hocket.kernel.ids import ulid_text
from hocket.service import ServiceAnswer
from hocket.store import OpRow, Session


class OpLine(ServiceAnswer, frozen=True):
    """One op. `counts` is whether it has an effect; if not, `reason` says why. An op that was written under a tempo
    bears the stamp of its beat.
    """

    seq: int
    id: str
    type: str
    hlc: str
    author: str
    job_id: str | None
    counts: bool
    reason: str | None
    detail: str
    stamp: BeatPlace | None = None


def op_lines(session: Session, rows: Sequence[OpRow]) -> list[OpLine]:
    """Ops as lines of the log. An offer that the coordinator has decided on says how."""
    from hocket.work import view

    decided: dict[bytes, str] = {}
    with suppress(ValueError):  # an op cannot be read; its own line says so
        decided = view.decided_offers(session, rows)
    lines = zip(rows, map(_op_line, rows), strict=True)
    return [replace(line, reason=decided[row.id]) if row.id in decided else line for row, line in lines]


def _op_line(row: OpRow) -> OpLine:
    from hocket.work import view

    try:
        return convert(view.op_line(row), OpLine)
    except ValueError as error:
        # `log verify` judges damage; here the rest of the log is still worth showing.
        op_id = ulid_text(row.id[:16]) if len(row.id) >= 16 else row.id.hex()
        problem = f"its bytes cannot be read: {error}"
        return OpLine(row.seq, op_id, "unreadable", "-", "-", None, False, problem, "")
