"""Seals the secrets of a job for the node that has claimed it, with that node's key, and opens them there."""

from collections.abc import Mapping

import msgspec
from nacl.bindings import (
    crypto_box_seal,
    crypto_box_seal_open,
    crypto_sign_ed25519_pk_to_curve25519,
    crypto_sign_ed25519_sk_to_curve25519,
)
from nacl.exceptions import CryptoError

from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import ulid_text
from hocket.kernel.keys import SigningKey


class Sealed(msgspec.Struct, frozen=True):
    """The sealed content: the values, and the one claim on a job that they are for."""

    job: str
    fence: int
    values: dict[str, str]


def seal(job_id: bytes, fence: int, values: Mapping[str, str], public: bytes) -> bytes:
    """For the node with that key alone."""
    plain = msgspec.json.encode(Sealed(ulid_text(job_id), fence, dict(values)))
    return crypto_box_seal(plain, crypto_sign_ed25519_pk_to_curve25519(public))


def unseal(data: bytes, job_id: bytes, fence: int, key: SigningKey) -> dict[str, str] | None:
    """None if it is not for this node, or not for this claim on the job."""
    public = crypto_sign_ed25519_pk_to_curve25519(key.public)
    private = crypto_sign_ed25519_sk_to_curve25519(key.seed + key.public)
    try:
        found = decode_json(crypto_box_seal_open(data, public, private), Sealed)
    except (CryptoError, msgspec.MsgspecError):
        return None
    return found.values if (found.job, found.fence) == (ulid_text(job_id), fence) else None
