"""Jobs, claims and results in git, on every kind of plane."""

import subprocess
from pathlib import Path

import pytest

from hocket.errors import Conflict, Failed, Usage
from hocket.extensions.git import git_jobs, holding
from hocket.extensions.git.claim_commits import read_claim
from hocket.extensions.git.holding import ClaimWatch
from hocket.extensions.git.objects import FILE, Object, TreeEntry, commit_data, read_commit, tree_data
from hocket.extensions.git.plane import Change, Plane
from hocket.extensions.git.trailers import BadTrailer, read_trailers, time_of, time_text
from hocket.kernel.ids import content_hash
from hocket.kernel.retrying import RACE_RETRIES
from tests.extensions.git.hands import CONTENTS, NOW_MS, finished, manifest, proof, seen, submitted, worker
from tests.extensions.git.places import Place

EXAMPLE = (
    b'command: ["/usr/bin/env", "bash", "-lc"]\nargs: ["echo", "hello"]\ntimeout: 30\nenv: { GREETING: "hello" }\n'
)


def states(plane: Plane) -> list[str]:
    return [job.state for job in git_jobs.listing(plane)]


@pytest.mark.req("GT-01", "GT-02", "GT-08", "GT-09", "GT-11")
def test_a_job_goes_all_the_way(anywhere: Place):
    plane, me = anywhere.open(), worker()
    made = git_jobs.submit(plane, EXAMPLE, NOW_MS)
    assert made.is_new and not git_jobs.submit(plane, EXAMPLE, NOW_MS + 60_000).is_new
    assert states(plane) == ["pending"]
    assert anywhere.git("show", f"{made.commit}:job.yaml").encode() == EXAMPLE

    held = holding.claim(plane, seen(plane, made.content_id), me, NOW_MS)
    assert held is not None and held.claim.fence == 1
    assert states(plane) == ["claimed"]
    running = holding.run(plane, held, me, NOW_MS + 1)
    assert running is not None
    assert states(plane) == ["running"]
    assert holding.renew(plane, held, me, NOW_MS + 2) is None, "that was the claim before"
    renewed = holding.renew(plane, running, me, NOW_MS + 2)
    assert renewed is not None and renewed.claim.state == "running"
    result = holding.finish(plane, renewed, me, proof(renewed, me), CONTENTS, NOW_MS + 3)
    assert result is not None
    job = seen(plane, made.content_id)
    assert job.state == "succeeded" and job.refs.result == result
    assert set(plane.refs()) == {
        job.refs.name(part) for part in ("job", "claim", "result", f"claims/{me.key.public.hex()}")
    }
    assert anywhere.git("rev-parse", f"{result}^@").split() == [made.commit]
    assert holding.renew(plane, renewed, me, NOW_MS + 4) is None
    anywhere.git("fsck", "--strict")


@pytest.mark.req("GT-09")
def test_git_reads_our_trailers(here: Place):
    plane = here.open()
    job = finished(plane)
    assert job.refs.job and job.refs.result and job.refs.claim
    wanted = {
        job.refs.job: ["Job-Id"],
        job.refs.result: ["Job-Id", "Proof-Of-Execution", "Worker-Id", "Attest-Program", "Attest-Sig", "State"],
        job.refs.claim: [
            *("Job-Id", "Worker-Id", "Process", "Fence", "Lease", "Claimed-At", "State", "Nonce", "Result"),
            "Claim-Sig",
        ],
    }
    for commit, names in wanted.items():
        message = here.git("log", "-1", "--format=%B", commit)
        parsed = here.git("interpret-trailers", "--parse", given=message).splitlines()
        assert [line.split(": ")[0] for line in parsed] == names
        assert dict(line.split(": ", 1) for line in parsed) == read_trailers(
            message.strip("\n").encode() + b"\n", frozenset(names), frozenset(names)
        )
    assert here.git("log", "-1", "--format=%(trailers:key=Job-Id,valueonly)", job.refs.result).strip() == (
        f"blake3:{job.refs.content_id.hex()}"
    )
    assert here.git("show", f"{job.refs.result}:blobs/{content_hash(b'made' + bytes([10])).hex()}") == "made\n"


@pytest.mark.req("GT-04", "GT-05")
def test_of_two_workers_one_claims(anywhere: Place):
    plane, other = anywhere.open(), anywhere.open()
    job = submitted(plane)
    assert holding.claim(plane, job, worker("one"), NOW_MS) is not None
    assert holding.claim(other, job, worker("two"), NOW_MS) is None
    assert set(seen(plane, job.refs.content_id).refs.claims) == {worker("one").key.public}


