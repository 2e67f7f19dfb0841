"""A log as a file: out of one home and into another of the same user, whole, once or twice; and files that are none."""

import io
from pathlib import Path

import pytest
from msgspec.structs import replace

from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.keys import did_key
from hocket.kernel.ops import decode, encode, encode_sequence
from hocket.kernel.policy import Policy
from hocket.log import Log
from hocket.log import copies as archives
from hocket.log.audit import verify
from hocket.log.copies import export_ops, import_ops
from hocket.log.rebuild import roster_digest
from hocket.node.runtime import Runtime
from tests.log.roster.world import new_log
from tests.log.test_admit import with_variant
from tests.log.test_audit import fill

pytestmark = pytest.mark.touches("LW-32", "LW-34")


def exported(log: Log) -> bytes:
    out = io.BytesIO()
    export_ops(log, out)
    return out.getvalue()


def state(log: Log) -> object:
    log.settle()
    with log.store.read() as session:
        return roster_digest(session), {
            row.id: (row.reason, log.signed(row.body)) for row in session.ops_after(0, 10_000)
        }


@pytest.fixture
def source() -> Log:
    return fill(new_log())


@pytest.mark.req("LW-32")
def test_a_log_comes_out_the_same_in_another_home(source: Log) -> None:
    data = exported(source)
    target = new_log()
    admission = import_ops(target, io.BytesIO(data))
    assert admission[:3] == (len(state(source)[1]), 0, {})  # type: ignore[index]
    assert state(target) == state(source)
    assert verify(target.store, user=target.user).findings == []
    assert exported(target) != b"" and len(exported(target)) == len(data)


@pytest.mark.req("LW-32")
def test_a_second_import_changes_nothing(source: Log) -> None:
    data = exported(source)
    target = new_log()
    import_ops(target, io.BytesIO(data))
    before, proof = state(target), verify(target.store, user=target.user).head
    admission = import_ops(target, io.BytesIO(data))
    assert (admission.appended, admission.refused) == (0, {})
    assert admission.duplicated == len(before[1])  # type: ignore[index]
    assert (state(target), verify(target.store, user=target.user).head) == (before, proof)


@pytest.mark.req("LW-32")
def test_into_a_home_that_has_a_log_of_its_own(tmp_path: Path) -> None:
    with Runtime.init(tmp_path / "one") as one:
        (made,) = one.submit([Draft("k", b"{}", Policy(priority=2))])
        one.submit([Draft("k", b"{}", Policy())])
        with Runtime.init(tmp_path / "two", user_key=tmp_path / "one" / "user.key") as two:
            two.submit([Draft("other", b"{}", Policy(open=True))])
            claim = two.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000)).taken[0]
            two.log.run(lambda tx: jobs.complete(tx, jobs.Held(claim.job.id, claim.job.claim_op or b""), None, 1))
            for runtime, data in ((two, exported(one.log)), (one, exported(two.log)), (two, exported(one.log))):
                import_ops(runtime.log, io.BytesIO(data))
            assert state(one.log) == state(two.log)
            assert two.show(ulid_text(made.job_id))["kind"] == "k"
            assert one.verify().findings == two.verify().findings == []
            two.submit([Draft("after", b"{}", Policy())])
            assert two.verify().findings == []


def test_the_log_of_another_user_is_refused_whole(source: Log) -> None:
    target = new_log()
    target.user = did_key(b"another user's public key 012345")
    admission = import_ops(target, io.BytesIO(exported(source)))
    assert (admission.appended, admission.duplicated) == (0, 0)
    assert set(admission.refused) == {Reason.FOREIGN_USER, Reason.UNKNOWN_NODE}
    assert admission.rejected == len(state(source)[1])  # type: ignore[index]
    with target.store.read() as session:
        assert session.head().seq == 0
        assert session.refusal_counts() == admission.refused


def test_a_file_cut_anywhere_gives_what_is_before_the_cut(source: Log) -> None:
    data = exported(source)
    bodies = [body for _, body in state(source)[1].values()]  # type: ignore[index]
    places = {1, 2, 17, len(data) - 1, len(data) // 2, len(data) // 3}
    for place in sorted(places):
        target = new_log()
        admission = import_ops(target, io.BytesIO(data[:place]))
        whole, end = 0, 1
        for body in bodies:
            end += len(body)
            whole += end <= place
        assert admission[:3] == (whole, 0, {Reason.MALFORMED: 1})
        assert verify(target.store, user=target.user).findings == []
        # And the rest comes with the whole file.
        assert import_ops(target, io.BytesIO(data)).appended == len(bodies) - whole
        assert state(target) == state(source)


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 500, b"\x05", b"not a log at all\n" * 10, b"\x80" * 20, b"\x01" + bytes(200)]
)
def test_a_file_that_is_no_log_is_refused_and_nothing_changes(source: Log, data: bytes) -> None:
    before = state(source)
    admission = import_ops(source, io.BytesIO(data))
    assert admission[:3] == (0, 0, {Reason.MALFORMED: 1})
    assert state(source) == before
    assert verify(source.store, user=source.user).findings == []


def test_an_empty_log_is_a_log() -> None:
    target = new_log()
    assert exported(target) == b"\x00"
    assert import_ops(target, io.BytesIO(b"\x00"))[:3] == (0, 0, {})
    assert import_ops(target, io.BytesIO(b"\x00\x00"))[:3] == (0, 0, {Reason.MALFORMED: 1})


@pytest.mark.req("LW-34")
def test_an_unknown_variant_hides_what_is_behind_it_and_harms_nothing_before_it(source: Log) -> None:
    bodies = [body for _, body in state(source)[1].values()]  # type: ignore[index]
    strange = with_variant(bodies[4], 4_000)
    target = new_log()
    # The signature behind it looks like the end of an op, unless no op has one.
    unsigned = [encode(replace(decode(body), signature=None)) for body in bodies[4:]]
    admission = import_ops(target, io.BytesIO(encode_sequence([*bodies[:4], strange, *unsigned])))
    assert admission[:3] == (4, 0, {Reason.UNKNOWN_VARIANT: 1}) and admission.unread == len(unsigned)
    with target.store.read() as session:
        (refusal,) = [each for each in session.refusals(9) if each.reason != Reason.TWIN]
        assert refusal.op_id == decode(bodies[4]).id


def test_a_log_larger_than_what_is_read_at_once(monkeypatch: pytest.MonkeyPatch, source: Log) -> None:
    for _ in range(40):
        source.append_plain("k", b'{"x":"' + b"y" * 500 + b'"}')
    data = exported(source)
    monkeypatch.setattr(archives, "CHUNK", 1_500)
    monkeypatch.setattr(archives, "MAX_OP_BYTES", 1_500)
    monkeypatch.setattr(archives, "BATCH", 7)
    assert exported(source) == data
    target = new_log()
    assert import_ops(target, io.BytesIO(data)).refused == {}
    assert state(target) == state(source)
