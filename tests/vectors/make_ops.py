"""Writes ops.json: whole ops, one for each variant, signed with a fixed key, as plain values and as hex. Run it from
the repository's root (`python -m tests.vectors.make_ops`) when the vocabulary grows; a change in an entry that
was there before is a change of the wire format."""

import json
from pathlib import Path
from typing import Any

from hocket.families.availability.facts import Availability, SetAvailability
from hocket.families.inbox.facts import AcknowledgeMessage, ClaimMessage, RetryMessage, ReturnMessage, SendMessage
from hocket.families.kinds.facts import DefineKind
from hocket.families.locks.facts import AcquireLocks, BreakLock, LeaveQueue, LockMode, ReleaseLocks, RenewLocks
from hocket.families.retention.facts import AuthorHead, MoveHorizon, Retained, SetRetention
from hocket.families.rows.facts import PutRow, ResolveConflict, Strategy
from hocket.kernel import vocabulary as v
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op, encode, sign
from hocket.kernel.postcard import encode as encode_value
from tests.kernel.second import plain

SEED = bytes(range(32))
KEY = SigningKey(SEED)
NODE = node_id(KEY.public)
PATH = Path(__file__).with_name("ops.json")


def ulid(n: int) -> bytes:
    return (1_756_865_547_183).to_bytes(6, "big") + n.to_bytes(10, "big")


