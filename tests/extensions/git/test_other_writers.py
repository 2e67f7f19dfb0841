"""Jobs, claims and results that another program wrote, which knows GATOS and not Hocket. Everything here is made with
plain git commands from GATOS' documents.
"""

import hashlib
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import pytest

from hocket.errors import Usage
from hocket.extensions.command.manifest import content_id, read_manifest
from hocket.extensions.git import git_jobs, holding
from hocket.extensions.git.holding import ClaimWatch
from hocket.extensions.git.objects import Object
from hocket.extensions.git.trailers import BadTrailer, any_key_of
from hocket.extensions.git.trust import Verdict, verdict
from hocket.extensions.git.verify import Verified, verify
from hocket.kernel.ids import content_hash, hash_text
from hocket.kernel.keys import SigningKey
from tests.extensions.git.hands import CONTENTS, MADE, NOW_MS, finished, proof, seen, submitted, worker
from tests.extensions.git.places import Place

KEY, STRANGER = SigningKey(b"\x21" * 32), SigningKey(b"\x22" * 32)
ZERO = "0" * 40
ROOT = "sha256:" + hashlib.sha256(b"the policy").hexdigest()
ULID = "01JBZ8Q0000000000000000000"
POINTERS = [{"kind": "blobptr", "algo": "blake3", "hash": hash_text(MADE), "size": 5}]
MANIFEST = f"command: [echo, hello]\ntimeout: 30\npolicy_root: {ROOT}\nulid: {ULID}\n".encode()
JOB = content_id(read_manifest(MANIFEST))
PREFIX = f"refs/gatos/jobs/{JOB.hex()}"


class Other:
    """The other program."""

    def __init__(self, here: Place) -> None:
        self.here = here

    def blob(self, data: bytes) -> str:
        return self.here.git("hash-object", "-w", "--stdin", given=data).strip()

    def tree(self, files: dict[str, bytes]) -> str:
        entries: list[str] = []
        below: dict[str, dict[str, bytes]] = {}
        for path, data in files.items():
            first, _, rest = path.partition("/")
            if rest:
                below.setdefault(first, {})[rest] = data
            else:
                entries.append(f"100644 blob {self.blob(data)}\t{path}")
        entries += [f"040000 tree {self.tree(within)}\t{name}" for name, within in below.items()]
        return self.here.git("mktree", given="\n".join(entries) + "\n").strip()

    def commit(self, tree: str, message: str, *parents: str) -> str:
        options = [word for parent in parents for word in ("-p", parent)]
        return self.here.git("commit-tree", tree, *options, given=message).strip()

    def ref(self, part: str, oid: str) -> None:
        self.here.git("update-ref", f"{PREFIX}/{part}", oid, ZERO)

    def job(self, text: bytes = MANIFEST, **files: bytes) -> str:
        """On top of a project's history, among its files."""
        before = self.commit(self.tree({"README": b"a project\n"}), "begin\n")
        made = self.commit(
            self.tree({"README": b"a project\n", "src/main.c": b"int main;\n", "job.yaml": text} | files),
            "feat: a job\n\nSigned-off-by: Somebody <s@example.org>\n",
            before,
        )
        self.ref("job", made)
        return made

    def claim(self, job: str, name: str = KEY.public.hex()) -> None:
        """GATOS does not say what the ref points to."""
        self.ref(f"claims/{name}", job)

    def result(
        self,
        job: str,
        *,
        key: str = "ed25519:" + KEY.public.hex(),
        sign: Callable[[bytes], str] | None = None,
        trailers: str = "",
        envelope: dict[str, Any] | bytes | None = None,
        files: dict[str, bytes] | None = None,
        place: str = "poe.json",
    ) -> str:
        said = envelope if isinstance(envelope, bytes) else json.dumps(self.envelope() | (envelope or {})).encode()
        message = f"ran it\n\nJob-Id: {hash_text(JOB)}\nProof-Of-Execution: {hash_text(content_hash(said))}\n"
        message += f"Worker-Id: {key}\n" + (f"Attest-Sig: {sign(said)}\n" if sign else "") + trailers
        message += "Signed-off-by: Sombody \u00c9lse <s@example.org>\n"
        tree = self.tree({place: said, f"gatos/objects/blake3/{MADE.hex()}": b"made\n"} | (files or {}))
        made = self.commit(tree, message, job)
        self.ref("result", made)
        return made

    def envelope(self) -> dict[str, Any]:
        return {
            "outputs": POINTERS,
            "job_id": hash_text(JOB),
            "runner": {"program": hash_text(content_hash(b"gatosd")), "version": "0.3.0"},
        }


