"""A family: subjects of one sort, such as locks or messages, the payloads about them, and the rules that fold these. A
`Family` record tells the program all of it. The tables of the vocabulary, of subjects, needs and sanitisation, and the
log's projectors are derived from the records that are registered here; none of them names a family.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from hocket.kernel.postcard import StructCodec

K = TypeVar("K")
V = TypeVar("V")


class Subject(NamedTuple):
    family: str
    key: bytes


class Judged(NamedTuple):
    """How ops with one payload are judged. An action of None: no capability decides who writes them. The field is the
    one whose word, or words, the caveat checks; None stands for a word of the subject that the caller knows, such as
    the kind of the job, and an empty one for a word that the payload does not have. An op that is `scoped` has a scope,
    which the caveat `scopes` checks. One that `is_owners` is written by the owner's nodes alone.
    """

    resource: str
    action: str | None
    caveat: str | None = None
    field: str | None = None
    scoped: bool = False
    is_owners: bool = False


class FamilyPayload(Struct, frozen=True):
    """A payload about a subject of a family."""


class ForeseenId(NamedTuple):
    """How an author can know the id of what it makes before it writes the op: a hash over its node and this content."""

    context: bytes
    content: Callable[[Any], bytes]


class Variant(NamedTuple):
    """One payload of a family. `codec` writes the fields after the number. `judged` says who may write it, and who may
    read it where `read` does not. Sanitisation treats the fields in `texts` and in `json` as content. `made` is the
    field with the id of what the payload makes, which may be that of its op. `withdraws` is the field with the offer of
    the same author that the payload withdraws. One that `gives_back` what its author holds is accepted from any node.
    `event` says what has happened, in the words of an event.
    """

    number: int
    codec: StructCodec[Any]
    judged: Judged
    read: Judged | None = None
    texts: tuple[str, ...] = ()
    bodies: tuple[str, ...] = ()
    json: tuple[str, ...] = ()
    made: str = ""
    foreseen: ForeseenId | None = None
    withdraws: str = ""
    gives_back: bool = False
    event: str = ""


class Resource(NamedTuple):
    """What grants about a family name. A prefix in a grant restricts it by a `word` of the subject; `plural` is what
    people call the subjects. `actions` are those besides Read and Write, by the words with which grants name them. Who
    may write all ops may also do those in `written`.
    """

    name: str
    word: str
    plural: str
    actions: Mapping[str, str] = MappingProxyType({})
    written: frozenset[str] = frozenset()
    is_put: bool = True
    """Whether there is an action Write."""

    @property
    def spelled(self) -> dict[str, str]:
        """Every action by the word with which grants name it."""
        put = {"write": "Write"} if self.is_put else {}
        return {"read": "Read", **put, **self.actions, "all": "*"}


class OwnTable(NamedTuple):
    """The store's table of a family that does not share the one of subjects: how a session reads the state under a key,
    and the bytes of all states.
    """

    name: str
    read: Callable[[Any, bytes], Any]
    states: Callable[[Any], Iterable[bytes]]


class Family(NamedTuple):
    """What the program needs to know about a family. `key` gives the key of the subject that a payload is about.
    `rules` loads the rules (see `arbitration`), and `projector` the class of what keeps the states; without one,
    `SubjectProjector` does. Both are loaded with the first subject. Grants name the `resource`; without one, the
    payloads need grants of another. Readers of the payload `accepted` may read the arbiter's acceptances; if it is
    None, only readers of all ops may. With `is_kept`, states stay known after a transaction as long as nobody else
    writes. `follow_up` gives the payload, if any, that the deciding node writes after an op that led to this state.
    `claims` are ops that a state names, which count. At a horizon, a state takes the place of the settled ops about a
    subject of a family with `based`, except those that this gives: those that later rules look up by the state.
    `key_text` shows a key to people.
    """

    name: str
    variants: tuple[Variant, ...]
    key: Callable[[Any], bytes]
    rules: Callable[[], Any]
    resource: Resource | None = None
    projector: Callable[[], Callable[[Any, Any], Any]] | None = None
    accepted: type[FamilyPayload] | None = None
    is_kept: bool = False
    follow_up: Callable[[Any, Any], Any] | None = None
    table: OwnTable | None = None
    claims: Callable[[Any], Collection[bytes]] = lambda state: ()
    based: Callable[[Any], Collection[bytes]] | None = None
    key_text: Callable[[bytes], str] = lambda key: key.decode(errors="replace")

    def subject(self, payload: Any) -> Subject:
        return Subject(self.name, self.key(payload))


# The families of this program by their names. They register themselves when this module is loaded for the first table.
FAMILIES: dict[str, Family] = {}
_PROGRAM = "hocket.families"
_derived: list[tuple[dict[Any, Any], Callable[[Family], Mapping[Any, Any]]]] = []


def register(*families: Family) -> None:
    """Adds families to the program, and to the tables that are derived from them."""
    for family in families:
        FAMILIES[family.name] = family
        for table, part in _derived:
            table.update(part(family))


def derived(table: dict[K, V], part: Callable[[Family], Mapping[K, V]]) -> dict[K, V]:
    """The table, to which every family adds its part, also one that is registered later."""
    import_module(_PROGRAM)
    _derived.append((table, part))
    for family in FAMILIES.values():
        table.update(part(family))
    return table


def by_resource(value: Callable[[Resource], V]) -> Callable[[Family], dict[str, V]]:
    """The part of a table that has, for the family's resource, what this function makes of it."""
    return lambda family: {} if family.resource is None else {family.resource.name: value(family.resource)}
