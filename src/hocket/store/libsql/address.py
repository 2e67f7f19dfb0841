"""Where a libSQL store is: `libsql://host`, which means TLS, `libsql://host:port?tls=0`, `https://host` or
`http://host:port`. The token comes from a variable, or from the parameter `authToken` of an address that is itself in a
variable. It never appears in a message.
"""

import os
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from hocket.errors import Usage
from hocket.store.secrecy import DB_TOKEN, TOKEN_PARAMETER

_PORTS = {"https": 443, "http": 80}
_PARAMETERS = {"tls", TOKEN_PARAMETER}


class ServerAddress(NamedTuple):
    """`path` stands before those of the protocol. `shown` has no token."""

    host: str
    port: int
    is_tls: bool
    path: str
    shown: str
    token: str | None = None

    def is_origin_of(self, url: str) -> bool:
        """Whether the address names a place at this very server."""
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme)
        except ValueError:
            return False
        is_plain = "@" not in parts.netloc and parts.path.isascii() and parts.path.isprintable()
        scheme = "https" if self.is_tls else "http"
        return is_plain and (parts.scheme, parts.hostname, port) == (scheme, self.host, self.port)

    def __repr__(self) -> str:
        return f"ServerAddress({self.shown!r})"


def read_address(url: str) -> ServerAddress:
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        host, port = parts.hostname, parts.port
        if not host or parts.fragment or "@" in parts.netloc or not {name for name, _ in given} <= _PARAMETERS:
            raise ValueError("a part is missing, or is not one of ours")
    except ValueError:
        # The reason would repeat a part of the address, which may be one of the token.
        raise Usage(
            "cannot read the store's address; write libsql://host, libsql://host:port?tls=0, https://host or"
            f" http://host:port, without a user, and put the token into {DB_TOKEN}"
        ) from None
    settings = dict(given)
    tls = settings.get("tls", "0" if parts.scheme == "http" else "1")
    if tls not in ("0", "1") or (parts.scheme != "libsql" and "tls" in settings):
        raise Usage("bad tls in the store's address: it is for libsql://, and is 0 or 1")
    is_tls = tls == "1"
    if parts.scheme == "libsql" and not is_tls and port is None:
        raise Usage("a store's address with tls=0 needs a port: libsql://host:port?tls=0")
    path = parts.path.rstrip("/")
    name = f"[{host}]" if ":" in host else host
    place = name if port is None else f"{name}:{port}"
    shown = f"{parts.scheme}://{place}{path}" + ("?tls=0" if parts.scheme == "libsql" and not is_tls else "")
    token = settings.get(TOKEN_PARAMETER) or os.environ.get(DB_TOKEN, "").strip() or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise Usage(f"bad {DB_TOKEN}: a token has printable ASCII characters only, and no spaces")
    return ServerAddress(host, port or _PORTS["https" if is_tls else "http"], is_tls, path, shown, token)
