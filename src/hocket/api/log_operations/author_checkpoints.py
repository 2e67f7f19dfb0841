"""Checkpoints of authors: list them, sign one, and prove that an op is in the history that one names."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from hocket.api import Service, ServiceAnswer, nodes
from hocket.api.operation import ULID, InShell, OverHttp, TokenNeed, operation
from hocket.api.views import Line, at, table
from hocket.errors import Conflict, NotFound, Usage
from hocket.kernel.checkpoints.notes import origin_of, read_checkpoint, read_note, verifier_key
from hocket.kernel.ids import node_text, parse_node, parse_ulid, ulid_text
from hocket.log.checkpoints.inclusion import proof_of
from hocket.log.checkpoints.keeper import cosigners
from hocket.store import Session
from hocket.store.checkpoint_rows import CheckpointRow


class Cosigned(ServiceAnswer, frozen=True):
    """A node that has computed the same root from the entries that it has, and when it said so."""

    node: str
    name: str | None
    time_ms: int


class CheckpointStanding(StrEnum):
    """A checkpoint is `signed` if its root is that of the entries here, `ahead` if they are not all here, or cannot
    be compared, and in `conflict` if they are others.
    """

    signed = "signed"
    ahead = "ahead"
    conflict = "conflict"


class CheckpointShown(ServiceAnswer, frozen=True):
    """What an author has signed of its whole history: how many entries, and the root of their Merkle tree. `note` is
    the signed note of C2SP, `key` the author's key as tools for such notes take it, `kept_ms` since when it is here.
    """

    node: str
    name: str | None
    standing: CheckpointStanding
    size: int
    root: str
    kept_ms: int
    cosigned: tuple[Cosigned, ...]
    note: str
    key: str


def _shown(service: Service, session: Session, row: CheckpointRow, names: dict[str, str]) -> CheckpointShown:
    user, node = service.runtime.log.user, node_text(int.from_bytes(row.author, "big"))
    note = read_note(row.note)
    checkpoint = read_checkpoint(note.text)
    found = [(node_text(each), at_s * 1000) for each, at_s in cosigners(note, user)]
    cosigned = tuple(Cosigned(each, names.get(each), at_ms) for each, at_ms in found)
    public = session.nodes().get(row.author, (b"", ""))[0]
    return CheckpointShown(
        node,
        names.get(node),
        CheckpointStanding(row.state),
        checkpoint.size,
        checkpoint.root.hex(),
        row.made,
        cosigned,
        row.note.decode(),
        verifier_key(checkpoint.origin, public),
    )


_STANDINGS = {each.value for each in CheckpointStanding}


def _cosigners(shown: CheckpointShown) -> str:
    return ", ".join(each.name or each.node for each in shown.cosigned) or "-"


@operation(
    "list_checkpoints",
    "GET /v1/checkpoints",
    TokenNeed("Mesh", "Read"),
    command="log checkpoints",
    key=lambda each: f"{each.node} {each.standing}",
    show=table(
        CheckpointShown,
        "no checkpoints",
        {
            "author": lambda each: each.name or each.node,
            "entries": "size",
            "standing": "standing",
            "since": at("kept_ms"),
            "cosigned by": _cosigners,
        },
    ),
)
def checkpoints(service: Service) -> list[CheckpointShown]:
    """List what each author has signed of its whole history, and which nodes have cosigned it.

    One that is `ahead` covers entries that are not here, or that this node cannot compare. One in `conflict` covers
    others than those here: its author has shown two histories.

    \b
      hocket log checkpoints
    """
    with service.read() as session:
        names = service.names(session)
        rows = [row for row in session.checkpoints() if row.state in _STANDINGS]
        return [_shown(service, session, row, names) for row in rows]


@operation(
    "make_checkpoint",
    "POST /v1/checkpoints",
    TokenNeed("Mesh", "Write"),
    command="log checkpoint",
    show=lambda shown: [Line(shown.note.rstrip("\n"), lines=True)],
)
def checkpoint(
    service: Service,
    *,
    author: Annotated[nodes.NodeText, InShell("--author", metavar="NODE", help="Show the last one of this node.")]
    | None = None,
) -> CheckpointShown:
    """Sign a checkpoint of this node's own entries now, and show it, with the cosignatures so far. With `author`, show
    the last one of that node that this one has compared, or else has received.

    Keep it somewhere else: it shows later whether the log still has these entries. It is a signed note of C2SP, and
    `key` in the JSON is the author's key for tools that read such notes. Long-running processes sign one each minute.

    \b
      hocket log checkpoint > checkpoint.txt
      hocket log checkpoint --author gpu-box
      hocket log verify --checkpoint checkpoint.txt
    """
    service.check_writer()
    log = service.runtime.log
    if not log.checkpoints.has_checkpoints:
        raise Conflict("a strict mesh has no checkpoints: the ids of its ops are not bound to their content")
    node = log.node if author is None else parse_node(nodes.find(service, author).node)
    log.checkpoints.make()
    with service.runtime.store.read() as session:
        found = {row.state: row for row in session.checkpoints(node.to_bytes(8, "big"))}
        row = found.get(CheckpointStanding.signed) or found.get(CheckpointStanding.ahead)
        if row is None:
            raise Usage(f"no checkpoint of node {node_text(node)} is here")
        return _shown(service, session, row, service.names(session))


class InclusionShown(ServiceAnswer, frozen=True):
    """The proof that an op is in the history that its author has signed: `entry` is the op, or the bundle that it came
    in, `index` its place among the `size` entries of the checkpoint, `text` a C2SP tlog-proof, and `key` the author's
    key as tools for such notes take it.
    """

    op: str
    entry: str
    node: str
    index: int
    size: int
    text: str
    key: str


@operation(
    "prove_op",
    "GET /v1/ops/{op}/inclusion",
    TokenNeed("Mesh", "Read"),
    command="log prove",
    show=lambda shown: [Line(shown.text.rstrip("\n"), lines=True)],
)
def prove(
    service: Service,
    op: Annotated[
        str,
        OverHttp(Annotated[str, Meta(pattern=ULID, description="The op's id.")]),
        Meta(min_length=1, max_length=64, description="The id of an op, as `hocket show` and `hocket log` give it."),
        InShell(metavar="OP"),
    ],
) -> InclusionShown:
    """Prove that an op is in the history that its author has signed, without showing the rest of it.

    The proof is a C2SP tlog-proof: the RFC 6962 hashes that lead from the op to the root in its author's newest
    checkpoint here, and that checkpoint with the cosignatures of peers. `key` in the JSON is what tools check it with.
    Its extra data are the bytes of the op.

    \b
      hocket log prove 01J9ZC7K2QWE8M3N5P7R9T1V2X > op.tlog-proof
    """
    try:
        op_id = parse_ulid(op)
    except ValueError:
        raise Usage(f"{op!r} is not the id of an op; `hocket log --json` has them") from None
    with service.read() as session:
        row = session.op(op_id)
        if row is None:
            raise NotFound(f"no op {op} is on this log")
        found = proof_of(session, row)
        author = row.hlc[12:]
        public = session.nodes().get(author, (b"", ""))[0]
        node = node_text(int.from_bytes(author, "big"))
        key = verifier_key(origin_of(service.runtime.log.user, int.from_bytes(author, "big")), public)
        return InclusionShown(op, ulid_text(found.entry[:16]), node, found.number, found.size, found.text, key)
