"""Who is asking: tokens good and bad, nodes known, unknown and revoked."""

from pathlib import Path

import pytest

from hocket.kernel.clock import Hlc
from hocket.kernel.frontier import AUTHORS_MAX, Frontier, frontier_text, parse_frontier
from hocket.kernel.jws import Bearer, make_bearer
from hocket.kernel.keys import SigningKey
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import (
    IngestEvidence,
)
from hocket.mesh import gate_requests, wire
from hocket.mesh.gate_requests import UsedTokens
from hocket.server.running import Server
from tests.mesh.world import Guest, Place, ask, introduced, received, revoke, run, since

# Who is asking.


@pytest.mark.req("LW-31")
def test_a_token_works_once(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        headers = b.headers(a.id)
        assert (await b.ask(a, headers=headers)).status == 200
        replayed = await b.ask(a, headers=headers)
        assert (replayed.status, replayed.body) == (401, b"")
        same_nonce = [b.headers(a.id, nonce="again") for _ in range(2)]
        assert [(await b.ask(a, headers=each)).status for each in same_nonce] == [200, 401]
        # A nonce is one node's own.
        guest = Guest(7)
        introduced(a, guest)
        assert (await ask(a, guest, changes={"nonce": "again"})).status == 200

    run(tmp_path, test)


@pytest.mark.req("LW-31")
@pytest.mark.parametrize(
    "case",
    [
        "none",
        "basic",
        "garbage",
        "two parts",
        "expired",
        "future",
        "too long",
        "another audience",
        "another key",
        "unsigned",
        "another user",
    ],
)
def test_a_bad_token_gets_nobody_in(tmp_path: Path, case: str):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        now = a.log.physical() // 1000
        good = make_bearer(b.key, str(a.id), now, "n")
        header, payload, signature = good.split(".")
        token = {
            "garbage": "Bearer garbage",
            "two parts": f"Bearer {header}.{payload}",
            "expired": f"Bearer {make_bearer(b.key, str(a.id), now - 1000, 'n', 300)}",
            "future": f"Bearer {make_bearer(b.key, str(a.id), now + 1000, 'n', 300)}",
            "too long": f"Bearer {make_bearer(b.key, str(a.id), now, 'n', 3601)}",
            "another audience": f"Bearer {make_bearer(b.key, str(b.id), now, 'n')}",
            "another key": f"Bearer {header}.{payload}.{make_bearer(a.key, str(a.id), now, 'n').split('.')[2]}",
            "unsigned": f"Bearer {header}.{payload}.",
            "another user": f"Bearer {make_bearer(SigningKey(b'z' * 32), str(a.id), now, 'n')}",
            "basic": "Basic dXNlcjpwYXNz",
        }.get(case)
        headers = b.headers(a.id)
        if token is None:
            del headers["authorization"]
        else:
            headers["authorization"] = token
        before = dict(a.gate.refusals)
        reply = await b.ask(a, headers=headers)
        assert (reply.status, reply.body) == (401, b"")
        assert sum(a.gate.refusals.values()) == sum(before.values()) + 1
        assert any("401" in notice for notice in a.notices)
        # All that can be learnt is the same, whatever was wrong.
        assert reply.headers.keys() - {"date", "content-length"} == {wire.RULES_HASH, wire.TIME, "www-authenticate"}
        assert signature

    run(tmp_path, test)


@pytest.mark.req("LW-31")
def test_a_token_from_before_the_server_started_is_no_good(tmp_path: Path):
    """What was used is forgotten with the process, so a token could be used again."""

    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        old = b.headers(a.id, now=a.log.physical() // 1000 - 5)
        assert (await b.ask(a, headers=old)).status == 401

    run(tmp_path, test)


@pytest.mark.req("LW-31")
def test_a_token_works_once_at_all_servers_of_a_home_and_after_a_restart(tmp_path: Path):
    """Also if it is dated ahead, so that it is newer than the server."""

    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        one, two = (b.headers(a.id, now=a.log.physical() // 1000 + 50) for _ in range(2))
        first, second = a.server, Server(a.services.gate())
        await second.start()
        try:
            assert (await b.ask(a, headers=one)).status == 200
            a.server = second
            assert [(await b.ask(a, headers=each)).status for each in (one, two)] == [401, 200]
            a.server = first
            assert [(await b.ask(a, headers=each)).status for each in (two, b.headers(a.id))] == [401, 200]
        finally:
            await second.stop()
        await a.stop_serving()
        a.gate = a.services.gate()
        await a.serve()
        assert [(await b.ask(a, headers=each)).status for each in (one, two, b.headers(a.id))] == [401, 401, 200]

    run(tmp_path, test)


@pytest.mark.req("LW-31")
def test_the_file_of_used_tokens_is_bounded_and_forgets_only_what_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gate_requests, "RECORDS_MAX", 10)
    one, two = UsedTokens(tmp_path), UsedTokens(tmp_path)
    sizes = []
    for second in range(200):
        token = Bearer(7, "", second, second + 20, f"nonce {second}")
        user, other = (one, two) if second % 3 else (two, one)
        assert user.use(token, second) and not other.use(token, second) and not user.use(token, second)
        sizes.append((tmp_path / "tokens.used").stat().st_size)
        if second > 15:
            before = Bearer(7, "", second - 15, second + 5, f"nonce {second - 15}")
            assert not other.use(before, second) and not UsedTokens(tmp_path).use(before, second)
    assert max(sizes[100:]) == max(sizes[:150]) < 200 * 32


@pytest.mark.req("LW-27")
def test_a_revoked_node_is_sent_away(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        cid = introduced(a, guest)
        assert (await ask(a, guest)).status == 200
        revoke(a, cid)
        for method, path in (("GET", wire.OPS), ("POST", wire.OPS), ("POST", wire.EXCHANGE), ("GET", wire.HINTS)):
            reply = await ask(a, guest, method=method, path=path, body=b"" if method == "GET" else b"\0")
            assert (reply.status, reply.body) == (403, b"")

    run(tmp_path, test, "a")


def test_a_node_whose_delegation_has_ended_is_sent_away(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest, expires=a.log.physical() // 1000 - 1)
        assert (await ask(a, guest)).status == 403

    run(tmp_path, test, "a")


def test_the_answer_says_which_node_gave_it(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        from hocket.kernel.jws import check_bearer, read_bearer

        await b.exchanges.exchange(a.address)
        reply = await b.ask(a, headers=b.headers(a.id, nonce="mine"))
        token = reply.headers[wire.NODE]
        said = read_bearer(token)
        assert (said.node, said.nonce) == (a.id, "mine")
        assert check_bearer(token, said, a.key.public, (str(b.id),), a.log.physical() // 1000) is None

    run(tmp_path, test)


def test_a_refusal_is_told_once_a_minute_and_counted_each_time(tmp_path: Path):
    async def test(a: Place) -> None:
        for _ in range(5):
            assert (await a.ask(a, "GET", "/nothing", "")).status == 404
        assert a.gate.refusals["an unknown path"] == 5
        assert len(a.notices) == 1

    run(tmp_path, test, "a")


def test_frontiers_of_many_authors_fit_the_wire(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        for count in (1_000, AUTHORS_MAX - 10):
            many: Frontier = {n: Hlc(2**41, 3, n) for n in range(2**63, 2**63 + count)}
            reply = await b.ask(a, query=since(many))
            assert reply.status == 200
            assert parse_frontier(reply.headers[wire.NEXT_FRONTIER]).keys() >= many.keys()
            assert len(frontier_text(many)) > 30 * count

    run(tmp_path, test)


def test_evidence_goes_only_to_readers_of_evidence(tmp_path: Path):
    assert IngestEvidence.__struct_fields__  # ops of other Likewise software are filtered like our own

    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest, (Capability("Evidence", "Read", {}),))
        a.submit(1)
        assert received(await ask(a, guest)) == []

    run(tmp_path, test, "a")
