"""Goes through every state that some nodes can reach under a succession, up to a number of steps, and looks at each for
a decision that was told and counts no longer.

The nodes decide by the functions of `hocket.kernel.succession`, as the real ones do; only what lies around them is a
model. Each author's entries are one chain that only grows, on its disk. A node knows a beginning of each chain, on its
log or beside it. A request is delivered at once, late or never, which comes to the same as being sent later; its answer
may be lost, or believed much later. Of time there is only this: a coordinator stops to believe a promise before the
node that gave it may vote. A coordinator that starts anew, or believes a promise for a shorter time, may do less than
before, so these are no steps of their own. Nodes are alike, so those after the first stand in their order.

`Faults` breaks a rule on purpose, so that a test can see that the explorer finds what follows.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hocket.kernel.clock import Hlc
from hocket.kernel.ops import pin_to
from hocket.kernel.succession.chain import Candidacy, Chain, Succession, TenureStart, chain_of
from hocket.kernel.succession.quorums import (
    agreed,
    binding,
    confirm_fault,
    highest_term,
    is_elected,
    is_quorum,
    vote_fault,
)

OWNER = 99
FIRST = 0
ROOT, RULE, CHANGED = b"root", b"rule", b"changed"


class Faults(NamedTuple):
    """`forgets`: a vote is lost in a crash. `accepts_alone`: a coordinator tells at once what it decides.
    `elects_alone`: a successor needs no votes. `repeats`: a node votes again in a term. `short_tail`: a successor takes
    no entries from its voters. `confirms_after_voting`: a vote is no promise. `votes_while_leased`: nor is a lease.
    `changes_at_once`: the quorum of a new succession is enough from the beginning.
    """

    forgets: bool = False
    accepts_alone: bool = False
    elects_alone: bool = False
    repeats: bool = False
    short_tail: bool = False
    confirms_after_voting: bool = False
    votes_while_leased: bool = False
    changes_at_once: bool = False


class Takeover(NamedTuple):
    """`pin` is how many entries of the coordinator before count."""

    term: int
    rule: bytes
    follows: bytes
    pin: int
    voters: tuple[int, ...]


class Entry(NamedTuple):
    """A decision, or a takeover. Times are as in a mesh: later than everything that the author knew."""

    time: int
    takeover: Takeover | None = None


Entries = tuple[tuple[Entry, ...], ...]
"""The chain of each author; the last is the owner's, with the change of the succession."""


class State(NamedTuple):
    """`known`: how many entries of each author each node has. `votes`: what was voted for, by whom, with how many
    entries of the silent coordinator. `acknowledged`: how many entries of its coordinator a node has confirmed in a
    tenure, and of the owner. `leased`: the nodes that may not vote yet. `believed`: which coordinator still counts on
    whom. `settled`: who knows that the first coordinator has acted under the change. `told`: the decisions that
    somebody may act on.
    """

    entries: Entries
    known: tuple[tuple[int, ...], ...]
    promises: tuple[Candidacy | None, ...]
    votes: frozenset[tuple[Candidacy, int, int]] = frozenset()
    acknowledged: frozenset[tuple[bytes, int, int, int]] = frozenset()
    leased: frozenset[int] = frozenset()
    believed: frozenset[tuple[int, int]] = frozenset()
    settled: frozenset[int] = frozenset()
    told: frozenset[bytes] = frozenset()


def name(author: int, index: int) -> bytes:
    return b"%d/%d" % (author, index)


def place(op_id: bytes) -> tuple[int, int]:
    author, _, index = op_id.partition(b"/")
    return int(author), int(index)


def _is_signed(node: int, signature: bytes, text: bytes) -> bool:
    return signature == b"%d" % node


class Finding(NamedTuple):
    what: str
    steps: list[str]