def test_two_processes_that_say_the_same_do_not_both_win(anywhere: Place):
    """Without a nonce both would make one commit, and git would tell both that it is there."""
    plane, other, me = anywhere.open(), anywhere.open(), worker()
    job = submitted(plane)
    assert holding.claim(plane, job, me, NOW_MS) is not None
    assert holding.claim(other, job, me, NOW_MS) is None


@pytest.mark.req("GT-11")
def test_a_claim_is_taken_over_with_a_higher_fence(anywhere: Place):
    plane, one, two = anywhere.open(), worker("one"), worker("two")
    held = holding.claim(plane, submitted(plane), one, NOW_MS)
    assert held is not None
    over = holding.claim(plane, seen(plane, held.refs.content_id), two, NOW_MS + 1)
    assert over is not None and over.claim.fence == 2
    assert read_commit(anywhere.git("cat-file", "commit", over.commit).encode()).parents == (held.commit,)
    # The one that was displaced can do nothing any more.
    assert holding.run(plane, held, one, NOW_MS + 2) is None
    assert holding.finish(plane, held, one, proof(held, one), CONTENTS, NOW_MS + 3) is None
    assert seen(plane, held.refs.content_id).state == "claimed"
    # And back: its own ref is there already.
    again = holding.claim(plane, seen(plane, held.refs.content_id), one, NOW_MS + 4)
    assert again is not None and again.claim.fence == 3
    assert holding.finish(plane, again, one, proof(again, one), CONTENTS, NOW_MS + 5)


def test_aborting(anywhere: Place):
    plane, me, them = anywhere.open(), worker(), worker("them")
    job = submitted(plane)
    holding.abort(plane, job.refs.content_id, them, NOW_MS, "no longer\nneeded – really")
    job = seen(plane, job.refs.content_id)
    assert job.state == "aborted" and job.claim is not None and job.claim.reason == "no longer needed ? really"
    assert holding.claim(plane, job, me, NOW_MS) is None
    with pytest.raises(Conflict, match="already ended: aborted"):
        holding.abort(plane, job.refs.content_id, them, NOW_MS)

    held = holding.claim(plane, submitted(plane, 2), me, NOW_MS)
    assert held is not None
    holding.abort(plane, held.refs.content_id, them, NOW_MS)
    assert holding.renew(plane, held, me, NOW_MS + 1) is None
    assert holding.finish(plane, held, me, proof(held, me), CONTENTS, NOW_MS + 2) is None
    assert seen(plane, held.refs.content_id).state == "aborted"
    with pytest.raises(Usage, match="no job"):
        holding.abort(plane, bytes(32), them, NOW_MS)


def test_clearing_away(anywhere: Place):
    plane, me = anywhere.open(), worker()
    kept = [submitted(plane, number).refs.content_id for number in range(2)]
    gone = [finished(plane, 3).refs.content_id, finished(plane, 4, exit_code=1).refs.content_id]
    aborted = submitted(plane, 5).refs.content_id
    holding.abort(plane, aborted, me, NOW_MS)
    assert holding.claim(plane, seen(plane, kept[0]), me, NOW_MS) is not None
    assert git_jobs.clear(plane, NOW_MS) == []
    assert set(git_jobs.clear(plane, NOW_MS + 60_000)) == {*gone, aborted}
    assert {job.refs.content_id for job in git_jobs.listing(plane)} == set(kept)
    assert git_jobs.submit(plane, manifest(3), NOW_MS).is_new


def test_a_failed_run_is_a_result(here: Place):
    assert finished(here.open(), exit_code=3).state == "failed"


# --- submitting


def test_inputs_travel_along(anywhere: Place):
    data = b"an input\n"
    hash = content_hash(data)
    text = (
        b'{"command":["cat"],"timeout":1,"inputs":[{"kind":"blobptr","algo":"blake3","hash":"%s"}]}'
        % hash.hex().encode()
    )
    made = git_jobs.submit(anywhere.open(), text, NOW_MS, [data])
    anywhere.cache = anywhere.cache.with_name("another")
    plane = anywhere.open()
    order = git_jobs.order_of(plane, seen(plane, made.content_id).refs)
    assert order.manifest.command == ("cat",)
    assert {hash: git_jobs.read_input(plane, hash, oid) for hash, oid in order.inputs.items()} == {hash: data}
    with pytest.raises(Failed, match="does not match its hash"):
        git_jobs.read_input(plane, bytes(32), order.inputs[hash])


