"""What one capability of a delegation admits: the known resources and actions, the caveats, and when one capability
is no wider than another. A capability is read once into a Grant, by which ops are judged quickly. `authority` decides
which delegations stand, and so whose grants count.

Our own readings, where the Likewise document leaves a choice or contradicts itself:

- A Job op is an op: (Ops, Write) admits every op about a job, as if Job's Schedule, Claim and Complete were meant too.
- Each caveat restricts the ops of its own class and no others: source_types those about evidence, predicates those
  about claims, kind_prefix those about jobs, under Ops as well as under the class itself. time_range restricts all. An
  op that cannot be judged is not admitted: under source_types the tombstone of some evidence, under predicates a
  change of some claim, under kind_prefix an op about an unknown job.
- Ours: key_prefix restricts ops about locks, messages and rows, by the key, the receiver or the row, and the accounts
  that jobs may be charged to. No op is about an account: who adds up the costs judges by the submitter's grants.
  scopes restricts ops about locks, and the reading of them, to the scopes that it names.
- kind_prefix also restricts the reading of artifacts, under Artifact and under Ops: by the kind of the job that an
  artifact came from. It does not admit an artifact that came from no job. It does not restrict writing artifacts.
- An unknown caveat, or a known one with a value of another type, empties its capability and leaves the others of the
  delegation as they are. So does an unknown resource or action: a newer program may know it.
- A capability of Likewise v0.1 that is wider than what its issuer holds invalidates the whole delegation. One that
  names anything beyond v0.1 is only emptied by that: programs that know it and programs that do not must agree on the
  rest.
- A caveat that the parent has and the child lacks widens, even where it would have no effect on the child's resource.
- A child's sanitize list must contain every rule of the parent's, spelled the same.

What a program knows beyond v0.1 is no part of the rules that a mesh agrees on. Nodes tell each other what they know, so
that operators learn which nodes to upgrade.

The graph of the delegations of a log says which of them lead back to the user, and who may revoke them. It knows
nothing of ops; `authority` says what the delegations that stand allow.

A delegation stands if it leads back to the user: it is the user's own, or all the delegations that it cites stand, were
given to its issuer, contain its times, each of its capabilities is within one of theirs, and one of them lets the
issuer write registrations. A capability that names something beyond Likewise v0.1 and is within none of theirs admits
nothing, with no other effect. If a delegation of the user cites others, they must hold too. Because a standing
delegation is inside its parents in every respect, an op need only be checked against the delegation itself and not
against the chain above it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from typing import NamedTuple

from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import U64_MAX
from hocket.kernel.family import by_resource, derived
from hocket.kernel.ids import node_text
from hocket.kernel.mesh_rules import CAVEATS
from hocket.kernel.postcard import Malformed
from hocket.kernel.ucan import ROOT, Capability, Delegation
from hocket.kernel.vocabulary import EXTENSIONS, NAMES

RESOURCES_V01 = frozenset(
    {
        *("Ops", "Evidence", "Entity", "Claim", "Job", "Episode", "Artifact", "Action", "Mesh", "UserAssertion"),
        "Registration",
    }
)
ACTIONS_V01 = frozenset({"*", "Read", "Write", "Schedule", "Claim", "Complete"})
CAVEATS_V01 = frozenset(CAVEATS)
# What this program knows. Those of families are among them. key_prefix restricts the grants of keyed resources.
_KEYED: dict[str, None] = derived(dict.fromkeys(("Store", "Account")), by_resource(lambda each: None))
KEYED = _KEYED.keys()
_RESOURCES: dict[str, None] = derived(dict.fromkeys((*RESOURCES_V01, *KEYED)), by_resource(lambda each: None))
RESOURCES: Set[str] = _RESOURCES.keys()
_OF_KINDS = frozenset({"Job", "Artifact"})
_ACTIONS: dict[str, None] = derived(
    dict.fromkeys((*ACTIONS_V01, "Define", "Approve", "Erase", "Decide", "Charge")),
    lambda family: {} if family.resource is None else dict.fromkeys(family.resource.actions.values()),
)
ACTIONS = _ACTIONS.keys()
# What (Ops, Write) admits besides the writes that are called so.
_WRITES: dict[str, frozenset[str]] = derived(
    {"Job": frozenset({"Schedule", "Claim", "Complete"})}, by_resource(lambda each: each.written)
)

Words = frozenset[str]
Range = tuple[int, int]
# Words in a set, or prefixes in a tuple; None means "no restriction".
Limit = Words | tuple[str, ...] | None


class Grant(NamedTuple):
    """A capability whose caveats are understood. None means "no restriction along this axis"."""

    resource: str
    action: str
    source_types: Words | None = None
    predicates: Words | None = None
    kind_prefix: tuple[str, ...] | None = None
    time_range: Range | None = None
    sanitize: tuple[str, ...] = ()
    audit_inference: bool = False
    key_prefix: tuple[str, ...] | None = None
    scopes: Words | None = None

    def covers(self, resource: str, action: str) -> bool:
        # Ops are what nodes write. Who shares a store is no op, and no wide capability includes it.
        if self.resource != resource and (self.resource != "Ops" or resource == "Store"):
            return False
        if self.action == action or self.action == "*":
            return True
        return self.resource == "Ops" and self.action == "Write" and action in _WRITES.get(resource, ())

    def admits(self, resource: str, action: str, words: tuple[str, ...] = (), scope: str | None = None) -> bool:
        """Whether it covers this, and each of the words, such as the keys of locks, has one of its prefixes. Under a
        prefix something without any word is not admitted. `scope` is that of locks; None stands for all scopes.
        """
        if resource == "Lock" and not admits(self.scopes, scope):
            return False
        prefixes = self.key_prefix if resource in KEYED else self.kind_prefix if resource in _OF_KINDS else None
        is_within = prefixes is None or (bool(words) and all(word.startswith(prefixes) for word in words))
        return is_within and self.covers(resource, action)

    def within(self, parent: "Grant") -> bool:
        """Whether the parent also admits every op that this one admits, under the same duties."""
        return (
            parent.covers(self.resource, self.action)
            and is_narrower(self.source_types, parent.source_types)
            and is_narrower(self.predicates, parent.predicates)
            and is_narrower(self.kind_prefix, parent.kind_prefix)
            and is_narrower(self.key_prefix, parent.key_prefix)
            and is_narrower(self.scopes, parent.scopes)
            and _inside(self.time_range, parent.time_range)
            and set(parent.sanitize) <= set(self.sanitize)
            and (self.audit_inference or not parent.audit_inference)
        )


def sharing(founder: int) -> Capability:
    """Lets a node decide in the store that this founder began, as all nodes do that share it."""
    return Capability("Store", "Decide", {"key_prefix": [node_text(founder)]})


def is_v01(capability: Capability) -> bool:
    """Whether it names nothing beyond Likewise v0.1."""
    is_named = capability.resource in RESOURCES_V01 and capability.action in ACTIONS_V01
    return is_named and set(capability.caveats) <= CAVEATS_V01


def grant_of(capability: Capability) -> Grant | None:
    """The capability with its caveats understood. None if it names something unknown, and so admits nothing."""
    if capability.resource not in RESOURCES or capability.action not in ACTIONS:
        return None
    values: dict[str, object] = {}
    for name, value in capability.caveats.items():
        read = READERS.get(name)
        if read is None:
            return None
        understood = read(value)
        if understood is None:
            return None
        values[name] = understood
    return Grant(capability.resource, capability.action, **values)  # type: ignore[arg-type]


def held_grants(capabilities: Iterable[Capability], own: Iterable[Grant]) -> list[Grant]:
    """Those of the capabilities that a node may let a program use, which are within one of the node's `own` grants. The
    duties and the times of its own grants bind the node whatever it does, so they do not count here.
    """
    wider = [grant._replace(sanitize=(), audit_inference=False, time_range=None) for grant in own]
    grants = (grant_of(capability) for capability in capabilities)
    return [grant for grant in grants if grant is not None and any(map(grant.within, wider))]


def _texts(value: object) -> list[str] | None:
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return value
    return None


def _read_words(value: object) -> Words | None:
    texts = _texts(value)
    return None if texts is None else frozenset(texts)


def _read_prefixes(value: object) -> tuple[str, ...] | None:
    texts = _texts(value)
    return None if texts is None else tuple(texts)


def _read_range(value: object) -> Range | None:
    # The type is compared, because isinstance accepts True as an int.
    if isinstance(value, list) and len(value) == 2 and all(type(bound) is int for bound in value):
        return value[0], value[1]
    return None


def _read_sanitize(value: object) -> tuple[str, ...] | None:
    texts = _texts(value)
    if texts is None:
        return None
    from hocket.kernel.sanitise import parse_rule  # few grants have a rule

    try:
        for text in texts:
            parse_rule(text)
    except Malformed:
        return None
    return tuple(texts)


def _read_flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


READERS: dict[str, Callable[[object], object | None]] = {
    "source_types": _read_words,
    "predicates": _read_words,
    "kind_prefix": _read_prefixes,
    "time_range": _read_range,
    "sanitize": _read_sanitize,
    "audit_inference": _read_flag,
    "key_prefix": _read_prefixes,
    "scopes": _read_words,
}


def admits(limit: Limit, word: str | tuple[str, ...] | None) -> bool:
    """Whether a word, None if it is not known, is within a limit. Of several words all must be."""
    if limit is None:
        return True
    if word is None:
        return False
    if isinstance(word, tuple):
        return all(admits(limit, each) for each in word)
    return word.startswith(limit) if isinstance(limit, tuple) else word in limit


def is_narrower(child: Limit, parent: Limit) -> bool:
    """Whether the parent admits every word that the child admits. The document's sentence on prefixes swaps child and
    parent; by its general rule, every prefix of the child must begin with one of the parent's.
    """
    return parent is None or (child is not None and all(admits(parent, word) for word in child))


def _inside(child: Range | None, parent: Range | None) -> bool:
    return parent is None or (child is not None and parent[0] <= child[0] and child[1] <= parent[1])


Knowledge = frozenset[str]

TEXT_CHARS_MAX = 4_096
_PAYLOAD = "payload "


def _names(resources: Iterable[str], actions: Iterable[str], caveats: Iterable[str]) -> Knowledge:
    named = {"resource": resources, "action": actions, "caveat": caveats}
    return frozenset(f"{what} {name}" for what, names in named.items() for name in names)


_V01 = _names(RESOURCES_V01, ACTIONS_V01, CAVEATS_V01)
OURS: Knowledge = _names(RESOURCES, ACTIONS, READERS) - _V01 | {f"{_PAYLOAD}{number}" for number in EXTENSIONS}


def knowledge_text(known: Knowledge) -> str:
    return ", ".join(sorted(known))


def read_knowledge(text: str) -> Knowledge:
    """Parses what a program reports that it knows. A text that is too long, or not printable, counts as nothing."""
    if len(text) > TEXT_CHARS_MAX or not text.isprintable():
        return frozenset()
    return frozenset(word for part in text.split(",") if (word := part.strip()))


def payloads(known: Knowledge) -> list[int]:
    """The numbers of the payloads among them."""
    numbers = [each.removeprefix(_PAYLOAD) for each in known if each.startswith(_PAYLOAD)]
    return sorted(int(number) for number in numbers if number.isascii() and number.isdigit() and len(number) < 10)


def named_in(delegations: Iterable[Delegation]) -> Knowledge:
    """Every resource, action and caveat that these delegations name."""
    named = [capability for each in delegations for capability in each.capabilities]
    caveats = [caveat for each in named for caveat in each.caveats]
    return _names({each.resource for each in named}, {each.action for each in named}, caveats)


def unknown_of(delegations: Iterable[Delegation]) -> Knowledge:
    """What these delegations name that this program does not know."""
    return named_in(delegations) - OURS - _V01


def sentence(theirs: Knowledge) -> str | None:
    """How another node's program differs from this one; None if it does not."""
    said = [
        f"{verb} {', '.join(_shown(each) for each in sorted(names))}"
        for verb, names in (("does not know", OURS - theirs), ("also knows", theirs - OURS))
        if names
    ]
    return f"its program {' and '.join(said)}" if said else None


