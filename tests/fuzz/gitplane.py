"""The targets about jobs in git: claims, which only workers sign, results, and trees."""

import json
from collections.abc import Callable
from random import Random

from hocket.extensions.git.claim_commits import GitClaim, claim_data, is_signed, read_claim
from hocket.extensions.git.objects import DIRECTORY, FILE, Commit, TreeEntry, read_commit, read_tree, tree_data
from hocket.extensions.git.results import ForeignProof, Result, read_other_envelope, read_result, result_data, signed
from hocket.extensions.git.trailers import BadTrailer
from hocket.kernel.ids import content_hash, hash_text
from hocket.kernel.keys import SigningKey
from tests.fuzz import mutate
from tests.fuzz.mutate import Damage, Sample, by_punctuation, repeated
from tests.fuzz.target import Target

WORKER, OUTSIDER = SigningKey(b"\7" * 32), SigningKey(b"\x08" * 32)
_JOB, _TREE, _PARENT = bytes(range(32)), "ab" * 20, "cd" * 20
_CLAIM = GitClaim(_JOB, WORKER.public, "worker-1", 1, 60, 1_763_194_193_123, "claimed", bytes(16))
_CLAIMS = [
    _CLAIM,
    _CLAIM._replace(state="running", fence=7, nonce=bytes(range(16))),
    _CLAIM._replace(state="done", result="ef" * 20),
    _CLAIM._replace(state="aborted", reason="no longer needed: really"),
]
CLAIMS = [by_punctuation(claim_data(each, _TREE, _PARENT, WORKER)) for each in _CLAIMS]
_SIGNED = {sample.data: claim for sample, claim in zip(CLAIMS, _CLAIMS, strict=True)}
_RESULTS = [
    Result(_JOB, b"p" * 32, WORKER.public, b"r" * 32, b"s" * 64, "succeeded"),
    Result(bytes(32), bytes(32), OUTSIDER.public, bytes(32), bytes(64), "failed"),
    Result(_JOB, b"p" * 32, WORKER.public, b"r" * 32, b"s" * 64, "succeeded", "sha256:" + "ab" * 32),
    Result(_JOB, b"p" * 32, WORKER.public, None, None, None),
]
RESULTS = [by_punctuation(result_data(each, 1_763_194_193_123, _TREE, _PARENT)) for each in _RESULTS]
_SAID = json.dumps(
    {
        "job_id": hash_text(_JOB),
        "runner": {"program": hash_text(bytes(32)), "version": "1"},
        "outputs": [{"kind": "blobptr", "algo": "blake3", "hash": hash_text(_JOB), "size": 5}],
        "started_at": "2025-11-15T08:09:53Z",
    }
).encode()
OTHER_PROOFS = [by_punctuation(_SAID)]
_SIGNED_RESULTS = [
    Result(_JOB, content_hash(_SAID), WORKER.public, None, WORKER.sign(message), None)
    for message in (_SAID, content_hash(_SAID))
]
TREES = [
    Sample(data, tuple(range(0, len(data), 7)))
    for data in (
        tree_data([TreeEntry(FILE, "job.yaml", _TREE), TreeEntry(DIRECTORY, "inputs", _PARENT)]),
        tree_data([TreeEntry(FILE, name * 64, _TREE) for name in "abc"]),
    )
]
_WORDS = (
    *(
        b"\n\n",
        b"\n",
        b": ",
        b"Job-Id: ",
        b"blake3:",
        b"ed25519:",
        b"State: done\n",
        b"Fence: 2\n",
        b"parent ",
        b"tree ",
    ),
    *(
        b"\r\n",
        b" ",
        b"\0",
        b"\xff",
        b"\xc3\xa9",
        b"A",
        b"F",
        b"-1",
        b"9" * 30,
        b"Result: " + b"0" * 40,
        b"Claim-Sig: ",
    ),
)


def _claim(data: bytes) -> tuple[Commit, GitClaim] | None:
    commit = read_commit(data)
    claim = read_claim(commit)
    return (commit, claim) if is_signed(commit, claim) and claim.worker == WORKER.public else None


def _hold_claim(data: bytes, read: tuple[Commit, GitClaim] | None) -> bool:
    if read is None:
        return False
    assert _SIGNED.get(data) == read[1], "signed by the worker, and never written by it"
    return True


def _result(data: bytes) -> tuple[Commit, Result]:
    commit = read_commit(data)
    return commit, read_result(commit)


def _hold_result(data: bytes, read: tuple[Commit, Result]) -> bool:
    commit, result = read
    again = result_data(result, 0, commit.tree, _PARENT)
    assert read_result(read_commit(again)) == result, "it does not survive being written"
    # A key and a signature have several spellings, everything else one.
    said = {line for line in again[again.index(b"Job-Id") :].splitlines() if b"ed25519:" not in line}
    assert {b"".join(line.split()) for line in data.splitlines()} >= {b"".join(line.split()) for line in said}
    return True


def _other_proof(data: bytes) -> tuple[ForeignProof, list[str]]:
    """Whose signatures are held against the bytes is fixed: only one text was ever signed."""
    held = []
    for result in _SIGNED_RESULTS:
        try:
            held.append(signed(result, data))
        except BadTrailer:
            pass
    return read_other_envelope(data), held


def _hold_other_proof(data: bytes, read: tuple[ForeignProof, list[str]]) -> bool:
    proof, held = read
    assert held == (["proof", "proof"] if data == _SAID else []), "signed by the worker, and never written by it"
    assert len(proof.job) == len(proof.program) == 32 and all(len(hash) == 32 for hash in proof.pointers)
    return True


def _hold_tree(data: bytes, entries: dict[str, TreeEntry]) -> bool:
    assert all(name == entry.name and len(entry.oid) == 40 for name, entry in entries.items())
    assert tree_data(entries.values()) == data, "not the only spelling"
    return True


def _commits(samples: list[Sample]) -> Callable[[Random], mutate.Stream]:
    return lambda rng: Damage(rng, samples, _WORDS + repeated([(each.data, b"") for each in samples]))


def _other_proofs(rng: Random) -> mutate.Stream:
    return Damage(
        rng, OTHER_PROOFS, (b'"', b"{}", b"[]", b"null", b"1e999", b'"size":-1', b"\xff", b"blake3:", b"[" * 99)
    )


def _trees(rng: Random) -> mutate.Stream:
    return Damage(rng, TREES, (b"100644 ", b"40000 ", b"\0", b" ", b"\xff", b"../x\0" + b"a" * 20))


TARGETS = (
    Target("git-claim", _claim, (BadTrailer, ValueError), _hold_claim, CLAIMS, _commits(CLAIMS)),
    Target("git-result", _result, (BadTrailer, ValueError), _hold_result, RESULTS, _commits(RESULTS)),
    Target("git-other-proof", _other_proof, (BadTrailer,), _hold_other_proof, OTHER_PROOFS, _other_proofs),
    Target("git-tree", lambda data: read_tree(data, 20), (ValueError,), _hold_tree, TREES, _trees),
)