@pytest.mark.req("GT-03")
def test_bad_submissions(here: Place, monkeypatch: pytest.MonkeyPatch):
    plane = here.open()
    with pytest.raises(Usage, match="timeout"):
        git_jobs.submit(plane, b"command: [x]\ntimeout: -1\n", NOW_MS)
    with pytest.raises(Usage, match="not among the manifest's inputs"):
        git_jobs.submit(plane, manifest(), NOW_MS, [b"surprise"])
    hash = content_hash(b"abc").hex()
    text = f'{{"command":["cat"],"timeout":1,"inputs":[{{"kind":"blobptr","algo":"blake3","hash":"{hash}","size":4}}]}}'
    with pytest.raises(Usage, match="has 3 bytes, but the manifest says 4"):
        git_jobs.submit(plane, text.encode(), NOW_MS, [b"abc"])
    monkeypatch.setattr(git_jobs, "INPUTS_BYTES_MAX", 2)
    with pytest.raises(Usage, match="at most 2 bytes"):
        git_jobs.submit(plane, text.replace(',"size":4', "").encode(), NOW_MS, [b"abc"])
    assert plane.refs() == {}


def test_a_job_whose_name_lies_is_not_run(here: Place):
    plane = here.open()
    tree = plane.write("tree", tree_data([TreeEntry(FILE, "job.yaml", plane.write("blob", manifest()))]))
    commit = plane.write("commit", commit_data(tree, [], "x <x@x>", 1, b"by hand\n"))
    refs = git_jobs.JobRefs(bytes(32), commit)
    assert plane.swap([Change(refs.name("job"), None, commit)])
    assert states(plane) == ["damaged"]
    with pytest.raises(Failed, match=r"job\.yaml of .* is blake3:"):
        git_jobs.order_of(plane, refs)


@pytest.mark.req("GT-01", "GT-08")
def test_a_job_that_was_submitted_by_hand(here: Place):
    """A commit with a job.yaml under the right name is a job, whoever made it and how."""
    content_id = git_jobs.submit(other := here.open(), EXAMPLE, NOW_MS).content_id
    assert git_jobs.clear(other, 0) == [] and other.swap(
        [Change(name, oid, None) for name, oid in other.refs().items()]
    )
    blob = here.git("hash-object", "-w", "--stdin", given=EXAMPLE).strip()
    tree = here.git("mktree", given=f"100644 blob {blob}\tjob.yaml\n").strip()
    commit = here.git("commit-tree", tree, given="please run this\n").strip()
    here.git("update-ref", f"refs/gatos/jobs/{content_id.hex()}/job", commit, "0" * 40)
    plane, me = here.open(), worker()
    held = holding.claim(plane, seen(plane, content_id), me, NOW_MS)
    assert held is not None
    assert git_jobs.order_of(plane, held.refs).manifest.env == {"GREETING": "hello"}


def test_what_is_none_of_ours_is_left_out(here: Place):
    plane = here.open()
    job = submitted(plane)
    assert job.refs.job is not None
    for name in ("odd", f"{'AB' * 32}/job", f"{'ab' * 32}/other", f"{'ab' * 32}/claims/x", f"{'ab' * 32}/claim"):
        here.git("update-ref", f"refs/gatos/jobs/{name}", job.refs.job)
    assert [job.refs.content_id for job in git_jobs.listing(plane)] == [job.refs.content_id]


def test_a_damaged_claim_is_listed_as_that(here: Place):
    plane = here.open()
    job = submitted(plane)
    assert job.refs.job is not None
    here.git("update-ref", job.refs.name("claim"), job.refs.job)
    found = seen(plane, job.refs.content_id)
    assert found.state == "damaged" and found.trouble is not None and "trailer" in found.trouble
    assert holding.claim(plane, found, worker(), NOW_MS) is None
    holding.abort(plane, job.refs.content_id, worker(), NOW_MS)


# --- taking over


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.req("GT-11")
def test_a_lease_is_counted_on_the_watchers_clock(here: Place):
    plane, me, clock = here.open(), worker(lease_s=10), Time()
    watch = ClaimWatch(worker("two").key.public, lambda _: True, clock)
    held = holding.claim(plane, submitted(plane), me, 5)
    assert held is not None

    def is_open() -> bool:
        return bool(watch.open(git_jobs.listing(plane)))

    assert not is_open(), "the claim says that it is decades old, but it was seen only now"
    clock.now += 10.9
    assert not is_open()
    held = holding.renew(plane, held, me, 5)
    assert held is not None
    clock.now += 10.9
    assert not is_open(), "it was renewed"
    clock.now += 10.9
    assert not is_open(), "seen renewed 10.9 s ago"
    clock.now += 0.2
    assert is_open()


