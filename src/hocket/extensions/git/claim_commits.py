"""Claim commits: who holds a job, since when, for how long, and in which state. Each claim has the previous one as its
parent; the first has the job. The worker signs all bytes of each, so that neither a trailer nor the position in the
chain can be changed.
"""

import re
from typing import Literal, NamedTuple, get_args

from hocket.extensions.git.objects import Commit, commit_data
from hocket.extensions.git.trailers import (
    BadTrailer,
    any_key_of,
    hash_of,
    key_of,
    message,
    number_of,
    read_trailers,
    signature_of,
    time_of,
    time_text,
)
from hocket.kernel.ids import hash_text
from hocket.kernel.keys import SigningKey, key_text, verify

LEASE_S_MIN = 1
LEASE_S_MAX = 2_592_000
NONCE_BYTES = 16
IDENTITY = "hocket <hocket@localhost>"
DOMAIN = b"hocket claim 1\0"

ClaimState = Literal["claimed", "running", "released", "done", "aborted"]
_STATES = get_args(ClaimState)
_NEEDED = frozenset({"Job-Id", "Worker-Id", "Process", "Fence", "Lease", "Claimed-At", "State", "Nonce", "Claim-Sig"})
_KNOWN = _NEEDED | {"Result", "Reason"}
_SIGNATURE = b"Claim-Sig: "
_OURS = re.compile(rb"^(?:Process|Fence|Nonce|Claimed-At|Claim-Sig): ", re.MULTILINE)
_OTHER_WORKER = re.compile(rb"[Ww]orker[-_][Ii]d\"? *[:=] *\"?(ed25519:[A-Za-z0-9+/_=-]{1,160})")
_PROCESS = re.compile("[A-Za-z0-9._-]{1,128}")
_NONCE = re.compile(f"(?:[0-9a-f]{{2}}){{{NONCE_BYTES}}}")
_OID = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


class GitClaim(NamedTuple):
    """The content of a claim commit. `result` is the commit that ended a claim whose state is done."""

    job: bytes
    worker: bytes
    process: str
    fence: int
    lease_s: int
    claimed_ms: int
    state: ClaimState
    nonce: bytes
    result: str | None = None
    reason: str | None = None


def claim_data(claim: GitClaim, tree: str, parent: str, key: SigningKey) -> bytes:
    """The bytes of a signed claim commit. The signature is the last line, over everything before it."""
    assert key.public == claim.worker
    trailers = [
        ("Job-Id", hash_text(claim.job)),
        ("Worker-Id", key_text(claim.worker)),
        ("Process", claim.process),
        ("Fence", str(claim.fence)),
        ("Lease", str(claim.lease_s)),
        ("Claimed-At", time_text(claim.claimed_ms)),
        ("State", claim.state),
        ("Nonce", claim.nonce.hex()),
    ]
    trailers += [("Result", claim.result)] if claim.result else []
    trailers += [("Reason", claim.reason)] if claim.reason else []
    text = message(f"{claim.state} {claim.job.hex()[:12]}, fence {claim.fence}", trailers)
    unsigned = commit_data(tree, [parent], IDENTITY, claim.claimed_ms // 1000, text)
    return unsigned + _SIGNATURE + key_text(key.sign(DOMAIN + unsigned)).encode() + b"\n"


def read_claim(commit: Commit) -> GitClaim:
    """Parses a claim commit. Raises Malformed; `is_signed` checks the signature."""
    found = read_trailers(commit.message, _KNOWN, _NEEDED)
    state, lease_s = found["State"], number_of("Lease", found["Lease"])
    if state not in _STATES:
        raise BadTrailer(f"State is none of {', '.join(_STATES)}: {state!r}")
    if not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
        raise BadTrailer(f"Lease is not between {LEASE_S_MIN} and {LEASE_S_MAX} seconds: {lease_s}")
    if _PROCESS.fullmatch(found["Process"]) is None:
        raise BadTrailer(f"Process is not the name of a process: {found['Process']!r}")
    if _NONCE.fullmatch(found["Nonce"]) is None:
        raise BadTrailer(f"Nonce is not {2 * NONCE_BYTES} lower-case hex digits: {found['Nonce']!r}")
    if "Result" in found and _OID.fullmatch(found["Result"]) is None:
        raise BadTrailer(f"Result is not the id of a commit: {found['Result']!r}")
    if ("Result" in found) != (state == "done"):
        raise BadTrailer("a claim has a Result if and only if its state is done")
    signature_of("Claim-Sig", found["Claim-Sig"])
    if not commit.raw.endswith(_SIGNATURE + found["Claim-Sig"].encode() + b"\n"):
        raise BadTrailer("Claim-Sig is not the last line")
    return GitClaim(
        job=hash_of("Job-Id", found["Job-Id"]),
        worker=key_of("Worker-Id", found["Worker-Id"]),
        process=found["Process"],
        fence=number_of("Fence", found["Fence"]),
        lease_s=lease_s,
        claimed_ms=time_of("Claimed-At", found["Claimed-At"]),
        state=state,  # type: ignore[arg-type]
        nonce=bytes.fromhex(found["Nonce"]),
        result=found.get("Result"),
        reason=found.get("Reason"),
    )


class ForeignClaim(NamedTuple):
    """A claim that another program wrote. GATOS defines only who holds the job; such a claim has no lease, so no worker
    takes it over.
    """

    worker: bytes | None
    name: str


def is_ours(data: bytes) -> bool:
    """Whether a commit is a claim in Hocket's format, sound or not: it has trailers that GATOS does not know."""
    return _OURS.search(data) is not None


def other_worker(data: bytes) -> bytes | None:
    """The worker that another program's claim names; None if it names none. Raises Malformed."""
    found = _OTHER_WORKER.search(data)
    return None if found is None else any_key_of("Worker-Id", found[1].decode())


def worker_named(name: str) -> bytes | None:
    """The worker whose key names a ref below `claims/`; None if the name is not a key."""
    try:
        return any_key_of("Worker-Id", f"ed25519:{name}")
    except BadTrailer:
        return None


def is_signed(commit: Commit, claim: GitClaim) -> bool:
    """Whether the worker that the claim names signed exactly these bytes."""
    unsigned, line, text = commit.raw.rpartition(_SIGNATURE)
    try:
        signature = signature_of("Claim-Sig", text[:-1].decode("latin-1"))
    except BadTrailer:
        return False
    return bool(line) and verify(claim.worker, signature, DOMAIN + unsigned)