def _shown(name: str) -> str:
    number = name.removeprefix(_PAYLOAD)
    known = NAMES.get(int(number)) if number != name and number.isdigit() else None
    return name if known is None else f"{name} ({known})"


CHAIN_MAX = 16
_ANY_STORE = Grant("Store", "Decide")


class DelegationGraph:
    """The delegations of a log and what is wrong with each, apart from revocations."""

    def __init__(self, user: str, delegations: Iterable[Delegation], is_bound: bool) -> None:
        self.user = user
        self.is_bound = is_bound
        self.by_cid = {delegation.cid: delegation for delegation in delegations}
        self.of_node: dict[int, list[Delegation]] = {}
        self.children: dict[bytes, list[Delegation]] = {}
        self.grants: dict[bytes, tuple[Grant, ...]] = {}
        self._v01: dict[bytes, set[Grant]] = {}
        self._depths: dict[bytes, int] = {}
        # A delegation that is not reached from above relies on one that is not here, or on itself.
        self.faults: dict[bytes, Reason | None] = dict.fromkeys(self.by_cid, Reason.UNRESOLVED)
        missing: dict[bytes, int] = {}
        ready: deque[Delegation] = deque()
        for delegation in self.by_cid.values():
            self.of_node.setdefault(delegation.node, []).append(delegation)
            grants = [(grant_of(capability), is_v01(capability)) for capability in delegation.capabilities]
            self.grants[delegation.cid] = tuple(grant for grant, _ in grants if grant is not None)
            self._v01[delegation.cid] = {grant for grant, is_plain in grants if grant is not None and is_plain}
            parents = set(delegation.proofs)
            missing[delegation.cid] = len(parents)
            for parent in parents:
                self.children.setdefault(parent, []).append(delegation)
            if not parents:
                ready.append(delegation)
        while ready:
            delegation = ready.popleft()
            self.faults[delegation.cid] = self._fault(delegation)
            for child in self.children.get(delegation.cid, ()):
                missing[child.cid] -= 1
                if not missing[child.cid]:
                    ready.append(child)

    def _fault(self, delegation: Delegation) -> Reason | None:
        """What is wrong with a delegation whose parents are all here and judged."""
        parents = [self.by_cid[cid] for cid in delegation.proofs]
        depth = 1 + max((self._depths[parent.cid] for parent in parents), default=0)
        self._depths[delegation.cid] = depth
        if depth > CHAIN_MAX:
            return Reason.UNRESOLVED
        for parent in parents:
            if fault := self.faults[parent.cid]:
                return fault
        if delegation.issuer != self.user:
            if not parents:
                return Reason.FOREIGN_USER
            if any(parent.audience != delegation.issuer for parent in parents):
                return Reason.UNAUTHORISED
        if parents:
            if not all(_in_time(delegation, parent) for parent in parents):
                return Reason.WIDENED
            above = [grant for parent in parents for grant in self.passed_on(parent)]
            granted = tuple(grant for grant in self.grants[delegation.cid] if any(map(grant.within, above)))
            plain = self._v01[delegation.cid]
            if not plain <= set(granted):
                return Reason.WIDENED
            self.grants[delegation.cid] = granted
            if delegation.issuer != self.user and not any(_passes_on(grant, delegation, plain) for grant in above):
                return Reason.UNAUTHORISED
        return None

    def passed_on(self, delegation: Delegation) -> tuple[Grant, ...]:
        """What its holder may grant others. The owner's nodes say who shares a store, wherever their own is."""
        grants = self.grants[delegation.cid]
        return (*grants, _ANY_STORE) if self.owns(delegation) else grants

    def below(self, cids: Iterable[bytes], reached: set[bytes]) -> None:
        """Adds to reached these delegations and all that rely on them."""
        waiting = [cid for cid in cids if cid not in reached]
        reached.update(waiting)
        while waiting:
            for child in self.children.get(waiting.pop(), ()):
                if child.cid not in reached:
                    reached.add(child.cid)
                    waiting.append(child.cid)

    def above(self, cid: bytes) -> Iterator[Delegation]:
        """The delegation itself and all that it relies on, as far as they are here."""
        seen = {cid}
        waiting = [cid]
        while waiting:
            delegation = self.by_cid.get(waiting.pop())
            if delegation is not None:
                yield delegation
                waiting += [parent for parent in delegation.proofs if parent not in seen]
                seen.update(delegation.proofs)

    def chain(self, delegation: Delegation, grant: Grant) -> list[Delegation]:
        """A way from the user down to this delegation, along which the grant was passed on."""
        chain = [delegation]
        while chain[-1].issuer != self.user:
            parent, grant = next(
                (self.by_cid[cid], wider)
                for cid in chain[-1].proofs
                for wider in self.passed_on(self.by_cid[cid])
                if grant.within(wider)
            )
            chain.append(parent)
        return chain[::-1]

    def in_force(self, node: int, at_ms: int, revoked: set[bytes]) -> Iterator[Delegation]:
        for delegation in self.of_node.get(node, ()):
            if self.faults[delegation.cid] is None and delegation.cid not in revoked:
                start, end = window(delegation)
                if start <= at_ms < end:
                    yield delegation

    def owns(self, delegation: Delegation) -> bool:
        return delegation.issuer == self.user and any(capability in ROOT for capability in delegation.capabilities)

    def may_revoke(self, node: int, cid: bytes, at_ms: int, revoked: set[bytes]) -> bool:
        if self.is_bound:
            target = self.by_cid.get(cid)
            if target is None or target.issuer == self.user:
                return False
            keys = {delegation.audience for delegation in self.of_node.get(node, ())}
            return any(delegation.issuer in keys for delegation in self.above(cid))
        held = list(self.in_force(node, at_ms, revoked))
        if any(map(self.owns, held)):
            return True
        names = {delegation.audience for delegation in held}
        return bool(names) and any(delegation.issuer in names for delegation in self.above(cid))


def window(delegation: Delegation) -> tuple[int, int]:
    """The milliseconds in which a delegation is in force; the end is exclusive."""
    end = U64_MAX + 1 if delegation.expires is None else delegation.expires * 1000
    return delegation.not_before * 1000, end


def _passes_on(grant: Grant, child: Delegation, granted: Iterable[Grant]) -> bool:
    """Whether the holder of this grant may issue such a delegation. With a time_range, it may issue only delegations
    that are of use within it.
    """
    if not grant.covers("Registration", "Write"):
        return False
    if grant.time_range is None:
        return True
    low, high = grant.time_range
    for each in granted:
        start, end = each.time_range or window(child)
        if start < low or end > high:
            return False
    return True


def _in_time(child: Delegation, parent: Delegation) -> bool:
    if parent.expires is not None and (child.expires is None or child.expires > parent.expires):
        return False
    return child.not_before >= parent.not_before
