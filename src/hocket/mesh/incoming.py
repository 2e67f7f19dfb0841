"""Which ops of a batch are considered: not every node may push every op, nor any number of ops."""

from collections.abc import Collection, Iterator

from hocket.kernel import postcard
from hocket.kernel.ops import Op, read_sequence
from hocket.kernel.postcard import Malformed
from hocket.log import Admission
from hocket.mesh.outgoing import PeerReader
from hocket.mesh.quotas import QuotaMeter

Received = tuple[bytes, Op | Malformed]


def is_brought(op: Op, sender: PeerReader | None, authors: Collection[int] | None, own: int) -> bool:
    """Whether an op is accepted from this sender. A sender that may not read everything has gaps in its copies of other
    authors' ops; admitting those would hide the gaps for good. But every sender may give this node its `own` ops back.
    Once the number of authors reaches its limit, only their ops are accepted.
    """
    if authors is not None and op.node_id not in authors:
        return False
    return sender is None or sender.reads_everything or op.node_id in (sender.node, own)


def is_own(op: Op | Malformed, sender: int) -> bool:
    """Whether an item counts against the sender's quota: its own ops do, and unreadable ones."""
    return isinstance(op, Malformed) or op.node_id == sender


class Pushed:
    """A batch that a node has pushed. Ops are decoded while earlier ones are verified. `left` are ops that the node may
    not push, `cut` those beyond its quota, as far as they were read. `unread` counts ops whose beginnings cannot be
    found, because they follow one that cannot be read.
    """

    def __init__(
        self, body: bytes, sender: PeerReader, authors: Collection[int] | None, meter: QuotaMeter | None, own: int
    ) -> None:
        self._body, self._sender, self._authors, self._meter, self._own = body, sender, authors, meter, own
        self.left: list[tuple[bytes, Op]] = []
        self.cut: list[tuple[bytes, Op]] = []
        self.unread = 0

    def __iter__(self) -> Iterator[Received]:
        sender, meter = self._sender, self._meter
        count = size = 0
        for raw, op in read_sequence(self._body):
            count, size = count + 1, size + len(raw)
            if isinstance(op, Op) and not is_brought(op, sender, self._authors, self._own):
                self.left.append((raw, op))
            elif meter is None or not is_own(op, sender.node) or meter.admits(raw, op):
                yield raw, op
            else:
                self.cut += [(raw, op)] if isinstance(op, Op) else []
                if not sender.reads_everything:
                    # No op after this one would be admitted.
                    said = self._said() if isinstance(op, Op) else count
                    meter.leave(max(0, said - count), max(0, len(self._body) - size))
                    return
        self.unread = max(0, self._said() - count)

    def _said(self) -> int:
        """How many ops the batch says that it has; an op has more than a byte."""
        try:
            return min(postcard.Reader(self._body).varint(), len(self._body))
        except Malformed:
            return 0

    def stop(self, admission: Admission) -> None:
        """Counts what was not looked at, because the sender must wait for its share of the store's time, or for other
        nodes.
        """
        assert self._meter is not None
        done = admission.appended + admission.duplicated + admission.rejected + admission.held
        self._meter.stopped = max(1, self._said() - self.unread - done - len(self.left) - self._meter.cut)
