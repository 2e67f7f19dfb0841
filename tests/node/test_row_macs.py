"""Rows beside the log of a store that nodes share. A node that shares the store, with a right to write to every table,
gets nothing from another node: no request with a token, no membership, no answer, no release of a lock.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from hocket.api import Service, programs
from hocket.api.checks import examine
from hocket.api.programs import KeptAnswer, UnknownToken
from hocket.errors import Conflict, HocketError
from hocket.kernel.ids import content_hash, node_text
from hocket.kernel.keys import RowMac
from hocket.kernel.mesh_rules import STRICT, encode_rules
from hocket.mesh import enrolment, peers, tickets
from hocket.mesh.enrolment import InvitationTerms
from hocket.mesh.grants import parse_grants
from hocket.mesh.membership import revoke
from hocket.mesh.peers import Trust
from hocket.node.runtime import Runtime
from hocket.store import BoundRequest, Invitation, Peer, Place, TokenRow, WorkerRow
from hocket.store import open as open_store
from tests.libsql_server import new_server
from tests.node.sharers import Sharers
from tests.postgres_server import prepared, server
from tests.server.served import Served, serving
from tests.stores import raw

pytestmark = pytest.mark.touches("LW-48")

ADDRESSES: dict[str, Callable[[], str]] = {
    "postgres": lambda: server().new_database(template=prepared()),
    "libsql": lambda: new_server(has_store=True).address,
}
SECRET = "hkt_0123456789ab_" + "A" * 43
NODES = "/v1/nodes"


@pytest.fixture(params=ADDRESSES)
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sharers]:
    made = Sharers(tmp_path, ADDRESSES[request.param]())
    yield made
    made.close()


def id_of(runtime: Runtime) -> bytes:
    return runtime.log.node.to_bytes(8, "big")


def forged_token(name: str = "forged") -> TokenRow:
    grants = msgspec.json.encode(parse_grants(["all"]))
    return TokenRow(name, "0123456789ab", content_hash(SECRET.encode()), grants, 1, None)


def passed_off(nodes: Sharers, table: str, owner: str = "of_node") -> None:
    """The third node says that all of its rows in a table are the founder's."""
    raw(
        nodes.third.store,
        f"UPDATE {table} SET {owner} = ? WHERE {owner} = ?",
        *(id_of(nodes.founder), id_of(nodes.third)),
    )


def why_refused(served: Served, token: str) -> str:
    answer = served.ask("GET", NODES, token)
    assert answer.status == 401, answer
    return str(answer.json["message"])


@pytest.mark.req("LW-48")
def test_a_token_of_a_sharer_does_not_open_the_server_of_another_node(nodes: Sharers) -> None:
    with Service(nodes.third) as service, serving(nodes.founder.home.path) as served:
        token = programs.create(service, "mine", ["mesh:read"]).token
        assert programs.recognise(service, token).name == "mine"
        assert "does not know" in why_refused(served, token)
        revoke(nodes.founder.log, node_text(nodes.third.log.node))
        assert "does not know" in why_refused(served, token)


@pytest.mark.req("LW-48")
def test_a_token_that_a_sharer_inserts_for_another_node_opens_nothing(nodes: Sharers) -> None:
    with serving(nodes.founder.home.path) as served:
        with nodes.third.store.write() as session:
            session.put_token(forged_token())
        assert "does not know" in why_refused(served, SECRET)
        passed_off(nodes, "tokens")
        assert "does not know" in why_refused(served, SECRET)
        with Service(nodes.founder) as service:
            assert programs.listing(service) == []
            good = programs.create(service, "good", ["mesh:read"]).token
        assert served.ask("GET", NODES, good).status == 200


