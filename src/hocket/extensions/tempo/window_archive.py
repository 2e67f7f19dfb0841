"""The windows of reverb on the log: for each report an artifact, and for the content that it was made of another, which
the report names as its input. Both expire. Their ids begin with the time of the window's downbeat, so a window is found
by its time. Of several reports of one window, the last one written counts.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from hocket.errors import NotAuthorised
from hocket.extensions.tempo.beats.messages import BarReport, from_json, to_json
from hocket.extensions.tempo.beats.reverb import WindowContent, decode_content
from hocket.families import artifacts
from hocket.families.artifacts import Fetch
from hocket.families.blobs import Blobs
from hocket.families.jobs.requests import Content, creation
from hocket.kernel.ids import make_ulid, ulid_ms
from hocket.kernel.ops import artifact_id
from hocket.kernel.reasons import Reason
from hocket.kernel.vocabulary import Ids
from hocket.log import Transaction
from hocket.store import Artifact, Session
from hocket.work.run_outputs import contain

REPORT_TYPE = "hocket.bar-report"
WINDOW_TYPE = "hocket.bar-window"
# How long a report and its window are kept.
KEPT_MS = 7 * 86_400_000
PAGE = 100
_FIRST, _PAST = bytes(10), b"\xff" * 10


class PackedWindow(NamedTuple):
    window_ms: int
    content: Content
    report: Content


def packed_window(blobs: Blobs, report: BarReport, content: WindowContent) -> PackedWindow:
    """Stages what is too large for an op. Call it before the transaction."""
    return PackedWindow(content.window_ms, contain(blobs, to_json(content)), contain(blobs, to_json(report)))


def keep(tx: Transaction, blobs: Blobs, packed: PackedWindow) -> bool:
    """Writes a report and its window on the log. False if they are what the log has already."""
    window_ms, data, told = packed
    known = {type: _last(tx.session, type, window_ms) for type in (WINDOW_TYPE, REPORT_TYPE)}
    hashes = {type: None if found is None else found.hash for type, found in known.items()}
    if hashes == {WINDOW_TYPE: data.hash, REPORT_TYPE: told.hash}:
        if data.staged is not None:
            blobs.drop(data.staged)
        return False
    inputs: Ids = ()
    for type, each in ((WINDOW_TYPE, data), (REPORT_TYPE, told)):
        if each.staged is not None:
            blobs.keep(each.staged)
        made = creation(make_ulid(window_ms, _FIRST), type, None, inputs, each, KEPT_MS)
        made = msgspec.structs.replace(made, artifact_id=artifact_id(tx.node, made))
        if tx.session.artifact(made.artifact_id) is None:
            op = tx.author(made, ())
            if isinstance(op, Reason):
                raise NotAuthorised(f"this node cannot keep the reports of windows: {op.sentence}")
        inputs = (made.artifact_id,)
    return True


def kept_reports(session: Session, now_ms: int, limit: int, before_ms: int | None = None) -> list[BarReport]:
    """The reports of the newest windows, of those before a time if one is given, the newest window first."""
    found: dict[int, Artifact] = {}
    for each in _newest(session, REPORT_TYPE, now_ms, before_ms):
        window_ms = ulid_ms(each.id)
        if window_ms not in found and len(found) == limit:
            break
        if window_ms not in found or found[window_ms].made < each.made:
            found[window_ms] = each
    return [_report(session, each) for each in found.values()]


def kept_report(session: Session, window_ms: int) -> BarReport | None:
    found = _last(session, REPORT_TYPE, window_ms)
    return None if found is None else _report(session, found)


def kept_window(session: Session, blobs: Blobs, window_ms: int, fetch: Fetch | None = None) -> WindowContent | None:
    """Raises Unreachable if the content is on another node only."""
    found = _last(session, WINDOW_TYPE, window_ms)
    return None if found is None else decode_content(artifacts.content(session, blobs, found, fetch))


def _newest(session: Session, type: str, now_ms: int, before_ms: int | None) -> Iterator[Artifact]:
    since = make_ulid(max(0, now_ms - KEPT_MS), _FIRST)
    before = make_ulid(now_ms if before_ms is None else before_ms, _PAST if before_ms is None else _FIRST)
    while page := session.artifacts_of_type(type, since, before, PAGE):
        yield from (each for each in page if not session.is_evicted(each.id))
        before = page[-1].id


def _last(session: Session, type: str, window_ms: int) -> Artifact | None:
    first, past = make_ulid(window_ms, _FIRST), make_ulid(window_ms + 1, _FIRST)
    found = session.artifacts_of_type(type, first, past, PAGE)
    return max((each for each in found if not session.is_evicted(each.id)), key=lambda each: each.made, default=None)


def _report(session: Session, artifact: Artifact) -> BarReport:
    content = artifacts.creation_of(session, artifact)[1].content_inline
    assert content is not None
    return from_json(content, BarReport)
