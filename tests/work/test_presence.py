"""What agents and nodes say about themselves: what is taken, and what is not."""

from collections.abc import Iterator

import pytest

from hocket.errors import Conflict, Usage
from hocket.store import Presence, Session, Store
from hocket.work.presence import (
    AGENTS_MAX,
    DOING_CHARS_MAX,
    EVERY_MS_MAX,
    KEPT_MS,
    TEXT_CHARS_MAX,
    AgentSaid,
    NodePresence,
    NodeSaid,
    Serving,
    agents_of,
    beat,
    read_presence,
    read_said,
    said_text,
)
from tests.stores import new_store

NODE = 7
KEY = NODE.to_bytes(8, "big")
NOW = 1_000_000_000_000


@pytest.fixture
def session() -> Iterator[Session]:
    store: Store = new_store()
    with store.write() as session:
        yield session
    store.close()


@pytest.mark.touches("VX-11")
def test_the_last_word_of_an_agent_counts_and_expires(session: Session) -> None:
    beat(session, NODE, AgentSaid("editor", "reads"), NOW)
    beat(session, NODE, AgentSaid("editor", "writes", 5_000), NOW + 1)
    beat(session, NODE, AgentSaid("team/tester"), NOW)
    assert [each[1:] for each in session.agents(KEY)] == [
        ("editor", "writes", 5_000, NOW + 1),
        ("team/tester", "", 60_000, NOW),
    ]
    assert session.agents((8).to_bytes(8, "big")) == []
    beat(session, NODE, AgentSaid("late"), NOW + KEPT_MS + 1)
    assert [each.name for each in session.agents(KEY)] == ["late", "editor"]
    beat(session, NODE, AgentSaid("early"), NOW)  # the clock was set back
    assert [each.name for each in session.agents(KEY)] == ["editor", "early"]


@pytest.mark.parametrize(
    "said",
    [
        AgentSaid(""),
        AgentSaid("two words"),
        AgentSaid("bell\a"),
        AgentSaid("line\nbreak"),
        AgentSaid("right\u202eleft"),
        AgentSaid("editor@gpu-box"),
        AgentSaid("team/"),
        AgentSaid("all"),
        AgentSaid("x" * 129),
        AgentSaid("editor", "x" * (DOING_CHARS_MAX + 1)),
        AgentSaid("editor", "x" * 10_000_000),
        AgentSaid("editor", "two\nlines"),
        AgentSaid("editor", "\x1b[31mred"),
        AgentSaid("editor", "", 0),
        AgentSaid("editor", "", -1),
        AgentSaid("editor", "", EVERY_MS_MAX + 1),
    ],
)
def test_a_bad_word_is_refused_and_never_believed(session: Session, said: AgentSaid) -> None:
    with pytest.raises(Usage):
        beat(session, NODE, said, NOW)
    assert session.agents(KEY) == []
    assert read_said(said_text(NodeSaid((Serving(("a",)),), (said,)))).agents == ()


def test_a_node_has_so_many_agents_and_no_more(session: Session) -> None:
    for number in range(AGENTS_MAX):
        beat(session, NODE, AgentSaid(f"agent-{number}"), NOW)
    with pytest.raises(Conflict, match=f"{AGENTS_MAX} agents"):
        beat(session, NODE, AgentSaid("one-more"), NOW)
    beat(session, NODE, AgentSaid("agent-0", "still here"), NOW)
    beat(session, NODE + 1, AgentSaid("one-more"), NOW)


def test_what_a_node_says_is_bounded_and_unreadable_words_say_nothing() -> None:
    many = NodeSaid(
        tuple(Serving((f"acme.{number}",)) for number in range(200)),
        tuple(AgentSaid(f"agent-{number}", "x" * DOING_CHARS_MAX) for number in range(AGENTS_MAX)),
    )
    text = said_text(many)
    kept = read_said(text)
    assert len(text) <= TEXT_CHARS_MAX
    assert kept.workers == many.workers and len(kept.agents) > 0 and kept.agents == many.agents[: len(kept.agents)]
    for bad in ("", "{", "7", "[]", '{"workers": 7}', "[" * 100_000):
        assert read_said(bad) == NodeSaid()


def test_nothing_that_was_heard_earlier_replaces_what_was_heard_later(session: Session) -> None:
    said = NodeSaid(agents=(AgentSaid("editor", "writes"),))
    session.put_presence(NodePresence(NODE, said, NOW, (NOW - 5,)).row)
    session.put_presence(NodePresence(NODE, NodeSaid(), NOW - 1).row)
    session.touch_presence({KEY: (NOW - 1, 0), (8).to_bytes(8, "big"): (NOW, 0)})
    (row,) = session.presence()
    assert read_presence(row) == NodePresence(NODE, said, NOW, (NOW - 5,))
    session.touch_presence({KEY: (NOW + 10, NOW + 9)})
    (row,) = session.presence()
    assert (row.heard, row.seen) == (NOW + 10, (NOW + 9,))
    session.touch_presence({})
    session.drop_presence(NOW + 10, NOW + 10)
    assert len(session.presence()) == 1
    session.drop_presence(0, NOW + 9)
    assert session.presence() == []


def test_an_agent_is_seen_no_later_than_its_node() -> None:
    said = NodeSaid(agents=(AgentSaid("one"), AgentSaid("two")))
    known = read_presence(Presence(KEY, said_text(said), NOW, (NOW + 99,)))
    assert [(agent.name, seen) for agent, seen in agents_of(known)] == [("one", NOW), ("two", NOW)]