def judged(here: Place, *trusted: bytes) -> tuple[Verified, Verdict]:
    (found,) = verify(here.open())
    return found, verdict(found, trusted)


def over_envelope(envelope: bytes) -> str:
    return "ed25519:" + KEY.sign(envelope).hex()


SIGNATURES: dict[str, Callable[[bytes], str]] = {
    "the envelope, in hex": over_envelope,
    "the envelope, in base64": lambda said: "ed25519:" + b64encode(KEY.sign(said)).decode(),
    "its hash, for addresses": lambda said: "ed25519:" + urlsafe_b64encode(KEY.sign(content_hash(said))).decode(),
    "as Hocket signs": lambda said: "ed25519:" + KEY.sign(b"hocket proof 1\0" + JOB + content_hash(said)).hex(),
}
KEYS = {
    "hex": KEY.public.hex(),
    "base64": b64encode(KEY.public).decode(),
    "base64 without padding": b64encode(KEY.public).decode().rstrip("="),
    "base64 for addresses": urlsafe_b64encode(KEY.public).decode(),
}


@pytest.mark.req("GT-15", "GT-09")
@pytest.mark.parametrize("spelling", KEYS)
@pytest.mark.parametrize("over", SIGNATURES)
def test_a_signed_result_is_good_by_its_key(here: Place, over: str, spelling: str):
    other = Other(here)
    job = other.job()
    other.claim(job)
    other.result(job, key=f"ed25519:{KEYS[spelling]}", sign=SIGNATURES[over])
    (listed,) = git_jobs.listing(here.open())
    assert listed.state == "succeeded" and listed.result is not None and listed.result.worker == KEY.public
    found, said = judged(here, KEY.public)
    assert found.findings == () and found.signer == KEY.public and said == "good"
    assert judged(here)[1] == judged(here, STRANGER.public)[1] == "unknown"


@pytest.mark.req("GT-15")
@pytest.mark.parametrize("over", [None, JOB, hash_text(JOB).encode()])
def test_a_result_whose_proof_nobody_signed_is_never_trusted(here: Place, over: bytes | None):
    """A signature over the job's content id alone holds for every result of the job that anybody makes up."""
    other = Other(here)
    job = other.job()
    other.claim(job)
    other.result(job, sign=None if over is None else lambda _: "ed25519:" + KEY.sign(over).hex())
    found, said = judged(here, KEY.public)
    assert found.findings == () and found.has_result and found.signer is None and said == "unknown"


@pytest.mark.req("GT-15")
@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_a_result_may_say_how_it_ended(here: Place, state: str):
    other = Other(here)
    job = other.job()
    other.claim(job)
    trailers = f"State: {state}\nAttest-Program: {hash_text(content_hash(b'gatosd'))}\nPolicy-Code-Root: {ROOT}\n"
    other.result(job, sign=over_envelope, trailers=trailers, place=f"gatos/objects/blake3/{'ab' * 32}.json")
    (listed,) = git_jobs.listing(here.open())
    assert listed.state == state


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "signed by a stranger": ({"sign": lambda said: "ed25519:" + STRANGER.sign(said).hex()}, "Attest-Sig is not by"),
    "by a stranger": ({"key": "ed25519:" + STRANGER.public.hex()}, "holds the job"),
    "of another job": ({"envelope": {"job_id": hash_text(bytes(32))}}, "its proof is of blake3:0000"),
    "of no runner": ({"envelope": {"runner": {}}}, "not a GATOS envelope"),
    "with a field of its own": ({"envelope": {"more": 1}}, "not a GATOS envelope"),
    "no JSON": ({"envelope": b"not JSON"}, "not a GATOS envelope"),
    "deep JSON": ({"envelope": b'{"outputs":' + b"[" * 100_000}, "not a GATOS envelope"),
    "a changed output": ({"files": {f"gatos/objects/blake3/{MADE.hex()}": b"mode\n"}}, f"its file {MADE.hex()} is"),
    "an output of another size": ({"envelope": {"outputs": [POINTERS[0] | {"size": 6}]}}, "has 5 bytes, not 6"),
    "another program": ({"trailers": f"Attest-Program: {hash_text(bytes(32))}\n"}, "Attest-Program is not the proof's"),
    "another policy": ({"trailers": f"Policy-Code-Root: sha256:{'0' * 64}\n"}, "not the policy_root"),
    "a policy that is none": ({"trailers": "Policy-Code-Root: x\n"}, "Policy-Code-Root is not sha256:"),
    "two keys": ({"trailers": "Worker-Id: ed25519:" + STRANGER.public.hex() + "\n"}, "Worker-Id is there twice"),
    "a key that is none": ({"key": "ed25519:" + "A" * 43}, "Worker-Id is not ed25519:"),
}


