"""Checks a release with in-toto's own libraries, and without Hocket: that the proof is signed by a key, and that the
files are those that the proved run has made.
"""

import hashlib
import json
from pathlib import Path

from google.protobuf import json_format
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

PROOF = "hocket.intoto.json"
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
ED25519 = b"\xed\x01"


def public_key(did: str) -> bytes:
    """The Ed25519 key of a did:key: base58 of a mark and the key."""
    number = 0
    for letter in did.removeprefix("did:key:z"):
        number = number * 58 + ALPHABET.index(letter)
    data = number.to_bytes(34, "big")
    if data[:2] != ED25519:
        raise SystemExit(f"{did} is no Ed25519 key")
    return data[2:]


def check(folder: Path, key: str) -> dict[str, str]:
    """The SHA-256 of each file that the proof vouches for. Ends the program if something is wrong."""
    envelope = Envelope.from_dict(json.loads((folder / PROOF).read_text(encoding="utf-8")))
    try:
        envelope.verify([SSlibKey(key, "ed25519", "ed25519", {"public": public_key(key).hex()})], 1)
    except VerificationError:
        raise SystemExit(f"{folder / PROOF} is not signed by {key}") from None
    statement = json_format.Parse(envelope.payload, statement_pb2.Statement())
    Statement.copy_from_pb(statement).validate()
    proved = {Path(each.name).name: each.digest["sha256"] for each in statement.subject if "sha256" in each.digest}
    files = {each.name for each in folder.iterdir()} - {PROOF}
    if files != proved.keys():
        raise SystemExit(f"{folder} has {', '.join(sorted(files))}; the proof is about {', '.join(sorted(proved))}")
    for name, digest in proved.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise SystemExit(f"{folder / name} is not the file that the proof is about")
    return proved
