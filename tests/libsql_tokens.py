"""Tokens for a libSQL server, signed as its administrator would sign them."""

import base64
import json

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_key = Ed25519PrivateKey.generate()


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def public_key() -> dict[str, str]:
    """The environment of a server that accepts the tokens."""
    return {"SQLD_AUTH_JWT_KEY": _text(_key.public_key().public_bytes_raw())}


def token(access: str = "rw") -> str:
    parts = ({"alg": "EdDSA", "typ": "JWT"}, {"a": access, "exp": 4_000_000_000})
    signed = ".".join(_text(json.dumps(part).encode()) for part in parts)
    return f"{signed}.{_text(_key.sign(signed.encode()))}"
