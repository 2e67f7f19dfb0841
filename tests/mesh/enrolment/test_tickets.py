"""Tokens and the messages that their secret vouches for: what was written is read, and nothing else is."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.keys import SigningKey, key_text
from hocket.kernel.postcard import Malformed
from hocket.mesh import tickets
from hocket.mesh.tickets import PREFIX, Ticket, Welcome, parse_token, token

KEYS = st.binary(min_size=32, max_size=32)
TICKETS = st.builds(
    Ticket,
    user=KEYS,
    inviter=KEYS,
    secret=st.binary(min_size=16, max_size=16),
    expires=st.integers(0, 2**40),
    addresses=st.lists(st.text(min_size=1, max_size=40), max_size=tickets.ADDRESSES_MAX).map(tuple),
)
TICKET = Ticket(bytes(32), b"i" * 32, b"s" * 16, 1_800_000_000, ("http://192.168.1.7:7315",))
NODE = SigningKey(b"n" * 32)


@given(TICKETS)
def test_a_token_says_what_was_put_in(ticket: Ticket) -> None:
    assert parse_token(token(ticket)) == ticket


@given(TICKETS, st.data())
def test_what_copying_adds_does_no_harm(ticket: Ticket, data: st.DataObject) -> None:
    text = token(ticket)
    cut = data.draw(st.integers(0, len(text)))
    assert parse_token(f"  {text[:cut]}\n {text[cut:]}\r\n") == ticket


@given(TICKETS, st.data())
def test_a_token_that_was_cut_or_mistyped_is_noticed(ticket: Ticket, data: st.DataObject) -> None:
    text = token(ticket)
    with pytest.raises(Malformed):
        parse_token(text[: data.draw(st.integers(0, len(text) - 1))])
    place = data.draw(st.integers(len(PREFIX), len(text) - 1))
    other = data.draw(st.sampled_from("abcXYZ019-_").filter(lambda char: char != text[place]))
    with pytest.raises(Malformed):
        parse_token(text[:place] + other + text[place + 1 :])


@given(st.text(max_size=300) | st.text("hocket-1ABCabc_", max_size=200).map(lambda text: PREFIX + text))
def test_anything_else_is_no_token(text: str) -> None:
    with pytest.raises(Malformed):
        parse_token(text)


def test_a_token_is_one_short_line() -> None:
    text = token(TICKET)
    assert (
        len(text) < 180
        and text.isascii()
        and not set(text) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    )


def test_a_request_is_signed_and_vouched_for() -> None:
    asked = tickets.read_request(tickets.make_request(TICKET, NODE, "gpu"))
    assert (asked.public, asked.name) == (NODE.public, "gpu")
    key = tickets.key_of(TICKET.secret)
    assert asked.invitation == tickets.id_of(key) and asked.is_vouched_for(key)
    assert not asked.is_vouched_for(tickets.key_of(b"t" * 16))


@pytest.mark.parametrize("secret_in", ["request", "answer"])
def test_the_secret_is_never_sent(secret_in: str) -> None:
    if secret_in == "request":
        body = tickets.make_request(TICKET, NODE, None)
    else:
        body = tickets.make_answer(tickets.key_of(TICKET.secret), NODE.public, Welcome("u", (), "", 0))
    for secret in (TICKET.secret, tickets.key_of(TICKET.secret), NODE.seed):
        assert secret not in body and secret.hex().encode() not in body


@given(st.sampled_from(["invitation", "key", "name", "signature", "mac"]), st.integers(0, 10_000))
def test_a_changed_request_is_not_vouched_for(field: str, at: int) -> None:
    request = msgspec.json.decode(tickets.make_request(TICKET, NODE, "gpu"))
    text = request[field]
    place = at % len(text)
    request[field] = text[:place] + ("0" if text[place] != "0" else "1") + text[place + 1 :]
    try:
        asked = tickets.read_request(msgspec.json.encode(request))
    except Malformed:
        return
    assert not asked.is_vouched_for(tickets.key_of(TICKET.secret))


def test_another_key_cannot_use_a_seen_request() -> None:
    """Whoever listens in has the MAC of one public key, and cannot sign for it."""
    request = msgspec.json.decode(tickets.make_request(TICKET, NODE, None))
    thief = SigningKey(b"t" * 32)
    request["key"] = key_text(thief.public)
    with pytest.raises(Malformed):
        tickets.read_request(msgspec.json.encode(request))


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_other_bytes_are_neither_request_nor_answer(body: bytes) -> None:
    with pytest.raises(Malformed):
        tickets.read_request(body)
    with pytest.raises(Malformed):
        tickets.read_answer(TICKET, NODE.public, body)


def test_an_answer_is_for_one_node_by_one_who_knows_the_secret() -> None:
    welcome = Welcome("token", ("parent",), "00", 1_800_000_000_000)
    body = tickets.make_answer(tickets.key_of(TICKET.secret), NODE.public, welcome)
    assert tickets.read_answer(TICKET, NODE.public, body) == welcome
    with pytest.raises(Malformed, match="not from the node"):
        tickets.read_answer(TICKET, bytes(32), body)
    with pytest.raises(Malformed, match="not from the node"):
        tickets.read_answer(msgspec.structs.replace(TICKET, secret=b"t" * 16), NODE.public, body)
    with pytest.raises(Malformed, match="not from the node"):
        tickets.read_answer(TICKET, NODE.public, body.replace(b'"wall":18', b'"wall":19'))
