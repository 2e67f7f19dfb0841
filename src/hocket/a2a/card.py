"""The agent card: what this server offers to agents, signed with the node's key; and that key, to check it with."""

from collections.abc import Sequence
from typing import Any

from hocket.kernel import __version__
from hocket.kernel.ids import node_id
from hocket.kernel.jws import base64url, canonical_json
from hocket.kernel.keys import SigningKey

PROTOCOL_VERSION = "1.0"
# What a token needs to grant, for the kinds of the skills it uses.
GRANTS = ["job:schedule", "job:read", "artifact:read"]


def signed_card(name: str, url: str, keys_url: str, skills: Sequence[str], key: SigningKey) -> dict[str, Any]:
    """Has no member that is empty: what is signed is the card without those (8.4.1), and the SDK of the protocol also
    leaves out empty members that the specification wants.
    """
    modes = ["application/json", "text/plain"]
    card = {
        "name": name,
        "description": f"Does jobs of {len(skills)} kinds on the work mesh Hocket.",
        "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": PROTOCOL_VERSION}],
        "version": __version__,
        "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": False},
        "securitySchemes": {"token": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
        "securityRequirements": [{"schemes": {"token": {"list": GRANTS}}}],
        "defaultInputModes": modes,
        "defaultOutputModes": modes,
        "skills": [
            {"id": each, "name": each, "description": f"Does a job of the kind {each}.", "tags": ["hocket", each]}
            for each in skills
        ],
    }
    head = {"alg": "EdDSA", "typ": "JOSE", "kid": _kid(key), "jku": keys_url}
    protected = base64url(canonical_json(head))
    signature = base64url(key.sign(protected + b"." + base64url(canonical_json(card))))
    return {**card, "signatures": [{"protected": protected.decode(), "signature": signature.decode()}]}


def key_set(key: SigningKey) -> dict[str, Any]:
    """The key as RFC 8037 writes it."""
    shown = {"kty": "OKP", "crv": "Ed25519", "x": base64url(key.public).decode(), "kid": _kid(key)}
    return {"keys": [{**shown, "alg": "EdDSA", "use": "sig"}]}


def _kid(key: SigningKey) -> str:
    return f"node-{node_id(key.public)}"