@pytest.mark.req("LW-48")
@pytest.mark.parametrize("column", ["grants", "expires", "hash", "name", "made"])
def test_a_token_that_a_sharer_has_altered_is_no_longer_one(nodes: Sharers, column: str) -> None:
    with Service(nodes.founder) as service:
        token = programs.create(service, "narrow", ["mesh:read"], 60_000).token
        assert programs.recognise(service, token).may("Mesh", "Read")
        known = f"{token[:17]}{'A' * 43}"
        altered = {
            "grants": msgspec.json.encode(parse_grants(["all"])),
            "expires": None,
            "hash": content_hash(known.encode()),
            "name": "all",
            "made": 1,
        }
        raw(nodes.third.store, f"UPDATE tokens SET {column} = ?", altered[column])
        for each in (token, known):
            with pytest.raises(UnknownToken):
                programs.recognise(service, each)


@pytest.mark.req("LW-48")
def test_the_mac_of_one_row_is_not_that_of_another(nodes: Sharers) -> None:
    """Nor that of a row of another table, or of another node."""
    with Service(nodes.founder) as service:
        for name in ("one", "two"):
            programs.create(service, name, ["mesh:read"])
        (macs,) = raw(nodes.third.store, "SELECT min(name), max(mac) FROM tokens WHERE name = 'one'")
        raw(nodes.third.store, "UPDATE tokens SET mac = ? WHERE name = 'two'", macs[1])
        assert [each.name for each in programs.listing(service)] == ["one"]


@pytest.mark.req("LW-48")
def test_an_invitation_that_a_sharer_inserts_lets_nobody_in(nodes: Sharers) -> None:
    token = nodes.invite("fourth")
    ticket = enrolment.parse(token)
    with nodes.founder.store.read() as session:
        (kept,) = [each for each in session.invitations() if each.name == "fourth"]
    enrolment.cancel(nodes.founder.log, "fourth")
    wide = msgspec.json.encode(InvitationTerms(parse_grants(["all"]), None))
    with nodes.third.store.write() as session:
        session.put_invitation(Invitation(tickets.key_of(ticket.secret), "mallory", wide, kept.expires, None, 1))
    raw(nodes.third.store, "DELETE FROM invitations WHERE name = 'fourth'")
    passed_off(nodes, "invitations")
    with pytest.raises(HocketError, match="does not know this invitation"):
        nodes.join("fourth", token)


@pytest.mark.req("LW-48")
def test_an_invitation_that_a_sharer_has_altered_lets_nobody_in(nodes: Sharers) -> None:
    token = nodes.invite("fourth", ["job:read"])
    wide = msgspec.json.encode(InvitationTerms(parse_grants(["all"]), None))
    raw(nodes.third.store, "UPDATE invitations SET grants = ? WHERE name = 'fourth'", wide)
    with pytest.raises(HocketError, match="does not know this invitation"):
        nodes.join("fourth", token)


@pytest.mark.req("LW-48")
def test_a_sharer_does_not_read_what_an_open_invitation_is_used_with(nodes: Sharers) -> None:
    token = nodes.invite("fourth")
    key = tickets.key_of(enrolment.parse(token).secret)
    with nodes.founder.store.read() as session:
        found = session.invitation(key)
        assert found is not None and (found.name, found.secret_hash) == ("fourth", key)
    assert not any(key in value for row in kept_rows(nodes, "invitations") for value in row if isinstance(value, bytes))
    nodes.join("fourth", token).close()


def kept_rows(nodes: Sharers, table: str) -> list[tuple[object, ...]]:
    return raw(nodes.third.store, f"SELECT * FROM {table}")


