"""What a program knows beyond Likewise v0.1: extra payloads by number, and resources, actions and caveats by name. This
is no part of the rules that a mesh agrees on. Nodes whose programs know different things still exchange ops: a program
keeps and passes on an op or a capability that it does not know, and gives it no effect. Nodes tell each other what they
know, so that operators learn which nodes to upgrade.
"""

from collections.abc import Iterable

from hocket.kernel.capabilities import ACTIONS, ACTIONS_V01, CAVEATS_V01, READERS, RESOURCES, RESOURCES_V01
from hocket.kernel.ucan import Delegation
from hocket.kernel.vocabulary import EXTENSIONS, NAMES

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