@pytest.mark.req("GT-15", "GT-10")
@pytest.mark.parametrize("kind", WRONG)
def test_a_result_that_does_not_hold_is_bad(here: Place, kind: str):
    given, what = WRONG[kind]
    other = Other(here)
    job = other.job()
    other.claim(job)
    if kind == "a key that is none":
        given = given | {"key": "ed25519:" + b64encode(KEY.public).decode()[:-2] + "/="}  # a digit with spare bits set
    oid = other.result(job, **({"sign": over_envelope} | given))
    found, said = judged(here, KEY.public, STRANGER.public)
    assert said == "bad"
    assert any(finding.commit == oid and what in finding.what for finding in found.findings), found.findings


@pytest.mark.req("GT-15")
def test_the_proof_must_be_in_the_result(here: Place):
    other = Other(here)
    job = other.job()
    other.claim(job)
    oid = other.result(job, sign=over_envelope, files={"poe.json": b"{}"})
    found, said = judged(here, KEY.public)
    assert said == "bad" and [(each.commit, each.what) for each in found.findings] == [
        (oid, "none of its files is the proof that Proof-Of-Execution names")
    ]


@pytest.mark.req("GT-15", "GT-10")
@pytest.mark.parametrize("kept", [["proof.json"], ["poe.json"]])
def test_hockets_result_cannot_pass_for_another_programs(here: Place, kept: list[str]):
    """Without its claims and its other files a Hocket result would be held to less."""
    plane = here.open()
    done = finished(plane)
    other = Other(here)
    tree = here.git("ls-tree", f"{done.refs.result}", "proof.json").split()[2]
    data = plane.read([tree])[tree]
    assert isinstance(data, Object)
    lines = here.git("log", "-1", "--format=%B", str(done.refs.result)).splitlines()
    message = "\n".join(line for line in lines if not line.startswith("State:")).rstrip() + "\n"
    oid = other.commit(other.tree({kept[0]: data.data}), message, str(done.refs.job))
    for part in ("claim", f"claims/{worker().key.public.hex()}"):
        here.git("update-ref", "-d", done.refs.name(part))
    here.git("update-ref", done.refs.name("result"), oid)
    here.git("update-ref", done.refs.name(f"claims/{worker().key.public.hex()}"), str(done.refs.job))
    assert judged(here, worker().key.public)[1] == "bad"


# --- claims


@pytest.mark.req("GT-15", "GT-04")
@pytest.mark.parametrize(
    ("name", "by"),
    [(KEY.public.hex(), KEY.public), (urlsafe_b64encode(KEY.public).decode().rstrip("="), KEY.public), ("w7", None)],
)
@pytest.mark.parametrize("points_to", ["job", "blob", "commit"])
def test_a_claim_that_is_only_the_workers_ref_holds_the_job(here: Place, name: str, by: bytes | None, points_to: str):
    other, me = Other(here), worker()
    job = other.job()
    target = {
        "job": job,
        "blob": other.blob(b'{"worker_id": "ed25519:%b"}\n' % KEY.public.hex().encode()),
        "commit": other.commit(other.tree({"x": b"x"}), f"mine\n\nWorker-Id: ed25519:{KEY.public.hex()}\n", job),
    }[points_to]
    other.claim(target, name)
    plane = here.open()
    (listed,) = git_jobs.listing(plane)
    assert listed.state == "claimed" and listed.claim is None
    assert listed.other is not None and listed.other.worker == by
    # It has no lease, so that it is never over.
    assert not any(map(git_jobs.is_waiting, git_jobs.unfinished(plane)))
    assert ClaimWatch(me.key.public, lambda _: False, lambda: 1e9).open([listed]) == []
    assert judged(here)[0].findings == ()
    holding.abort(plane, JOB, me, NOW_MS, "enough")
    assert seen(plane, JOB).state == "aborted"
    assert judged(here)[0].findings == ()


