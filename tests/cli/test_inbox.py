"""The commands for messages, on one home without a server: what they answer, and what they refuse."""

import os
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Program, until


def send(hocket: Program, *arguments: object) -> str:
    message_id: str = hocket("send", *arguments, "--json", code=0).json["id"]
    return message_id


def claim(hocket: Program, agent: str = "editor", count: int = 5, lease: str = "20s") -> list[str]:
    claimed = hocket("inbox", "--agent", agent, "--claim", count, "--lease", lease, "--json", code=0).json
    return [each["id"] for each in claimed]


@pytest.mark.req("VX-01", "VX-10")
def test_a_message_is_sent_claimed_and_acknowledged_by_its_holder_alone(hocket: Program) -> None:
    sent = send(hocket, "editor", "hello", "--type", "greeting", "--agent", "writer")
    before = time.time() * 1000
    (got,) = hocket("inbox", "--agent", "editor", "--claim", 5, "--lease", "20s", "--json", code=0).json
    assert {name: got[name] for name in ("id", "type", "thread", "body", "tries", "to")} == {
        **{"id": sent, "type": "greeting", "thread": sent},
        **{"body": "hello", "tries": 1, "to": "editor"},
    }
    assert got["from"].startswith("writer@") and got["lease_until"] > before
    assert claim(hocket) == []
    stranger = hocket("ack", sent, "--agent", "reviewer", code=3)
    assert "another consumer holds the message; editor on node" in stranger.sentence
    hocket("nack", sent, "--agent", "reviewer", code=3)
    hocket("ack", sent, "--agent", "editor", code=0)
    assert "the message is acknowledged" in hocket("ack", sent, "--agent", "editor", code=3).sentence
    assert claim(hocket) == [] and hocket("inbox", "--agent", "editor", "--json", code=0).json == []


@pytest.mark.req("VX-10")
def test_after_its_lease_a_message_comes_again_and_a_late_acknowledgement_is_refused(hocket: Program) -> None:
    sent = send(hocket, "editor", "hello")
    claim(hocket, lease="100ms")
    assert until(lambda: claim(hocket)) == [sent]
    shown = hocket("inbox", "--agent", "editor", "--json", code=0).json
    assert [(each["tries"], each["state"]) for each in shown] == [(2, "leased")]
    sent = send(hocket, "critic", "hello")
    assert claim(hocket, "critic", lease="1ms") == [], "its lease is over before it can be shown"
    late = hocket("ack", sent, "--agent", "critic", code=3)
    assert "the lease had passed its deadline" in late.sentence


@pytest.mark.req("VX-10")
def test_a_message_that_fails_too_often_is_dead_until_it_is_retried(hocket: Program) -> None:
    sent = send(hocket, "editor", "hello")
    for _ in range(5):
        assert claim(hocket) == [sent]
        hocket("nack", sent, "--agent", "editor", "--reason", "no time", code=0)
    assert claim(hocket) == []
    assert [(each["id"], each["state"]) for each in hocket("dead", "list", "--json", code=0).json] == [(sent, "dead")]
    assert [each["id"] for each in hocket("dead", "--json", code=0).json] == [sent]
    hocket("dead", "retry", sent, code=0)
    assert hocket("dead", "list", "--json", code=0).json == [] and claim(hocket) == [sent]
    assert "only a dead message" in hocket("dead", "retry", sent, code=3).sentence


@pytest.mark.req("VX-10")
def test_threads_groups_and_priorities(hocket: Program) -> None:
    first = send(hocket, "team/", "first", "--agent", "boss")
    urgent = send(hocket, "team/editor", "urgent", "--priority", 5)
    second = send(hocket, "team/editor", "second", "--thread", first)
    everybody = send(hocket, "all", "news")
    reply = send(hocket, "boss", "done", "--reply-to", first, "--agent", "team/editor")
    assert claim(hocket, "team/editor") == [urgent, first, second, everybody]
    assert claim(hocket, "team/critic") == [first, everybody]
    assert claim(hocket, "outsider") == [everybody]
    thread = hocket("thread", reply, "--json", code=0).json
    assert [each["id"] for each in thread] == [first, second, reply]
    assert {each["thread"] for each in thread} == {first} and thread[-1]["reply_to"] == first


@pytest.mark.req("VX-10")
def test_attachments_are_artifacts_by_their_hash(hocket: Program, tmp_path: Path) -> None:
    for name, size in (("small.txt", 5), ("large.bin", 300_000)):
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "body").write_bytes(b"\xff\x00raw")
    hocket(
        *("send", "editor", f"@{tmp_path / 'body'}"),
        *("--attach", tmp_path / "small.txt", "--attach", tmp_path / "large.bin"),
        code=0,
    )
    (shown,) = hocket("inbox", "--agent", "editor", "--json", code=0).json
    assert shown["body"] is None and shown["body_base64"] == "/wByYXc="
    assert [(each["name"], each["size"]) for each in shown["attachments"]] == [("small.txt", 5), ("large.bin", 300_000)]
    content = hocket("artifacts", "get", shown["attachments"][0]["artifact_id"], code=0)
    assert content.out == "xxxxx"


