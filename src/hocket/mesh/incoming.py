"""Which ops of a batch are looked at: not every node may bring every op, nor as many as it likes."""

from collections.abc import Collection, Iterator

from hocket.kernel import postcard
from hocket.kernel.ops import Op, read_sequence
from hocket.kernel.postcard import Malformed
from hocket.mesh.outgoing import PeerReader
from hocket.mesh.quotas import QuotaMeter

Received = tuple[bytes, Op | Malformed]


def is_brought(op: Op, sender: PeerReader | None, authors: Collection[int] | None) -> bool:
    """Whether an op is taken from this sender. One that may not read everything has gaps in what it holds of others;
    taking that in would hide the gaps for good. When there are as many authors as there may be, only their ops are
    taken.
    """
    if authors is not None and op.node_id not in authors:
        return False
    return sender is None or sender.reads_everything or op.node_id == sender.node


def is_own(op: Op | Malformed, sender: int) -> bool:
    """Whether what a node brings counts against its quota: its own ops do, and what cannot be read."""
    return isinstance(op, Malformed) or op.node_id == sender


class Pushed:
    """A batch that a node has pushed; its ops are read while those before them are verified. `left` are ops that the
    node may not bring, `cut` those beyond its quota, as far as they were read.
    """

    def __init__(
        self, body: bytes, sender: PeerReader, authors: Collection[int] | None, meter: QuotaMeter | None
    ) -> None:
        self._body, self._sender, self._authors, self._meter = body, sender, authors, meter
        self.left: list[Op] = []
        self.cut: list[Op] = []

    def __iter__(self) -> Iterator[Received]:
        sender, meter = self._sender, self._meter
        count = size = 0
        for raw, op in read_sequence(self._body):
            count, size = count + 1, size + len(raw)
            if isinstance(op, Op) and not is_brought(op, sender, self._authors):
                self.left.append(op)
            elif meter is None or not is_own(op, sender.node) or meter.admits(len(raw)):
                yield raw, op
            else:
                self.cut += [op] if isinstance(op, Op) else []
                if not sender.reads_everything:
                    # Nothing that follows would be taken in.
                    said = postcard.Reader(self._body).varint() if isinstance(op, Op) else count
                    meter.leave(min(max(0, said - count), len(self._body)), max(0, len(self._body) - size))
                    return