@pytest.mark.req("GT-11")
def test_a_dead_process_of_our_own_key_is_not_waited_for(here: Place):
    plane, me = here.open(), worker(process="worker-1")
    held = holding.claim(plane, submitted(plane), me, NOW_MS)
    assert held is not None
    alive = {"worker-1"}
    watch = ClaimWatch(me.key.public, alive.__contains__, Time())
    assert watch.open(git_jobs.listing(plane)) == []
    stranger = ClaimWatch(worker("two").key.public, lambda _: False, Time())
    assert stranger.open(git_jobs.listing(plane)) == []
    alive.clear()
    (job,) = watch.open(git_jobs.listing(plane))
    over = holding.claim(plane, job, me._replace(process="worker-2"), NOW_MS)
    assert over is not None and over.claim.fence == 2


def test_jobs_that_ended_are_not_open(here: Place):
    plane, clock = here.open(), Time()
    finished(plane, 1)
    pending = submitted(plane, 2)
    holding.abort(plane, submitted(plane, 3).refs.content_id, worker(), NOW_MS)
    watch = ClaimWatch(worker().key.public, lambda _: False, clock)
    for _ in range(2):
        assert [job.refs.content_id for job in watch.open(git_jobs.listing(plane))] == [pending.refs.content_id]
        clock.now += 1000


@pytest.mark.req("GT-04")
def test_rests_after_lost_races():
    assert RACE_RETRIES.delay_s(1, 0.0) == 0.05 and RACE_RETRIES.delay_s(1, 1.0) == 0.1
    assert RACE_RETRIES.delay_s(3, 1.0) == 0.4 and RACE_RETRIES.delay_s(10_000, 1.0) == 5.0


@pytest.mark.parametrize("lease_s", [0, -1, 2_592_001])
def test_impossible_leases(here: Place, lease_s: int):
    plane = here.open()
    with pytest.raises(Usage, match="lease"):
        holding.claim(plane, submitted(plane), worker(lease_s=lease_s), NOW_MS)


# --- results


def test_a_proof_of_something_else_is_not_put_there(here: Place):
    plane, me = here.open(), worker()
    held = holding.claim(plane, submitted(plane), me, NOW_MS)
    assert held is not None
    for wrong in (proof(held, worker("two")), proof(held, me, fence=7)):
        with pytest.raises(ValueError):
            holding.finish(plane, held, me, wrong, CONTENTS, NOW_MS)
    with pytest.raises(ValueError, match="a content is not"):
        holding.finish(plane, held, me, proof(held, me), dict.fromkeys(CONTENTS, b"x"), NOW_MS)


def test_what_is_too_large_stays_behind(here: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hocket.extensions.git.results.BLOBS_BYTES_MAX", 6)
    plane = here.open()
    job = finished(plane)
    listed = here.git("ls-tree", "-r", "--name-only", str(job.refs.result)).split()
    assert sorted(name for name in listed if name.startswith("blobs/")) == sorted(
        f"blobs/{content_hash(data).hex()}" for data in (b"made\n", b"")
    )
    assert here.git("show", f"{job.refs.result}:outputs.json").count("blobptr") == 3


# --- trailers


@pytest.mark.parametrize("ms", [0, 1, 999, 1_762_600_000_123, 253_402_300_799_999])
def test_times_are_read_as_written(ms: int):
    assert time_of("X", time_text(ms)) == ms


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no trailers\n",
        b"no trailers\n\n",
        b"x\n\nA: 1",
        b"x\n\nA:1\n",
        b"x\n\nA: \n",
        b"x\n\na: 1\n",
        b"x\n\nA: 1\n B\n",
        b"x\n\nA: 1\nA: 1\n",
        b"x\n\nA: 1\nC: 1\n",
        b"x\n\nC: 1\n",
        "x\n\nA: ä\n".encode(),
        b"x\n\nA: 1\r\n",
        b"x\n\nA: 1\n\n",
        b"x\n\nA: " + b"1" * 20_000 + b"\n",
    ],
)
def test_trailers_that_are_none(text: bytes):
    with pytest.raises(BadTrailer):
        read_trailers(text, frozenset("AB"), frozenset("A"))