@pytest.mark.req("GT-15")
def test_a_claim_as_the_newer_documents_have_it(here: Place):
    """One ref for all workers; who holds the job is said in what it points to."""
    other, me = Other(here), worker()
    job = other.job()
    other.ref("claim", other.commit(other.tree({"x": b"x"}), f"x\n\nWorker-Id: ed25519:{KEYS['base64']}\n", job))
    plane = here.open()
    (listed,) = git_jobs.listing(plane)
    assert listed.state == "claimed" and listed.other is not None and listed.other.worker == KEY.public
    assert judged(here)[0].findings == ()
    holding.abort(plane, JOB, me, NOW_MS)
    assert seen(plane, JOB).state == "aborted" and judged(here)[0].findings == ()
    other.here.git("update-ref", "-d", f"{PREFIX}/abort")
    assert judged(here)[1] == "bad"


@pytest.mark.req("GT-15")
def test_a_claim_that_contradicts_its_name_is_bad(here: Place):
    other = Other(here)
    job = other.job()
    other.claim(other.commit(other.tree({"x": b"x"}), f"x\n\nWorker-Id: ed25519:{STRANGER.public.hex()}\n", job))
    assert judged(here)[1] == "bad"


@pytest.mark.req("GT-15", "GT-05")
def test_another_program_that_claims_beside_a_claim_of_ours_is_told(here: Place):
    plane, me = here.open(), worker()
    held = holding.claim(plane, submitted(plane), me, NOW_MS)
    assert held is not None
    here.git("update-ref", held.refs.name("claims/w7"), str(held.refs.job), ZERO)
    (found,) = verify(plane)
    assert ["beside the ref that decides" in each.what for each in found.findings] == [True]


# --- jobs


@pytest.mark.req("GT-15", "GT-01")
def test_a_job_on_top_of_a_project_is_claimed_and_finished(here: Place):
    """Its commit has parents, and its tree more files than a job needs."""
    other, me = Other(here), worker()
    other.job()
    plane = here.open()
    held = holding.claim(plane, seen(plane, JOB), me, NOW_MS)
    assert held is not None
    made = proof(held, me)
    assert holding.finish(plane, held, me, made, CONTENTS, NOW_MS, ROOT)
    assert [each.what for each in judged(here)[0].findings] == ["its proof is of another command than the job's"]


@pytest.mark.req("GT-14", "GT-15")
@pytest.mark.parametrize("where", ["gatos/objects/blake3", "inputs"])
def test_inputs_are_found_where_gatos_keeps_them(here: Place, where: str):
    data = b"an input\n"
    text = json.dumps(
        {
            "command": ["cat"],
            "timeout": 1,
            "inputs": [{"kind": "blobptr", "algo": "blake3", "hash": hash_text(content_hash(data)), "size": len(data)}],
        }
    ).encode()
    here.git(
        "update-ref", f"refs/gatos/jobs/{content_id(read_manifest(text)).hex()}/job", _job(here, text, where, data)
    )
    plane = here.open()
    (listed,) = git_jobs.listing(plane)
    order = git_jobs.order_of(plane, listed.refs)
    assert git_jobs.read_input(plane, content_hash(data), order.inputs[content_hash(data)]) == data
    assert [each.findings for each in verify(plane)] == [()]


def _job(here: Place, text: bytes, where: str, data: bytes) -> str:
    other = Other(here)
    return other.commit(other.tree({"job.yaml": text, f"{where}/{content_hash(data).hex()}": data}), "a job\n")


# --- aliases


@pytest.mark.req("GT-13")
def test_a_ulid_stands_for_its_job(here: Place):
    plane = here.open()
    submitted(plane)
    made = git_jobs.submit(plane, MANIFEST, NOW_MS)
    for name in (ULID, made.content_id.hex(), hash_text(made.content_id), made.content_id.hex()[:12]):
        assert git_jobs.named(plane, name).content_id == JOB
    with pytest.raises(Usage, match="no job"):
        git_jobs.named(plane, "01JBZ8Q0000000000000000001")
    for name in ("", "blake3:", "xyz"):
        with pytest.raises(Usage):
            git_jobs.named(plane, name)


