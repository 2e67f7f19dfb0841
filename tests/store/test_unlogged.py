"""What a store keeps beside the log can be copied to any other store, and a store that was moved refuses writes."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import hocket
from hocket import store as stores
from hocket.errors import StoreMoved
from hocket.log import limits
from hocket.log.archives.reached import ARCHIVES
from hocket.log.copies import copy_unlogged
from hocket.log.intake import BEHIND
from hocket.log.limits import SHARED
from hocket.log.lost_past import SET_ASIDE
from hocket.log.retention import proof
from hocket.log.succession.leading import LEAD
from hocket.log.transaction import GAPS, NEWCOMER
from hocket.mesh.peer_exchange import READING
from hocket.mesh.peers import ADDRESS, BREAKERS, TRUST
from hocket.mesh.succession.witness import WITNESS
from hocket.node.home_store import HOME
from hocket.store import LateOp, OverQuota, Refusal, Store, TokenRow
from hocket.store.checkpoint_rows import CheckpointRow, CheckpointState
from hocket.store.local import KEPT, OF_NODE
from hocket.store.witness_rows import WitnessedRow
from tests.stores import STORES, with_macs

NODE = bytes(range(8))


@pytest.fixture(params=STORES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORES[request.param].address(tmp_path)


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    with closing(with_macs(stores.open(address, create=True))) as opened:
        yield opened


def furnish(store: Store) -> None:
    with store.write() as session:
        session.set_meta("a", b"\0\1")
        session.refuse([Refusal(bytes([n] * 16), NODE, n, 5) for n in (2, 1, 3)])
        session.hold(b"i" * 16, 7, b"body", NODE)
        session.hold_late(LateOp(b"l" * 16, NODE, b"h" * 20, 9, b"body"))
        session.put_over_quota(OverQuota(NODE, 3, 4))
        session.set_rate("acme.render", 11)
        session.put_checkpoint(CheckpointRow(NODE, CheckpointState.TREE, 0, 1, b"h" * 20, b"p" * 32, b"note", 12))
        session.put_token(TokenRow("program", "id", b"hash", b"[]", 1, None))


@pytest.mark.req("VX-18")
def test_every_table_is_copied_to_every_kind_of_store(store: Store) -> None:
    furnish(store)
    for kind in STORES.values():
        with closing(kind.new()) as other, store.read() as source, other.write() as target:
            for table in KEPT:
                target.put_unlogged(table, source.unlogged(table))
            assert all(list(target.unlogged(table)) == list(source.unlogged(table)) for table in KEPT)
            assert [each.reason for each in target.refusals(3)] == [3, 1, 2]
            assert target.rate("acme.render") == 11 and target.held_of(NODE).ops == 1


@pytest.mark.req("VX-18")
def test_a_node_takes_its_own_settings_along_and_nobody_elses(store: Store) -> None:
    with store.write() as session:
        session.set_meta("a", b"1")
        for key in OF_NODE:
            session.set_node_meta(NODE, key, key.encode())
    for kind in STORES.values():
        with closing(kind.new()) as other, store.read() as source, other.write() as target:
            copy_unlogged(source, target, int.from_bytes(NODE, "big"), {"mark": b"2"})
            assert {key: target.node_meta(NODE, key) for key in OF_NODE} == {key: key.encode() for key in OF_NODE}
            assert target.meta("a") == b"1" and target.meta("mark") == b"2"


@pytest.mark.req("VX-18")
def test_every_setting_of_a_node_is_known() -> None:
    """A setting that is missing in the list would be lost when a log moves to a store that nodes share."""
    source = Path(hocket.__file__).parent
    used = {
        name
        for file in source.rglob("*.py")
        for name in re.findall(r"(?:node_meta\([^\n]*?, |own_meta\()([A-Z_]+)[,)]", file.read_text())
    }
    values = {ADDRESS, BEHIND, BREAKERS, GAPS, HOME, NEWCOMER, READING, SET_ASIDE, SHARED, TRUST, limits._DELIVERED}
    values |= {limits._OFFSETS, ARCHIVES, proof._TAKEN, LEAD, WITNESS}
    names = {"ADDRESS", "BEHIND", "BREAKERS", "HOME", "READING", "SET_ASIDE", "SHARED", "TRUST", "_DELIVERED"}
    names |= {"LEAD", "WITNESS"}
    assert used == names | {"_OFFSETS", "ARCHIVES", "_TAKEN", "GAPS", "NEWCOMER"} and values == {*OF_NODE}


@pytest.mark.req("VX-18")
def test_a_moved_store_refuses_every_write_also_of_those_who_have_it_open(address: str, store: Store) -> None:
    furnish(store)
    with closing(stores.open(address)) as before, before.read():
        with store.write() as session:
            session.mark_moved("somewhere's else")
        for each in (store, before):
            with pytest.raises(StoreMoved, match="was moved to somewhere's else and takes no more changes"):
                with each.write() as session:
                    session.set_meta("a", b"2")
    with closing(stores.open(address)) as after:
        with pytest.raises(StoreMoved):
            with after.write() as session:
                session.put_head(session.head()._replace(seq=1))
        with after.read() as session:
            assert session.meta("a") == b"\0\1" and session.head().seq == 0


def test_what_a_named_node_keeps_for_the_coordinator_is_read_in_order_and_dropped_up_to_a_time(store: Store) -> None:
    rows = [WitnessedRow(bytes([author] * 8), bytes([at] * 20), bytes([at])) for author in (1, 2) for at in (1, 2, 3)]
    with store.write() as session:
        session.put_witnessed(reversed(rows))
        session.put_witnessed(rows[:1])
    with store.write() as session:
        assert session.witnessed((b"", b""), 10) == rows
        assert session.witnessed((rows[1].author, rows[1].hlc), 2) == rows[2:4]
        assert session.witnessed_of(rows[0].author, rows[0].hlc) == rows[1:3]
        assert session.last_witnessed(rows[0].author) == rows[2]
        session.drop_witnessed(rows[0].author, rows[1].hlc)
        assert session.witnessed((b"", b""), 10) == rows[2:]
    with store.read() as session:
        assert session.last_witnessed(b"\x09" * 8) is None
