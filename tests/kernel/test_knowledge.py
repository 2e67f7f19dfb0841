"""What programs know, as they tell each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.capabilities import (
    OURS,
    TEXT_CHARS_MAX,
    knowledge_text,
    named_in,
    payloads,
    read_knowledge,
    sentence,
    unknown_of,
)
from hocket.kernel.ucan import Capability, Delegation
from hocket.kernel.vocabulary import EXTENSIONS

WORDS = st.builds("{} {}".format, st.sampled_from(["payload", "resource", "caveat"]), st.integers(0, 10**6))


@given(st.frozensets(WORDS, max_size=50))
def test_what_is_known_comes_back_from_its_text(known: frozenset[str]) -> None:
    assert read_knowledge(knowledge_text(known)) == known


@given(st.text(max_size=200))
def test_any_text_says_something_or_nothing(text: str) -> None:
    for word in read_knowledge(text):
        assert word.isprintable() and word == word.strip()
    payloads(read_knowledge(text))
    sentence(read_knowledge(text))


@pytest.mark.parametrize("text", ["", "a" * (TEXT_CHARS_MAX + 1), "payload 1\x1b[2J"])
def test_what_is_not_for_peoples_eyes_says_nothing(text: str) -> None:
    assert read_knowledge(text) == frozenset()


@pytest.mark.req("LW-34")
def test_operators_are_told_how_programs_differ() -> None:
    assert set(payloads(OURS)) == EXTENSIONS
    assert sentence(OURS) is None
    assert sentence(OURS - {"payload 1024"}) == "its program does not know payload 1024 (FailWork)"
    assert sentence(OURS | {"resource Moon"}) == "its program also knows resource Moon"


@pytest.mark.req("LW-24")
def test_what_delegations_name_is_found() -> None:
    granted = Capability("Moon", "Write", {"gravity": 1}), Capability("Job", "Claim", {"kind_prefix": ["a"]})
    made = Delegation(bytes(32), "", "", granted, 0, None, (), 1, bytes(32))
    assert {"resource Moon", "resource Job", "action Claim", "caveat kind_prefix"} <= named_in([made])
    assert unknown_of([made]) == {"resource Moon", "caveat gravity"}