def test_a_claim_must_be_one(here: Place):
    plane = here.open()
    held = holding.claim(plane, submitted(plane), worker(), NOW_MS)
    assert held is not None
    stored = plane.read([held.commit])[held.commit]
    assert isinstance(stored, Object)
    raw = stored.data
    assert read_claim(read_commit(raw)) == held.claim
    for old, new in (
        (b"Fence: 1", b"Fence: 01"),
        (b"Fence: 1", b"Fence: -1"),
        (b"Fence: 1", b"Fence: 99999999999999999999"),
        (b"Lease: 60", b"Lease: 0"),
        (b"State: claimed", b"State: asleep"),
        (b"State: claimed", b"State: done"),
        (b"State: claimed", b"State: claimed\nResult: " + b"0" * 40),
        (b"Process: worker-1", b"Process: ../../x"),
        (b"Claimed-At: 2025", b"Claimed-At: 20x5"),
        (b"Claimed-At: 2025-11", b"Claimed-At: 2025-13"),
        (b"Nonce: ", b"Nonce: 0"),
        (b"blake3:", b"sha256:"),
        (b"Claim-Sig: ed25519:", b"Claim-Sig: ed25519:0"),
        (b"Claim-Sig", b"Claim-Signature"),
    ):
        assert old in raw
        with pytest.raises(BadTrailer):
            read_claim(read_commit(raw.replace(old, new)))
    lines = raw.split(b"\n")
    with pytest.raises(BadTrailer, match="last line"):
        read_claim(read_commit(b"\n".join([*lines[:-3], lines[-2], lines[-3], b""])))


@pytest.mark.req("GT-08")
def test_states_are_told_by_any_clone(tmp_path: Path, here: Place):
    plane, me = here.open(), worker()
    finished(plane, 1)
    finished(plane, 2, exit_code=1)
    submitted(plane, 3)
    held = holding.claim(plane, submitted(plane, 4), me, NOW_MS)
    assert held is not None
    held = holding.claim(plane, submitted(plane, 5), me, NOW_MS)
    assert held is not None and holding.run(plane, held, me, NOW_MS)
    holding.abort(plane, submitted(plane, 6).refs.content_id, me, NOW_MS)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--mirror", str(here.directory), str(clone)], env=here.outside, check=True)
    here.address = str(clone)
    assert sorted(states(here.open())) == ["aborted", "claimed", "failed", "pending", "running", "succeeded"]
    assert git_jobs.listing(here.open()) == git_jobs.listing(plane)


@pytest.mark.req("GT-01", "GT-08")
def test_a_ref_without_a_good_manifest_is_not_pending(here: Place):
    """Pushed with plain git: a commit without job.yaml, one with a bad one, and one that belongs to another id."""
    good = git_jobs.submit(here.open(), EXAMPLE, NOW_MS)
    empty = here.git("hash-object", "-t", "tree", "-w", "--stdin").strip()
    blob = here.git("hash-object", "-w", "--stdin", given=b"command: 7\n").strip()
    tree = here.git("mktree", given=f"100644 blob {blob}\tjob.yaml\n").strip()
    for number, each in enumerate((empty, tree)):
        commit = here.git("commit-tree", each, "-m", "a job").strip()
        here.git("update-ref", f"refs/gatos/jobs/{number:064x}/job", commit)
    here.git("update-ref", f"refs/gatos/jobs/{2:064x}/job", good.commit)
    found = {job.refs.content_id: job for job in git_jobs.listing(here.open())}
    assert found[good.content_id].state == "pending"
    bad = [found[number.to_bytes(32, "big")] for number in range(3)]
    assert [job.state for job in bad] == ["damaged"] * 3 and all(job.trouble for job in bad)
    shown = git_jobs.look(here.open(), (1).to_bytes(32, "big"))
    assert shown is not None and shown.state == "damaged"


@pytest.mark.req("GT-08")
def test_a_job_that_is_read_while_a_push_moves_its_refs_is_not_damaged(here: Place):
    """Git moves the refs of a push one after the other: for a moment the claim is done, and the result is not there."""
    plane, me = here.open(), worker()
    held = holding.claim(plane, submitted(plane), me, NOW_MS)
    assert held is not None
    result = holding.finish(plane, held, me, proof(held, me), CONTENTS, NOW_MS + 1)
    assert result is not None
    ref = held.refs.name("result")
    here.git("update-ref", "-d", ref)
    reading = here.open()
    listed: list[str] = []

    class Torn:
        """The rest of the push arrives after the first reading of the refs."""

        def refs(self, *below: str) -> dict[str, str]:
            found = reading.refs(*below)
            listed.append("once")
            if len(listed) == 1:
                here.git("update-ref", ref, result)
            return found

        def __getattr__(self, name: str) -> object:
            return getattr(reading, name)

    (job,) = git_jobs.listing(Torn())  # type: ignore[arg-type]
    assert job.state == "succeeded" and len(listed) == 2
    here.git("update-ref", "-d", ref)
    (job,) = git_jobs.listing(here.open())
    assert job.state == "damaged" and "there is no result" in str(job.trouble)