def test_a_message_that_expires_unread_is_listed_as_such(hocket: Program) -> None:
    sent = send(hocket, "editor", "quick!", "--ttl", "50ms")
    dead = until(lambda: hocket("dead", "list", "--json", code=0).json)
    assert [(each["id"], each["state"]) for each in dead] == [(sent, "expired")]
    assert claim(hocket) == []
    assert "has expired" in hocket("dead", "retry", sent, code=3).sentence


def test_following_prints_messages_as_they_come(hocket: Program) -> None:
    first = send(hocket, "editor", "one")
    following = hocket.start("inbox", "--agent", "editor", "--claim", 1, "--follow", "--json")
    assert following.stdout is not None and first in following.stdout.readline()
    second = send(hocket, "editor", "two")
    assert second in following.stdout.readline()
    following.kill()
    looking = hocket.start("inbox", "--agent", "critic", "--follow", "--json")
    third = send(hocket, "critic", "three")
    assert looking.stdout is not None and third in looking.stdout.readline()
    looking.kill()
    assert claim(hocket, "critic") == [third]


BAD_REQUESTS = [
    (("send", "", "hello"), "is not an address"),
    (("send", "@here", "hello"), "is not an address"),
    (("send", "editor@", "hello"), "names no node"),
    (("send", "editor@nowhere", "hello"), "no node 'nowhere'"),
    (("send", "edi tor", "hello"), "is not an address"),
    (("send", "x" * 10_000, "hello"), "is not an address"),
    (("send", "team//", "hello"), "is not an address"),
    (("send", "editor", "hello", "--ttl", "0"), "the ttl must be"),
    (("send", "editor", "hello", "--ttl", "9999d"), "the ttl must be"),
    (("send", "editor", "hello", "--ttl", "abc"), "not a duration"),
    (("send", "editor", "hello", "--priority", "99999999"), "priority lies between"),
    (("send", "editor", "hello", "--thread", "xyz!"), "is not the id of a message"),
    (("send", "editor", "hello", "--reply-to", "01ARZ3NDEKTSV4RRFFQ69G5FAV"), "no message"),
    (("send", "editor", "@/nowhere/at/all"), "cannot read the message"),
    (("send", "editor", "hello", "--agent", "a b"), "is not the name of an agent"),
    (("inbox", "--agent", "all", "--claim", "1"), "is not the name of an agent"),
    (("inbox", "--agent", "editor", "--claim", "0"), "claim 1 to"),
    (("inbox", "--agent", "editor", "--claim", "1", "--lease", "0"), "a lease must be"),
    (("inbox", "--agent", "editor", "--claim", "1", "--lease", "abc"), "not a duration"),
    (("ack", "01ARZ3NDEKTSV4RRFFQ69G5FAV"), "no message"),
    (("ack", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--agent", ""), "'' is not the name of an agent"),
    (("send", "editor", "hello", "--agent", ""), "'' is not the name of an agent"),
    (("inbox", "--agent", ""), "'' is not the name of an agent"),
    (("thread", "zz"), "is not the id of a message"),
]


def test_bad_requests_are_refused_in_one_sentence_and_change_nothing(hocket: Program) -> None:
    for arguments, words in BAD_REQUESTS:
        assert words in hocket(*arguments, code=2).sentence
    assert hocket("inbox", "--json", code=0).json == []


def test_a_message_of_a_gigabyte_is_refused_at_once(hocket: Program, tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        os.truncate(file.fileno(), 1024**3)
    assert "more than 1048576 bytes" in hocket("send", "editor", f"@{huge}", code=2).sentence
    with huge.open("rb") as file:
        piped = hocket("send", "editor", "-", input=file.read(2 * 1024 * 1024), code=2)
    assert "attach what is larger as a file" in piped.sentence


def test_a_message_can_be_as_long_as_the_bound_says_and_have_odd_characters(hocket: Program) -> None:
    text = "ünï\u202ecödé\n" + "x" * 100_000
    sent = hocket("send", "редактор", "-", "--json", input=text, code=0).json["id"]
    (shown,) = hocket("inbox", "--agent", "редактор", "--json", code=0).json
    assert (shown["id"], shown["body"]) == (sent, text)
    assert "\u202e" not in hocket("inbox", "--agent", "редактор", code=0).out


def test_without_a_name_a_command_acts_for_the_user_or_the_agent_of_the_environment(hocket: Program) -> None:
    sent = send(hocket, "critic", "hello")
    as_critic = {"HOCKET_AGENT": "critic"}
    (got,) = hocket("inbox", "--claim", 1, "--json", environment=as_critic, code=0).json
    assert got["id"] == sent
    hocket("ack", sent, code=3)
    hocket("ack", sent, environment=as_critic, code=0)