def put_back(nodes: Sharers, table: str, rows: list[tuple[object, ...]]) -> None:
    """The third node makes a table as it was before."""
    raw(nodes.third.store, f"DELETE FROM {table}")
    for row in rows:
        raw(nodes.third.store, f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", *row)


@pytest.mark.req("LW-48")
def test_a_revoked_token_is_not_one_again_when_a_sharer_puts_its_row_back(nodes: Sharers) -> None:
    with Service(nodes.founder) as service:
        token = programs.create(service, "ci", ["mesh:read"]).token
        before = kept_rows(nodes, "tokens")
        with serving(nodes.founder.home.path) as served:
            assert served.ask("GET", NODES, token).status == 200
            programs.revoke(service, "ci")
            assert "is revoked" in why_refused(served, token)
            put_back(nodes, "tokens", before)
            assert "does not know" in why_refused(served, token)
        assert programs.listing(service) == []


@pytest.mark.req("LW-48")
def test_an_invitation_that_was_used_or_cancelled_is_not_open_again_when_a_sharer_puts_its_row_back(
    nodes: Sharers,
) -> None:
    used, cancelled = nodes.invite("fourth"), nodes.invite("fifth")
    before = kept_rows(nodes, "invitations")
    nodes.join("fourth", used).close()
    enrolment.cancel(nodes.founder.log, "fifth")
    revoke(nodes.founder.log, "fourth")
    put_back(nodes, "invitations", before)
    for name, token in (("sixth", used), ("fifth", cancelled)):
        with pytest.raises(HocketError, match="does not know this invitation"):
            nodes.join(name, token)


@pytest.mark.req("LW-48")
def test_an_answer_that_a_sharer_has_altered_is_not_given_again(nodes: Sharers) -> None:
    with Service(nodes.founder) as service:
        assert programs.KeyedRequest(service, "ci", "4711", b"request").begin() is None
        programs.KeyedRequest(service, "ci", "4711", b"request").keep(KeptAnswer(200, b"fence 1"))
        assert programs.KeyedRequest(service, "ci", "4711", b"request").begin() == KeptAnswer(200, b"fence 1")
        raw(nodes.third.store, "UPDATE answers SET body = ?", b"fence 2")
        assert programs.KeyedRequest(service, "ci", "4711", b"request").begin() is None
    with Service(nodes.third) as service:
        assert programs.KeyedRequest(service, "ci", "4711", b"request").begin() is None, (
            "each node has answers of its own"
        )


@pytest.mark.req("LW-48")
def test_a_node_exchanges_with_no_peer_of_another(nodes: Sharers) -> None:
    with nodes.third.store.write() as session:
        peers.add(session, "http://mallory:1", 1, None, Trust(pin="ab" * 32))
    with nodes.founder.store.read() as session:
        assert session.peers() == [] and peers.trusts(session) == {}
    passed_off(nodes, "peers")
    with nodes.founder.store.write() as session:
        assert session.peers() == []
        peers.add(session, "http://friend:1", 1, None, Trust(pin="cd" * 32))
    raw(nodes.third.store, "UPDATE peers SET address = 'http://mallory:2' WHERE address = 'http://friend:1'")
    name = f"trust {id_of(nodes.founder).hex()}"
    ((kept,),) = raw(nodes.third.store, "SELECT value FROM meta WHERE key = ?", name)
    assert isinstance(kept, bytes)
    raw(nodes.third.store, "UPDATE meta SET value = ? WHERE key = ?", kept.replace(b"cdcd", b"abab"), name)
    with nodes.founder.store.read() as session:
        assert session.peers() == [] and peers.trusts(session) == {}


@pytest.mark.req("LW-48")
def test_a_node_releases_no_lock_and_declares_no_worker_dead_for_a_row_of_another(nodes: Sharers) -> None:
    place = Place("host", "boot", "", "locks")
    with nodes.third.store.write() as session:
        session.put_lock_request(BoundRequest(b"o" * 16, id_of(nodes.third), "", "", 2**40, place))
        session.put_worker(WorkerRow(0, "../../node", 1, 1, id_of(nodes.third), 1, place))
    passed_off(nodes, "lock_requests", "node")
    passed_off(nodes, "workers", "node")
    with nodes.founder.store.read() as session:
        assert session.lock_requests(id_of(nodes.founder)) == [] and session.workers() == []


@pytest.mark.req("LW-48")
def test_an_op_that_a_sharer_says_the_node_has_held_is_not_admitted(nodes: Sharers) -> None:
    """The node would vouch for it, as for its operator's: also for one of a revoked author from before."""
    with nodes.third.store.write() as session:
        session.hold(b"i" * 16, 1, b"body", id_of(nodes.third))
    passed_off(nodes, "held")
    with nodes.founder.store.read() as session:
        assert session.due(2**40, 10) == []


@pytest.mark.req("LW-48")
def test_a_node_judges_by_no_rules_that_a_sharer_has_changed(nodes: Sharers) -> None:
    token = nodes.invite("fourth")
    ((kept,),) = raw(nodes.third.store, "SELECT value FROM meta WHERE key = 'rules'")
    raw(nodes.third.store, "UPDATE meta SET value = ? WHERE key = 'rules'", encode_rules(STRICT))
    with pytest.raises(Conflict, match="rules in the store are not those of this node any more"):
        Runtime.open(nodes.second.home.path)
    with pytest.raises(Conflict, match="not those of the inviting node"):
        nodes.join("fourth", token)
    raw(nodes.third.store, "UPDATE meta SET value = ? WHERE key = 'rules'", kept)
    Runtime.open(nodes.second.home.path).close()
    nodes.join("fourth", token).close()


@pytest.mark.req("LW-48")
def test_rules_that_the_owner_has_changed_are_accepted_by_each_node(nodes: Sharers) -> None:
    rules = nodes.founder.log.rules
    assert rules.extensions is not None
    nodes.founder.set_rules(replace(rules, extensions=replace(rules.extensions, skew_ms=5_000)))
    Runtime.open(nodes.founder.home.path).close()
    with pytest.raises(Conflict, match="if the owner has changed them, remove"):
        Runtime.open(nodes.second.home.path)
    (nodes.second.home.path / "rules").unlink()
    with Runtime.open(nodes.second.home.path) as opened:
        assert opened.log.rules.extensions is not None and opened.log.rules.extensions.skew_ms == 5_000


@pytest.mark.req("LW-48")
def test_doctor_names_rows_that_the_node_has_not_written(nodes: Sharers) -> None:
    assert [each.verdict for each in examine(nodes.founder.home) if each.check == "rows beside the log"] == ["ok"]
    with nodes.third.store.write() as session:
        session.put_token(forged_token())
    assert [each.verdict for each in examine(nodes.founder.home) if each.check == "rows beside the log"] == ["ok"]
    passed_off(nodes, "tokens")
    (found,) = [each for each in examine(nodes.founder.home) if each.check == "rows beside the log"]
    assert found.verdict == "bad" and "1 row of tokens (forged) that this node has not written" in found.says


@pytest.mark.req("LW-48")
def test_rows_from_before_macs_are_made_anew_in_a_store_that_nodes_share(nodes: Sharers) -> None:
    with nodes.founder.store.write() as session:
        session.put_token(forged_token("ci"))
    raw(nodes.third.store, "UPDATE tokens SET of_node = ?, mac = ?", b"", b"")
    with Service(nodes.founder) as service:
        with pytest.raises(UnknownToken):
            programs.recognise(service, SECRET)
        (found,) = [each for each in examine(nodes.founder.home) if each.check == "rows beside the log"]
        assert found.verdict == "warn" and "make the tokens anew with `hocket token create`" in found.says
        assert programs.recognise(service, programs.create(service, "ci", ["mesh:read"]).token).name == "ci"


@pytest.mark.req("LW-48")
def test_a_store_that_does_not_know_its_node_gives_nothing(nodes: Sharers) -> None:
    with closing(open_store(nodes.address)) as unknown, unknown.read() as session:
        with pytest.raises(RuntimeError, match="which node uses it"):
            session.tokens()
        unknown.mac_rows(RowMac(nodes.founder.home.node_key()))
        assert session.tokens() == [] == session.peers()


@pytest.mark.req("LW-48")
def test_a_peer_is_known_as_its_node_has_written_it(nodes: Sharers) -> None:
    peer = Peer("http://a:1", b"n" * 8, b"\0", "ok", "", 5, 1)
    with nodes.founder.store.write() as session:
        session.put_peer(peer)
        session.put_peer(peer._replace(seen=6))
    with nodes.founder.store.read() as session:
        assert session.peers() == [peer._replace(seen=6)]