@pytest.mark.req("GT-13")
def test_a_ulid_of_two_jobs_stands_for_neither(here: Place):
    plane = here.open()
    git_jobs.submit(plane, MANIFEST, NOW_MS)
    git_jobs.submit(plane, MANIFEST.replace(b"30", b"31"), NOW_MS)
    with pytest.raises(Usage, match="several jobs"):
        git_jobs.named(plane, ULID)


@pytest.mark.req("GT-13")
def test_a_ulid_is_read_from_the_manifest_alone(here: Place):
    """Neither a trailer nor a manifest under another job's name makes an alias."""
    plane, other = here.open(), Other(here)
    job = submitted(plane)
    lie = other.commit(here.git("rev-parse", f"{job.refs.job}^{{tree}}").strip(), f"x\n\nUlid: {ULID}\n")
    here.git("update-ref", job.refs.name("job"), lie)
    with pytest.raises(Usage, match="no job"):
        git_jobs.named(plane, ULID)
    here.git("update-ref", job.refs.name("job"), other.commit(other.tree({"job.yaml": MANIFEST}), "x\n"))
    with pytest.raises(Usage, match="no job"):
        git_jobs.named(plane, ULID)


# --- what Hocket writes for others


@pytest.mark.req("GT-14", "GT-09")
def test_the_policy_of_the_manifest_is_in_the_result(here: Place):
    plane, done = here.open(), _done(here, MANIFEST, ROOT)
    body = here.git("log", "-1", "--format=%B", f"{PREFIX}/result")
    assert f"Policy-Code-Root: {ROOT}" in here.git("interpret-trailers", "--parse", given=body).splitlines()
    assert done.result is not None and done.result.policy_root == ROOT
    without = MANIFEST.replace(f"policy_root: {ROOT}\n".encode(), b"")
    assert (plain := _done(here, without, None)).result is not None and plain.result.policy_root is None
    assert all(each.findings == () for each in verify(plane))
    raw = here.git("cat-file", "commit", f"{PREFIX}/result").replace(ROOT, "sha256:" + "0" * 64)
    here.git(
        "update-ref", f"{PREFIX}/result", here.git("hash-object", "-w", "-t", "commit", "--stdin", given=raw).strip()
    )
    wrong = [finding.what for each in verify(plane) for finding in each.findings]
    assert any("not the policy_root of the job's job.yaml" in each for each in wrong)


def _done(here: Place, text: bytes, policy_root: str | None) -> git_jobs.GitJob:
    plane, me = here.open(), worker()
    job = seen(plane, git_jobs.submit(plane, text, NOW_MS).content_id)
    held = holding.claim(plane, job, me, NOW_MS)
    assert held is not None
    from msgspec.structs import replace

    from hocket.extensions.command.proof import prove, read_envelope

    execution = replace(read_envelope(proof(held, me).envelope), argv=("echo", "hello"))
    assert holding.finish(plane, held, me, prove(execution, me.key), CONTENTS, NOW_MS, policy_root)
    return seen(plane, job.refs.content_id)


@pytest.mark.req("GT-14")
def test_pointers_lead_to_bytes(here: Place):
    """`gatos/objects/<algo>/<hash>` in the commit, as well as Hocket's own place."""
    done = finished(here.open())
    for pointer in json.loads(here.git("show", f"{done.refs.result}:outputs.json")):
        assert {"kind", "algo", "hash", "size"} <= pointer.keys()
        digits = pointer["hash"].removeprefix("blake3:")
        data = here.git("show", f"{done.refs.result}:gatos/objects/{pointer['algo']}/{digits}").encode()
        assert content_hash(data).hex() == digits and len(data) == pointer["size"]
        assert here.git("show", f"{done.refs.result}:blobs/{digits}").encode() == data


def test_keys_have_one_right_spelling_in_each_way():
    for text in KEYS.values():
        assert any_key_of("Worker-Id", f"ed25519:{text}") == KEY.public
    wrong = [KEY.public.hex().upper(), KEYS["base64"] + "=", " " + KEYS["hex"], KEYS["base64"][:-1] + "\n=", "", "=="]
    for text in wrong:
        with pytest.raises(BadTrailer):
            any_key_of("Worker-Id", f"ed25519:{text}")
    with pytest.raises(BadTrailer):
        any_key_of("Worker-Id", f"x25519:{KEYS['base64']}")
