"""What a named node may promise, and what a coordinator and a successor may conclude from the promises of several."""

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from hocket.kernel.succession.chain import Candidacy, Chain, Succession

# By how much the clocks of two machines may differ in rate.
RATE_MARGIN = 0.02

N = TypeVar("N", int, float)

# What a named node decides.


def vote_fault(chain: Chain, candidacy: Candidacy, promise: Candidacy | None, is_leased: bool) -> str | None:
    """Why a named node does not vote for this, if so. `chain` is what it knows, by its log and by what it keeps aside
    for the coordinator; `promise` is its last vote; `is_leased` says that it has promised the coordinator not to vote
    yet. It must keep its vote durably before it answers.
    """
    head, root, succession = chain.head, chain.root, chain.succession
    if head is None or root is None or succession is None:
        return "it knows of no succession"
    if candidacy.root != root.op_id or candidacy.follows != head.op_id:
        return "it knows of another coordinator"
    if candidacy.succession != succession.op_id:
        return "it knows of another succession"
    if candidacy.node not in succession.nodes:
        return "the successor is not named"
    if candidacy.term <= head.term:
        return f"term {head.term} has begun"
    if is_leased:
        return "the coordinator holds the lead"
    if promise is None or promise.root != candidacy.root or candidacy == promise:
        return None
    return None if candidacy.term > promise.term else f"it has voted in term {promise.term}"


def confirm_fault(chain: Chain, tenure: bytes, promise: Candidacy | None) -> str | None:
    """Why a named node does not confirm what the coordinator of this tenure decides, if so. `chain` is what it knows
    with the takeovers that came with the request.
    """
    head, root = chain.head, chain.root
    if head is None or root is None or head.op_id != tenure:
        return "it knows of another coordinator"
    if promise is None or promise.root != root.op_id or promise.term < head.term:
        return None
    if promise.term == head.term and promise.node == head.node:
        return None
    return f"it has voted in term {promise.term}"


def highest_term(chain: Chain, promises: Iterable[Candidacy | None]) -> int:
    """The highest term that begun or was voted in, under the last root. A successor asks for a higher one."""
    root, head = chain.root, chain.head
    if root is None or head is None:
        return 0
    return max((head.term, *(each.term for each in promises if each is not None and each.root == root.op_id)))


# What follows from the words of several.


def is_quorum(successions: Iterable[Succession], nodes: Collection[int]) -> bool:
    """Whether these nodes are enough for each of the successions."""
    return all(len(set(each.nodes) & set(nodes)) >= each.quorum for each in successions)


def agreed(values: Mapping[int, N], successions: Iterable[Succession]) -> N | None:
    """The highest value that enough nodes have reached, for each of the successions: how many entries are confirmed, or
    until when the lead is held. None if not enough nodes have any, or if there is no succession.
    """
    reached: list[N] = []
    for each in successions:
        found = sorted((values[node] for node in each.nodes if node in values), reverse=True)
        if len(found) < each.quorum:
            return None
        reached.append(found[each.quorum - 1])
    return min(reached) if reached else None


def lease_end(sent: float, after_ms: int) -> float:
    """Until when a coordinator may believe a promise that it asked for at that time, in seconds of its own clock."""
    return sent + after_ms / 1000 * (1 - RATE_MARGIN)


def stands_after_ms(succession: Succession, silent: int, node: int) -> float:
    """After how long a silence of the coordinator a named node asks for votes: one after the other, in order."""
    others = [each for each in succession.nodes if each != silent]
    return succession.after_ms * (1 + others.index(node) / 4)


def binding(chain: Chain, settled: bytes | None) -> tuple[Succession, ...]:
    """The successions whose quorums a coordinator needs: the newest, and until enough nodes know of that one, the last
    that was `settled`. A takeover settles the succession that it names. Empty: it decides alone.
    """
    newest = chain.in_question[-1:]
    old = [each for each in chain.in_question[:-1] if each.op_id == _settled(chain, settled)]
    if newest and newest[0].op_id == _settled(chain, settled):
        old = []
    return tuple(each for each in (*old, *newest) if each.nodes)


def is_elected(chain: Chain, voters: Collection[int], settled: bytes | None) -> bool:
    """Whether these votes let a node take over. `settled` is the newest succession that the silent coordinator has
    acted under, as any of the voters knows. If the newest is another one, then the coordinator may still have needed
    the one before it, so the voters must be enough for both.
    """
    *before, newest = chain.in_question or (None,)
    if newest is None or not newest.nodes:
        return False
    known = _settled(chain, settled)
    if newest.op_id == known:
        return is_quorum((newest,), voters)
    last = before[-1] if before else None
    return last is not None and last.op_id == known and bool(last.nodes) and is_quorum((last, newest), voters)


def _settled(chain: Chain, settled: bytes | None) -> bytes | None:
    """A coordinator that took over has acted under the succession that its takeover names."""
    head = chain.head
    begun = head.succession if head is not None and head.is_takeover else None
    in_order = [each.op_id for each in chain.in_question]
    known = [each for each in (begun, settled) if each in in_order]
    return max(known, key=in_order.index) if known else None
