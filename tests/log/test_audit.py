"""The log proves itself: whatever is changed in it behind its back is found, and the op is named."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from hocket.errors import StoreError
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.ids import ulid_text
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.ops import Op, encode, sign
from hocket.kernel.policy import Policy
from hocket.kernel.vocabulary import RouteKind, ScheduleJob
from hocket.log import Log
from hocket.log.audit import Audit, AuditFinding, verify
from hocket.log.sealing import link
from hocket.node.runtime import Runtime
from hocket.store import OpRow
from hocket.store import open as open_store
from tests.effort import IS_SOAK
from tests.log.roster.world import (
    INTRODUCTIONS,
    KEYS,
    NODES,
    NOW,
    READER,
    STRANGER,
    USER,
    Script,
    introduction,
    job_id,
    new_log,
    sent,
)
from tests.stores import raw

pytestmark = pytest.mark.touches("VX-07", "VX-08")

USER_DID = did_key(USER.public)


def fill(log: Log) -> Log:
    """One's own introduction, a few jobs with everything that can befall them, and others' ops among them."""
    token = introduction(READER).payload
    log.run(lambda tx: tx.author(token))
    log.admit(sent(INTRODUCTIONS))
    log.run(lambda tx: jobs.submit(tx, [jobs.Draft("k", b'{"n":1}', Policy(retries=1, priority=n)) for n in range(3)]))
    log.append_plain("k", b"{}")
    claims = log.run(lambda tx: claiming.claim(tx, 1, 3, lambda kind: 1_000)).taken
    held = [jobs.Held(claim.job.id, claim.job.claim_op or b"") for claim in claims]
    log.run(lambda tx: jobs.complete(tx, held[0], b'"done"', 5))
    log.run(lambda tx: jobs.fail(tx, held[1], "boom", "Traceback", True))
    log.run(lambda tx: tx.author(RouteKind("k", NODES[0])))
    script = Script()
    script.say(0, 1, ScheduleJob(job_id(1), "other", b"", b""))
    script.say(1, 2, RouteKind("other", None))
    log.admit(sent(script.ops))
    log.append_plain("k", b"{}")
    return log


@pytest.fixture
def log() -> Iterator[Log]:
    log = fill(new_log())
    yield log
    log.store.close()


def rows(log: Log) -> list[OpRow]:
    with log.store.read() as session:
        return session.entries_after(0, 1_000)


def sql(log: Log, statement: str, *values: object) -> None:
    raw(log.store, statement, *values)


def audit(log: Log, expected: tuple[int, bytes] | None = None) -> Audit:
    return verify(log.store, user=USER_DID, expected=expected)


def findings(log: Log) -> list[AuditFinding]:
    return audit(log).findings


def test_a_real_log_is_clean(log: Log) -> None:
    result = audit(log)
    with log.store.read() as session:
        head = session.head()
    assert result == Audit(head.seq, (head.seq, head.chain), [])
    assert head.seq == len(rows(log)) > 12


@pytest.mark.req("VX-07", "VX-08")
def test_the_chain_covers_every_whole_op(log: Log) -> None:
    chain = bytes(32)
    for row in rows(log):
        chain = link(chain, row.body)
        assert row.chain == chain
    with log.store.read() as session:
        assert session.head().chain == chain


def kinds(log: Log) -> dict[int, OpRow]:
    """One row of each variant."""
    return {row.variant: row for row in reversed(rows(log))}


@pytest.mark.slow
@pytest.mark.req("VX-08")
def test_any_flipped_byte_of_any_op_is_found_and_the_op_is_named(log: Log) -> None:
    flips, step = 0, 1 if IS_SOAK else 4
    for row in kinds(log).values():
        for place in range(random.randrange(step), len(row.body), step):
            changed = bytearray(row.body)
            changed[place] ^= 1 << place % 8
            sql(log, "UPDATE ops SET body = ? WHERE seq = ?", bytes(changed), row.seq)
            found = findings(log)
            assert found, (row.variant, place)
            assert (found[0].seq, found[0].op_id) == (row.seq, ulid_text(row.id)), (row.variant, place, found)
            flips += 1
        sql(log, "UPDATE ops SET body = ? WHERE seq = ?", row.body, row.seq)
    assert findings(log) == []
    assert flips > 1_000 // step


@pytest.mark.req("VX-08")
@pytest.mark.parametrize("column", ["hlc", "id", "chain", "key"])
def test_any_flipped_byte_of_what_is_indexed_is_found(log: Log, column: str) -> None:
    for row in rows(log):
        value = getattr(row, column)
        for place in range(0, len(value or b""), 3):
            changed = bytearray(value)
            changed[place] ^= 0x40
            sql(log, f"UPDATE ops SET {column} = ? WHERE seq = ?", bytes(changed), row.seq)
            found = findings(log)
            assert {finding.seq for finding in found} == {row.seq}
            assert column == "id" or found[0].op_id == ulid_text(row.id)
        sql(log, f"UPDATE ops SET {column} = ? WHERE seq = ?", value, row.seq)
    assert findings(log) == []


@pytest.mark.parametrize("change", ["variant = variant + 1", "key = NULL", "family = 'lock'"])
def test_a_changed_variant_or_subject_is_found(log: Log, change: str) -> None:
    row = next(row for row in rows(log) if row.job is not None)
    sql(log, f"UPDATE ops SET {change} WHERE seq = ?", row.seq)
    assert {finding.op_id for finding in findings(log)} == {ulid_text(row.id)}


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xff" * 300])
def test_an_op_that_is_no_op_any_more_is_named(log: Log, body: bytes) -> None:
    row = rows(log)[6]
    sql(log, "UPDATE ops SET body = ? WHERE seq = ?", body, row.seq)
    assert {finding.op_id for finding in findings(log)} == {ulid_text(row.id)}


@pytest.mark.req("VX-08")
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_cut_tail_is_told(log: Log, count: int) -> None:
    total = len(rows(log))
    sql(log, "DELETE FROM ops WHERE seq > ?", total - count)
    (found,) = findings(log)
    assert found.what.startswith("the tail is cut")
    assert f"{total} ops" in found.what and f"number {total - count}" in found.what


@pytest.mark.req("VX-08")
def test_an_empty_log_with_a_head_is_a_cut_tail(log: Log) -> None:
    sql(log, "DELETE FROM ops")
    (found,) = findings(log)
    assert found.what.startswith("the tail is cut")


@pytest.mark.req("VX-08")
@pytest.mark.parametrize(
    ("first", "last", "what"), [(5, 5, "op 5 is missing"), (5, 7, "ops 5 to 7 are missing"), (1, 1, "op 1 is missing")]
)
def test_a_hole_is_told(log: Log, first: int, last: int, what: str) -> None:
    after = rows(log)[last]
    sql(log, "DELETE FROM ops WHERE seq BETWEEN ? AND ?", first, last)
    found = [finding for finding in findings(log) if "missing" in finding.what]
    assert [(finding.op_id, finding.what) for finding in found] == [(ulid_text(after.id), f"{what} before this op")]


@pytest.mark.req("VX-08")
def test_two_ops_that_changed_places_are_found(log: Log) -> None:
    a, b = rows(log)[6], rows(log)[8]
    for old, new in ((a.seq, -1), (b.seq, a.seq), (-1, b.seq)):
        sql(log, "UPDATE ops SET seq = ? WHERE seq = ?", new, old)
    found = findings(log)
    assert {ulid_text(a.id), ulid_text(b.id)} <= {finding.op_id for finding in found}
    assert found[0].seq == a.seq


@pytest.mark.req("VX-08")
def test_two_ops_whose_bytes_changed_places_are_found(log: Log) -> None:
    a, b = rows(log)[6], rows(log)[8]
    sql(log, "UPDATE ops SET body = ? WHERE seq = ?", b.body, a.seq)
    sql(log, "UPDATE ops SET body = ? WHERE seq = ?", a.body, b.seq)
    assert {finding.op_id for finding in findings(log)} == {ulid_text(a.id), ulid_text(b.id)}


def append_row(log: Log, body: bytes, op: Op) -> None:
    """Puts an op behind the log as somebody would who can write to the file and knows how the chain is made."""
    with log.store.read() as session:
        head = session.head()
    chain, like = link(head.chain, body), rows(log)[-1]
    names = ", ".join(OpRow._fields[:10])
    changed = like._replace(
        seq=head.seq + 1, id=op.id, hlc=pack(op.timestamp), body=body, chain=chain, variant=25, key=None
    )
    sql(log, f"INSERT INTO ops ({names}) VALUES ({', '.join('?' * len(names.split(',')))})", *changed[:10])
    sql(log, "UPDATE head SET seq = ?, chain = ?", head.seq + 1, chain)


@pytest.mark.req("VX-08")
@pytest.mark.parametrize("forger", ["another key", "nobody known", "nobody"])
def test_a_forged_op_is_named(log: Log, forger: str) -> None:
    node = NODES[0] if forger != "nobody known" else 12345
    op = Op(job_id(90), Hlc(NOW + 5, 0, node), node, (), RouteKind("mine", node))
    body = encode(op if forger == "nobody" else sign(op, SigningKey(b"forg" * 8)))
    append_row(log, body, op)
    (found,) = findings(log)
    assert (found.op_id, found.what) == (ulid_text(op.id), "its signature does not fit its bytes and its author")


def test_an_op_put_there_by_its_own_author_is_a_good_op(log: Log) -> None:
    op = Op(job_id(90), Hlc(NOW + 5, 0, NODES[0]), NODES[0], (), RouteKind("mine", None))
    append_row(log, encode(sign(op, KEYS[0])), op)
    assert findings(log) == []


@pytest.mark.req("LW-42")
def test_an_op_under_an_id_of_its_authors_choice_is_named_where_ids_are_bound(tmp_path: Path) -> None:
    home = Runtime.init(tmp_path)
    home.submit([jobs.Draft("k", b"{}", Policy())])
    assert home.verify().findings == []
    log, key = home.log, home.home.node_key()
    op = Op(job_id(90), Hlc(2**45, 0, log.node), log.node, (), RouteKind("mine", None))
    append_row(log, encode(sign(op, key)), op)
    found, end = home.verify().findings
    assert found.op_id == ulid_text(op.id) and "does not follow from its content" in found.what
    assert "was not written with this node's key" in end.what
    home.close()


@pytest.mark.parametrize("column", ["seq", "chain"])
def test_a_changed_head_is_told(log: Log, column: str) -> None:
    sql(log, "UPDATE head SET seq = seq - 1") if column == "seq" else sql(log, "UPDATE head SET chain = ?", bytes(32))
    found = findings(log)
    assert len(found) == 1 and "head" in found[0].what


def test_anothers_users_log_proves_nothing(log: Log) -> None:
    result = verify(log.store, user=did_key(STRANGER.public))
    assert len([each for each in result.findings if each.seq is not None]) == len(rows(log))


def test_the_list_of_findings_is_bounded() -> None:
    log = new_log()
    for _ in range(150):
        log.append_plain("k", b"{}")
    assert len(verify(log.store, user=USER_DID).findings) == 100


@pytest.mark.req("VX-08")
def test_an_expected_head_must_be_on_the_log(log: Log) -> None:
    every = [(row.seq, row.chain) for row in rows(log)]
    for expected in every:
        assert audit(log, expected).findings == []
    assert audit(log, (0, bytes(32))).findings == []
    for wrong in [(every[3][0], every[4][1]), (len(every) + 1, every[-1][1]), (len(every), bytes(32))]:
        (found,) = audit(log, wrong).findings
        assert "expected head" in found.what and str(wrong[0]) in found.what


@pytest.mark.req("VX-08")
def test_a_rollback_is_found_by_the_head_that_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = fill(new_log(open_store(path, create=True)))
    log.store.close()
    shutil.copy(path, tmp_path / "old.db")
    log = new_log(open_store(path))
    log.append_plain("k", b"{}")
    kept = audit(log).head
    log.store.close()
    shutil.copy(tmp_path / "old.db", path)
    log = new_log(open_store(path))
    assert findings(log) == []
    (found,) = audit(log, kept).findings
    assert "expected head" in found.what
    # Also when the log has grown beyond it since, in another way.
    for _ in range(3):
        log.append_plain("other", b"{}")
    assert findings(log) == []
    assert len(audit(log, kept).findings) == 1
    log.store.close()


HEADER_BYTES = 100


def test_any_damage_of_the_files_header_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    fill(new_log(open_store(path, create=True))).store.close()
    good = path.read_bytes()
    for place in range(HEADER_BYTES):
        damaged = bytearray(good)
        damaged[place] ^= 0x41
        path.write_bytes(damaged)
        try:
            store = open_store(path)
        except StoreError:
            continue
        with suppress(StoreError):
            verify(store, user=USER_DID)
        store.close()


def test_a_text_that_is_no_text_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    fill(new_log(open_store(path, create=True))).store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE ops SET family = CAST(x'bb' AS TEXT)")
    with closing(open_store(path)) as store, pytest.raises(StoreError, match="is damaged"):
        verify(store, user=USER_DID)


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_file_never_passes_for_the_whole_log(tmp_path: Path, seed: int) -> None:
    """Bytes of the file itself are flipped, anywhere: either the ops are all still there and good, or it is told in a
    sentence. Nothing else comes out.
    """
    path = tmp_path / "log.db"
    log = fill(new_log(open_store(path, create=True)))
    original = [(row.seq, row.body) for row in rows(log)]
    log.store.close()
    good = path.read_bytes()
    chance = Random(seed)
    for _ in range(12):
        damaged = bytearray(good)
        for _ in range(chance.choice((1, 1, 4, 40))):
            damaged[chance.randrange(HEADER_BYTES, len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            store = open_store(path)
        except StoreError:
            continue
        try:
            result = verify(store, user=USER_DID)
            if not result.findings:
                with store.read() as session:
                    assert [(row.seq, row.body) for row in session.entries_after(0, 1_000)] == original
        except StoreError:
            pass
        finally:
            store.close()
