"""Jobs are found by the arguments that their kind names as its index, over every store, and by nothing else."""

import io

import pytest

from hocket.errors import Usage
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.drafts import policy
from hocket.families.jobs.index import JobArgument, argument_of, indexed_arguments
from hocket.families.jobs.requests import Draft
from hocket.families.kinds.facts import DefineKind
from hocket.kernel.ops import Op
from hocket.kernel.policy import Policy, encode_policy
from hocket.log import Log
from hocket.log.copies import import_ops
from hocket.log.rebuild import rebuild
from hocket.store import JobFilter
from tests.log.roster.world import NOW, new_log
from tests.log.test_archive import exported
from tests.log.test_audit import fill
from tests.stores import raw


@pytest.fixture
def log() -> Log:
    log = new_log()
    made = log.run(lambda tx: tx.author(DefineKind("acme.", encode_policy(Policy(index=("frame", "camera.name"))))))
    assert isinstance(made, Op)
    return log


def submit(log: Log, kind: str, *payloads: bytes, **policy: object) -> list[bytes]:
    drafts = [Draft(kind, each, Policy(**policy)) for each in payloads]  # type: ignore[arg-type]
    return [job.job_id for job in log.run(lambda tx: jobs.submit(tx, drafts))]


def found(log: Log, path: str, value: str) -> list[bytes]:
    log.settle()
    with log.store.read() as session:
        entries = session.jobs(JobFilter(argument=(path, value), newest_first=False), 100)
    return sorted(each.job.id for each in entries)


def test_jobs_are_found_by_what_their_payload_has_at_the_paths_of_their_kind(log: Log):
    one, two, deep = submit(
        log, "acme.render", b'{"frame": 7, "user": "x"}', b'{"frame": "7"}', b'{"camera": {"name": "a b"}}'
    )
    (other,) = submit(log, "other.kind", b'{"frame": 7}')
    assert found(log, "frame", "7") == sorted([one, two])
    assert found(log, "camera.name", "a b") == [deep]
    assert found(log, "user", "x") == [] and found(log, "frame", "07") == []
    assert raw(log.store, "SELECT count(*) FROM arguments") == [(3,)]
    assert other not in found(log, "frame", "7")


def test_a_kind_without_an_index_costs_nothing():
    log = new_log()
    submit(log, "acme.render", b'{"frame": 7}', b'{"frame": 8}')
    log.append_plain("acme.render", b'{"frame": 9}')
    log.settle()
    assert raw(log.store, "SELECT count(*) FROM arguments") == [(0,)]


def test_jobs_of_before_the_index_was_declared_are_not_found():
    log = new_log()
    submit(log, "acme.render", b'{"frame": 7}')
    log.run(lambda tx: tx.author(DefineKind("acme.render", encode_policy(Policy(index=("frame",))))))
    (after,) = submit(log, "acme.render", b'{"frame": 7}')
    assert found(log, "frame", "7") == [after]


def test_the_index_comes_out_the_same_from_the_ops(log: Log):
    submit(log, "acme.render", *(b'{"frame": %d}' % (n % 3) for n in range(9)))
    table = "SELECT * FROM arguments ORDER BY 1, 2"
    before = raw(log.store, table)
    assert len(before) == 9
    raw(log.store, "DELETE FROM arguments")
    rebuild(log.store, log.permissions_reader, NOW)
    assert raw(log.store, table) == before


def test_an_imported_log_has_the_same_index(log: Log):
    fill(log)
    (job,) = submit(log, "acme.render", b'{"frame": 7}')
    other = new_log()
    import_ops(other, io.BytesIO(exported(log)))
    assert found(other, "frame", "7") == [job]


@pytest.mark.parametrize(
    ("payload", "values"),
    [
        (b'{"a": 7}', ["7"]),
        (b'{"a": "seven \xc3\xa9"}', ["seven é"]),
        (b'{"a": 1180591620717411303424}', ["1180591620717411303424"]),
        (b'{"a": 1.5}', ["1.5"]),
        (b'{"a": true}', ["true"]),
        (b'{"a": null}', ["null"]),
        (b'{"a": ""}', [""]),
        (b'{"a": [7]}', []),
        (b'{"a": {"b": 7}}', []),
        (b'{"b": 7}', []),
        (b'{"a": "\\u0000"}', []),
        (b'{"a": "%s"}' % (b"x" * 257), []),
        (b'"sealed"', []),
        (b"\x00\xff", []),
        (b"[" * 100_000, []),
    ],
)
def test_what_is_indexed_of_a_payload(payload: bytes, values: list[str]):
    assert indexed_arguments(payload, ("a", "a")) == [JobArgument("a", each) for each in values]


@pytest.mark.parametrize("text", ["frame", "=7", "", "a" * 129 + "=7", "a=" + "x" * 257])
def test_what_is_no_argument_is_refused(text: str):
    with pytest.raises(ValueError, match="no argument"):
        argument_of(text)


def test_an_argument_is_read_up_to_its_first_sign():
    assert argument_of("a.b=c=d e") == ("a.b", "c=d e")


@pytest.mark.parametrize("path", ["", "a b", "a:b", "a=b", ".a", "a..b", "a" * 129, ".".join("abcdefghi")])
def test_a_bad_path_is_refused(path: str):
    with pytest.raises(Usage, match="bad index"):
        policy(Policy(), index=[path])
