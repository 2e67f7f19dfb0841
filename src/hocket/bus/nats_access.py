"""How to get into a NATS server: its addresses, a file with credentials, and whom TLS trusts. A file of credentials is
one that `nsc` writes (a JWT and a seed), or has only the seed of an nkey. No secret is ever shown.
"""

import base64
import binascii
import re
import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from hocket.errors import Usage
from hocket.kernel.keys import KEY_BYTES, SigningKey

SCHEMES = ("nats", "tls")
SERVERS_MAX = 16
FILE_BYTES_MAX = 65_536

_JWT = re.compile(r"-----BEGIN NATS USER JWT-----\s+(\S+)\s+-+END NATS USER JWT-+")
_SEED = re.compile(r"\bSU[A-Z2-7]{56}\b")
_USER = 20 << 3
_CHECKSUM_BYTES = 2


class Nkey:
    """A user's key. Raises ValueError if the seed is not one."""

    def __init__(self, seed: str) -> None:
        try:
            data = base64.b32decode(seed + "=" * (-len(seed) % 8))
        except binascii.Error as error:
            raise ValueError(f"not a seed: {error}") from None
        body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if len(body) != 2 + KEY_BYTES or _checksum(body) != checksum:
            raise ValueError("not a seed: it is incomplete or mistyped")
        self._key = SigningKey(body[2:])
        public = bytes((_USER,)) + self._key.public
        self.public = base64.b32encode(public + _checksum(public)).decode().rstrip("=")

    def signature(self, nonce: str) -> bytes:
        return base64.b64encode(self._key.sign(nonce.encode()))

    def __repr__(self) -> str:
        return f"Nkey({self.public})"


class NatsAccess(NamedTuple):
    """`jwt` is empty for a plain nkey. With `ca`, a file, TLS trusts that authority and no other."""

    key: Nkey | None = None
    jwt: str = ""
    ca: Path | None = None
    needs_tls: bool = False

    def tls(self) -> ssl.SSLContext | None:
        """None for the system's authorities. The client reads those only when a server wants TLS: reading them takes
        longer than everything else about a connection.
        """
        return None if self.ca is None else ssl.create_default_context(cafile=str(self.ca))


def read_access(servers: list[str], credentials: Path | None, ca: Path | None) -> NatsAccess:
    """Raises Usage if a file cannot be used."""
    needs_tls = ca is not None or any(urlsplit(each).scheme == "tls" for each in servers)
    if ca is not None:
        try:
            ssl.create_default_context(cafile=str(ca))
        except OSError as error:
            raise Usage(f"cannot read the certificates in {ca}: {error.strerror or error}") from None
    if credentials is None:
        return NatsAccess(ca=ca, needs_tls=needs_tls)
    try:
        with credentials.open("rb") as file:
            text = file.read(FILE_BYTES_MAX).decode()
        found, jwt = _SEED.search(text), _JWT.search(text)
        if found is None:
            raise ValueError("it has no seed of a user's key")
        return NatsAccess(Nkey(found[0]), jwt[1] if jwt else "", ca, needs_tls)
    except OSError as error:
        raise Usage(f"cannot read the credentials {credentials}: {error.strerror}") from None
    except ValueError as error:
        # Not the error of the decoder: it would repeat a part of the file.
        why = "it is not text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise Usage(f"bad credentials in {credentials}: {why}") from None


def read_servers(text: str) -> list[str]:
    """The servers in a list with commas, like `nats://a:4222,nats://b:4222`. Raises Usage, which repeats no secret."""
    servers = [each.strip() for each in text.split(",") if each.strip()]
    if not servers or len(servers) > SERVERS_MAX:
        raise Usage(f"give 1 to {SERVERS_MAX} addresses, like nats://host:4222")
    for each in servers:
        try:
            parts = urlsplit(each)
            is_good = parts.scheme in SCHEMES and parts.hostname and parts.path in ("", "/") and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good or any(not char.isprintable() or char.isspace() for char in each) or "?" in each or "#" in each:
            raise Usage(f"bad address {shown(each)!r}; write nats://host:4222, or tls://host:4222")
    return servers


def shown(server: str) -> str:
    """An address without its user and password."""
    before, at, after = server.rpartition("@")
    scheme, mark, _ = before.partition("://")
    return f"{scheme if mark else ''}{mark}…@{after}" if at else server


def _checksum(data: bytes) -> bytes:
    """CRC-16/XMODEM, as nkeys have it."""
    return binascii.crc_hqx(data, 0).to_bytes(_CHECKSUM_BYTES, "little")