class Explorer:
    """The nodes may follow each other, the first is the coordinator; a run ends with so many decisions and terms. With
    a `change`, only the first three may, until those that it names are known to follow instead.
    """

    def __init__(
        self,
        nodes: int,
        *,
        decisions: int,
        terms: int,
        faults: Faults | None = None,
        change: tuple[int, ...] = (),
    ) -> None:
        self.count, self.decisions, self.terms = nodes, decisions, terms
        self.faults = faults or Faults()
        self.states = 0
        first = range(3 if change else nodes)
        self.succession = Succession(RULE, Hlc(2, 0, OWNER), ROOT, tuple(first), len(first) // 2 + 1, 30_000)
        self.changed = Succession(CHANGED, Hlc(2, 1, OWNER), ROOT, change, len(change) // 2 + 1, 30_000)
        self._root = TenureStart(ROOT, Hlc(1, 0, OWNER), FIRST)
        self._chains: dict[tuple[int, tuple[tuple[bytes, Takeover, int, int], ...]], Chain] = {}
        self._views: dict[tuple[Entries, tuple[int, ...]], Chain] = {}

    def begin(self) -> State:
        owner = (Entry(2),) if self.changed.nodes else ()
        return State(((),) * self.count + (owner,), ((0,) * (self.count + 1),) * self.count, (None,) * self.count)

    # What a node makes of what it knows.

    def chain(self, state: State, known: tuple[int, ...]) -> Chain:
        """What the takeovers among these beginnings of the chains make of each other."""
        found = self._views.get((state.entries, known))
        if found is None:
            found = self._views[state.entries, known] = self._judged(state, known)
        return found

    def _judged(self, state: State, known: tuple[int, ...]) -> Chain:
        starts = tuple(
            (name(author, index), each.takeover, each.time, self._pinned_time(state, each.takeover))
            for author, entries in enumerate(state.entries)
            for index, each in enumerate(entries[: known[author]])
            if each.takeover is not None
        )
        if (known[-1], starts) not in self._chains:
            ops = [self._start(*each) for each in starts]
            rules = [self.succession, self.changed][: 1 + known[-1]]
            self._chains[known[-1], starts] = chain_of([self._root, *ops], rules, _is_signed)
        return self._chains[known[-1], starts]

    def _start(self, op_id: bytes, takeover: Takeover, time: int, pinned: int) -> TenureStart:
        author, _ = place(op_id)
        voters = self.succession.nodes[: self.succession.quorum] if self.faults.elects_alone else takeover.voters
        votes = tuple((voter, b"%d" % voter) for voter in voters)
        before = self.decides_in(takeover.follows)
        pin = pin_to(Hlc(pinned, 0, before), b"")
        return TenureStart(
            op_id, Hlc(time, 0, author), author, pin, takeover.term, takeover.rule, takeover.follows, votes
        )

    def decides_in(self, tenure: bytes) -> int:
        """The coordinator of a tenure."""
        return FIRST if tenure == ROOT else place(tenure)[0]

    def _pinned_time(self, state: State, takeover: Takeover) -> int:
        entries = state.entries[self.decides_in(takeover.follows)]
        return entries[takeover.pin - 1].time if takeover.pin else 2

    def _view(self, state: State, node: int) -> Chain:
        return self.chain(state, state.known[node])

    def leads(self, state: State, node: int) -> bytes | None:
        """The tenure in which this node may decide now, if it may."""
        tenure = self._tenure(state, node)
        if tenure is None:
            return None
        holds = {node, *(other for coordinator, other in state.believed if coordinator == node)}
        is_begun = tenure == ROOT or self._confirmed(state, node, tenure) > place(tenure)[1]
        return tenure if is_begun and is_quorum(self._rules(state, node), holds) else None

    def _rules(self, state: State, node: int) -> tuple[Succession, ...]:
        """The successions whose quorums a coordinator needs."""
        chain = self._view(state, node)
        if self.faults.changes_at_once:
            return chain.in_question[-1:]
        return binding(chain, CHANGED if node in state.settled else RULE)

    def _tenure(self, state: State, node: int) -> bytes | None:
        """The tenure of this node, as far as it knows, if it has not voted in a higher term."""
        chain = self._view(state, node)
        head = chain.head
        if head is None or head.node != node or confirm_fault(chain, head.op_id, state.promises[node]) is not None:
            return None
        return head.op_id

    def _confirmed(self, state: State, node: int, tenure: bytes) -> int:
        """How many entries of the coordinator enough nodes have confirmed in its tenure."""
        have = {node: len(state.entries[node])}
        for each, other, count, _ in state.acknowledged:
            if each == tenure:
                have[other] = max(have.get(other, 0), count)
        return agreed(have, self._rules(state, node)) or 0

    # What may happen next.

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for node in range(self.count):
            if state.entries[-1] and not state.known[node][-1]:
                known = _put(state.known, node, (*state.known[node][:-1], 1))
                yield f"{node} hears of the change", state._replace(known=known)
            yield from self._as_coordinator(state, node)
            yield from self._as_successor(state, node)
            if node in state.leased:
                believed = frozenset(pair for pair in state.believed if pair[1] != node)
                yield f"the lease of {node} ends", state._replace(leased=state.leased - {node}, believed=believed)
            if self.faults.forgets and state.promises[node] is not None:
                yield f"{node} starts anew", state._replace(promises=_put(state.promises, node, None))

    def _as_coordinator(self, state: State, node: int) -> Iterator[tuple[str, State]]:
        tenure = self._tenure(state, node)
        if tenure is None:
            return
        is_free = self.faults.accepts_alone and tenure == ROOT
        if (is_free or self.leads(state, node)) and self._decided(state) < self.decisions:
            decided = self._written(state, node, None)
            if is_free:
                decided = decided._replace(told=decided.told | {name(node, len(state.entries[node]))})
            yield f"{node} decides", decided
        if self._may_settle(state, node, tenure):
            yield f"{node} settles the change", state._replace(settled=state.settled | {node})
        told = state.told | self._to_tell(state, node, tenure)
        if told != state.told:
            yield f"{node} tells", state._replace(told=told)
        for other in range(self.count):
            if other != node:
                after = self._pushed(state, node, other, tenure)
                if after != state:
                    yield f"{node} pushes to {other}", after

    def _may_settle(self, state: State, node: int, tenure: bytes) -> bool:
        """Whether enough nodes, old and new, know of the change and have confirmed everything."""
        if tenure != ROOT or node in state.settled or len(self._rules(state, node)) < 2:
            return False
        everything = (ROOT, len(state.entries[node]), 1)
        have = {other for each, other, count, change in state.acknowledged if (each, count, change) == everything}
        return is_quorum((self.succession, self.changed), {node, *have})

    def _pushed(self, state: State, node: int, other: int, tenure: bytes) -> State:
        """The coordinator sends everything that it has. Whoever takes it promises not to vote for a while."""
        known = tuple(map(max, state.known[node], state.known[other]))
        promise = None if self.faults.confirms_after_voting else state.promises[other]
        if confirm_fault(self.chain(state, known), tenure, promise) is not None:
            return state
        return state._replace(
            known=_put(state.known, other, known),
            acknowledged=state.acknowledged | {(tenure, other, len(state.entries[node]), known[-1])},
            leased=state.leased | {other},
            believed=state.believed | {(node, other)},
            settled=state.settled | {other} if node in state.settled and tenure == ROOT else state.settled,
        )

    def _to_tell(self, state: State, node: int, tenure: bytes) -> frozenset[bytes]:
        """What is confirmed: the coordinator's own decisions of this tenure, and those that its takeover pins."""
        confirmed = self._confirmed(state, node, tenure)
        first = 0 if tenure == ROOT else place(tenure)[1]
        told = [name(node, i) for i in range(first, confirmed) if state.entries[node][i].takeover is None]
        takeover = None if tenure == ROOT else state.entries[node][first].takeover
        if takeover is not None and confirmed > first:
            before = self.decides_in(takeover.follows)
            begun = 0 if takeover.follows == ROOT else place(takeover.follows)[1]
            entries = state.entries[before]
            told += [name(before, i) for i in range(begun, takeover.pin) if entries[i].takeover is None]
        return frozenset(told)

    def _as_successor(self, state: State, node: int) -> Iterator[tuple[str, State]]:
        chain, promise = self._view(state, node), state.promises[node]
        head = chain.head
        assert head is not None
        rule = chain.succession
        assert rule is not None
        is_next = node < 2 or bool(self.changed.nodes) or any(each.node == node - 1 for each, _, _ in state.votes)
        if is_next and node in rule.nodes and (head.node != node or promise is not None):
            term = highest_term(chain, () if self.faults.repeats else (promise,)) + 1
            standing = Candidacy(ROOT, rule.op_id, head.op_id, term, node)
            if term <= self.terms and self._may_vote(state, node, node, standing):
                yield f"{node} stands in term {term}", self._voted(state, node, standing)
        if promise is None or promise.node != node:
            return
        for other in range(self.count):
            if other == node:
                continue
            if state.promises[other] != promise and self._may_vote(state, node, other, promise):
                yield f"{other} votes for {node} in term {promise.term}", self._voted(state, other, promise)
            known = tuple(map(max, state.known[node], state.known[other]))
            if self.chain(state, known).head != head:
                yield f"{node} learns from {other}", state._replace(known=_put(state.known, node, known))
        tails = {voter: tail for candidacy, voter, tail in state.votes if candidacy == promise}
        if promise.follows == head.op_id and promise.succession == rule.op_id and self._is_elected(state, chain, tails):
            yield f"{node} takes over in term {promise.term}", self._taken_over(state, node, promise, tails)

    def _is_elected(self, state: State, chain: Chain, tails: dict[int, int]) -> bool:
        if self.faults.elects_alone:
            return True
        if self.faults.changes_at_once:
            return is_quorum(chain.in_question[-1:], tails)
        return is_elected(chain, tails, CHANGED if state.settled & tails.keys() else RULE)

    def _may_vote(self, state: State, node: int, voter: int, candidacy: Candidacy) -> bool:
        """The request brings the takeovers that the successor knows."""
        known = tuple(map(max, state.known[node], state.known[voter]))
        is_leased = voter in state.leased and not self.faults.votes_while_leased
        promise = state.promises[voter]
        if self.faults.repeats and promise is not None and promise.term == candidacy.term:
            promise = None
        return vote_fault(self.chain(state, known), candidacy, promise, is_leased) is None

    def _voted(self, state: State, voter: int, candidacy: Candidacy) -> State:
        before = self.decides_in(candidacy.follows)
        tail = state.known[voter][before]
        return state._replace(
            promises=_put(state.promises, voter, candidacy), votes=state.votes | {(candidacy, voter, tail)}
        )

    def _taken_over(self, state: State, node: int, candidacy: Candidacy, tails: dict[int, int]) -> State:
        before = self.decides_in(candidacy.follows)
        own = state.known[node][before]
        pin = own if self.faults.short_tail else max([own, *tails.values()])
        known = _put(state.known[node], before, max(own, pin))
        named = self.changed.nodes if candidacy.succession == CHANGED else self.succession.nodes
        voters = tuple(sorted(tails.keys() & set(named)))
        takeover = Takeover(candidacy.term, candidacy.succession, candidacy.follows, pin, voters)
        return self._written(state._replace(known=_put(state.known, node, known)), node, takeover)

    def _written(self, state: State, node: int, takeover: Takeover | None) -> State:
        known = state.known[node]
        times = [entries[i].time for entries, count in zip(state.entries, known, strict=True) for i in range(count)]
        entry = Entry(max(times, default=2) + 1, takeover)
        return state._replace(
            entries=_put(state.entries, node, (*state.entries[node], entry)),
            known=_put(state.known, node, _put(known, node, len(state.entries[node]) + 1)),
        )

    def _decided(self, state: State) -> int:
        return sum(each.takeover is None for entries in state.entries[:-1] for each in entries)

    # What must hold in every state.

    def wrong(self, state: State) -> str | None:
        everything = tuple(map(len, state.entries))
        chain = self.chain(state, everything)
        if chain.double_voters:
            return f"two nodes took over in one term: {sorted(chain.double_voters)} voted twice"
        for one, other in zip(chain.tenures, chain.tenures[1:], strict=False):
            if other.term <= one.term or other.at <= one.at:
                return f"term {other.term} follows term {one.term}"
        counting = self._counting(state, chain)
        if lost := state.told - counting:
            return f"{min(lost).decode()} was told, and does not count"
        leaders = [node for node in range(self.count) if self.leads(state, node) is not None]
        if len(leaders) > 1:
            return f"{leaders} lead at once"
        return None

    def _counting(self, state: State, chain: Chain) -> frozenset[bytes]:
        """The decisions that count, by the chain of everything that was ever written."""
        found: set[bytes] = set()
        for index, tenure in enumerate(chain.tenures):
            entries = state.entries[tenure.node]
            first = 0 if tenure.op_id == ROOT else place(tenure.op_id)[1]
            following = chain.tenures[index + 1] if index + 1 < len(chain.tenures) else None
            last = len(entries)
            if following is not None:
                author, at = place(following.op_id)
                takeover = state.entries[author][at].takeover
                assert takeover is not None
                last = takeover.pin
            # The next tenure of the same node begins with its takeover.
            found |= {name(tenure.node, i) for i in range(first, last) if entries[i].takeover is None}
        return frozenset(found)

    # The search.

    def along(self, names: Sequence[str]) -> State:
        """The state after these steps."""
        state = self.begin()
        for each in names:
            state = dict(self.steps(state))[each]
        return state

    def explore(self, depth: int, begin: State | None = None) -> Finding | None:
        """The first thing that is wrong within so many steps, with the shortest way to it."""
        front = [begin or self.begin()]
        ways: dict[State, tuple[State | None, str]] = {front[0]: (None, "")}
        for _ in range(depth):
            following = []
            for state in front:
                for step, after in self.steps(state):
                    if after in ways:
                        continue
                    ways[after] = (state, step)
                    if (what := self.wrong(after)) is not None:
                        return Finding(what, _way(ways, after))
                    following.append(after)
            front, self.states = following, len(ways)
        return None


def _way(ways: dict[State, tuple[State | None, str]], state: State) -> list[str]:
    steps = []
    while (before := ways[state])[0] is not None:
        steps.append(before[1])
        state = before[0]
    return steps[::-1]


def _put(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:index], value, *values[index + 1 :])