HASH = bytes(range(100, 132))
A, B, C, D = ulid(1), ulid(2), ulid(3), ulid(4)
PAYLOADS: tuple[v.Payload, ...] = (
    v.IngestEvidence(
        A, HASH, "photo", "asset/7",
        v.Metadata(1_756_865_547_183, v.Location(52.5, -13.25, 34.0), ("ada",), (("k", "ü"),)),
    ),
    v.IngestEvidence(A, HASH, "calendar", "uid", None),
    v.TombstoneEvidence(A, "UserRequest"),
    v.CreateEntity(A, "Person", "Ada", (B, C)),
    v.AddEntityAlias(A, "Countess"),
    v.MergeEntities(A, (B, C), "the same person"),
    v.SplitEntity(A, (B, C), "two people"),
    v.CreateClaim(
        A, v.ClaimType.SPATIAL, B, "located_at", v.TextObject("Bonn"), v.ClaimStatus.CLAIM,
        (("model", 0.75), ("recency", 1.0)), v.Provenance((A,), (B,), (C,), (D,)),
    ),
    v.CreateClaim(
        A, v.ClaimType.DERIVED, B, "age", v.NumberObject(-0.0), v.ClaimStatus.HINT, (), v.Provenance()
    ),
    v.UpdateClaimStatus(A, v.ClaimStatus.STALE, "old"),
    v.UpdateClaimConfidence(A, (("model", 0.5),)),
    v.SupersedeClaim(A, B, "newer"),
    v.ScheduleJob(A, "acme.render", b'{"frame":7}', b""),
    v.ClaimWork(A, NODE, 30_000),
    v.CompleteJob(A, (B,), (C, D), v.Telemetry(1234, 10, 200, 900)),
    v.CompleteJob(A, (), (), v.Telemetry(0)),
    v.YieldWork(A, NODE, "shutdown"),
    v.ExpireWork(A, 2**64 - 1, "deadline_passed"),
    v.UserAssert(v.AssertionType.LANE_RULE, v.LaneTarget("health"), "health"),
    v.CreateArtifact(A, "ocr_text", B, (C,), HASH, b"text", "m", "1", 4, 86_400_000),
    v.CreateArtifact(A, "transcript", None, (), HASH, None, None, None, 2**40, None),
    v.EvictArtifact(A),
    v.CreateEpisode(A, "Trip", "to Bonn", 1, None, (B,), (C,), (D,), 0.5),
    v.UpdateEpisode(A, "Tour", None, 0.25, v.EpisodeStatus.ARCHIVED, (B,), ()),
    v.CreateSuggestedAction(A, "Write", "a letter", "draft_email", B, (C,), (D,), A, 0.125),
    v.UpdateActionStatus(A, v.ActionStatus.EXPIRED, None),
    v.DesignateCoordinator(NODE),
    v.DelegateUcan(HASH, b"a.b.c"),
    v.RevokeUcan(HASH),
    v.RouteKind("acme.render", NODE),
    v.RouteKind("acme.render", None),
    v.CascadeTombstone(A, (B,), (C,), (D,), (), (B, C)),
    v.FailWork(A, NODE, "ValueError: no", "Traceback …", True),
    v.CancelJob(A, "not needed"),
    v.RetryJob(A, "fixed"),
    v.ReportProgress(A, NODE, b"\x00\xff"),
    v.SetSchedule("nightly", "0 3 * * *", "Europe/Berlin", "acme.render", b"{}", b""),
    v.ClearSchedule("nightly"),
    v.AcceptWork(A, B),
    v.ReportFork(KEY.public, b"left", b"right"),
    v.RevokeRoot(HASH, bytes(range(64))),
    v.AcceptOffer("lock", b"printer", B),
    v.PostponeWork(A, NODE, 300_000, "not there yet"),
    DefineKind("acme.render", b'{"concurrency":1}'),
    v.PostponeJob(A, 1_767_225_600_000, "after the fair"),
    v.ApproveJob(A, "alice", "checked"),
    v.RefuseJob(A, "team/alice", ""),
    v.SaveCheckpoint(A, NODE, b"\x00\xff"),
    AcquireLocks("repo", ("file:src/lib.rs", "file:docs/**"), "editor", LockMode.SHARED, 30_000, 10_000),
    RenewLocks("repo", "editor", 7, 30_000),
    ReleaseLocks("repo", "editor", 7),
    LeaveQueue("repo", "editor", B),
    BreakLock("repo", "file:src/lib.rs", "its holder is gone"),
    SendMessage(A, "editor@gpu-box", "planner", "note", B, C, 5, 86_400_000, 5, b'"hello"', (("plan.md", D),)),
    SendMessage(A, "team/", "planner", "", None, None, 0, 1, 1, b"\x00"),
    ClaimMessage(A, "editor", 60_000),
    AcknowledgeMessage(A, "editor"),
    ReturnMessage(A, "editor", 5_000, "busy"),
    RetryMessage(A, "mended"),
    PutRow("memories/sky", "editor", B, b'{"colour":"blue"}', Strategy.TAKE_RIGHT),
    PutRow("memories/sky", "editor", None, None, Strategy.DEFER_TO_AGENT),
    ResolveConflict("memories/sky", "editor", B, C, b"1"),
    SetAvailability(NODE, Availability.DRAINING, "new disk"),
    v.Sanitised(("StripGeo", "TruncateContent(8)"), v.IngestEvidence(A, HASH, "photo", "asset/7", v.Metadata())),
    v.Bundle(11, bytes([1]) + B + encode_value(v.VARIANTS[11], v.ClaimWork(A, NODE, 300))),
    SetRetention(Retained.JOBS, "acme.", 2_592_000_000, 1_000, True, 2),
    MoveHorizon(1_756_000_000_000, B, (AuthorHead(NODE, 1_755_999_999_999, 7, C),), (("job", D),), HASH, False),
    v.EraseContent(A, "acme.render", "asked for by its subject"),
    v.SetSuccession(A, (NODE, 5, 2**64 - 1), 2, 30_000),
    v.SetSuccession(B),
    v.TakeOver(3, A, B, ((NODE, HASH + HASH), (5, bytes(64)))),
)  # fmt: skip


def vectors() -> dict[str, Any]:
    entries = []
    for index, payload in enumerate(PAYLOADS):
        deps = tuple(ulid(1000 + n) for n in range(index % 3))
        op = Op(ulid(500 + index), Hlc(1_756_865_547_183 + index, index * 60, NODE), NODE, deps, payload)
        entries.append({"op": plain(op), "hex": encode(sign(op, KEY)).hex()})
    return {"seed": SEED.hex(), "public": KEY.public.hex(), "node": NODE, "ops": entries}


if __name__ == "__main__":
    made = vectors()
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in made.pop("ops"))
    PATH.write_text(f'{json.dumps(made)[:-1]}, "ops": [\n{lines}\n]}}\n', encoding="utf-8")
