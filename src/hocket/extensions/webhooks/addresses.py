"""Where webhooks may go. The owner allows names of hosts and ranges of addresses. A name leads to public addresses
only; one that is private, of this machine or of its link must be in an allowed range. The address is judged when the
connection is made, so a name that resolves to something else by then leads nowhere.
"""

import re
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from hocket.errors import NotAuthorised, Unreachable, Usage

URL_CHARS_MAX = 2_048
PORTS = {"http": 80, "https": 443}

_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*")
# In these, an IPv4 address is hidden, to which a gateway would lead.
_GATEWAYS = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"), IPv6Network("2002::/16"))


class Target(NamedTuple):
    """An address that is called. `path` has the query, too."""

    scheme: str
    host: str
    port: int
    path: str


def read_url(url: str) -> Target:
    """Raises Usage."""
    if not 0 < len(url) <= URL_CHARS_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise Usage(f"a URL has 1 to {URL_CHARS_MAX} printable ASCII characters and no space; encode others with %")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Usage(f"bad URL {url!r}: {error}") from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise Usage(f"bad URL {url!r}: write it like https://hooks.example.com/hocket")
    if parts.username is not None or parts.password is not None or parts.fragment or port == 0:
        raise Usage(f"bad URL {url!r}: leave out user, password and fragment; the signature says who sends")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, parts.hostname.rstrip("."), port or PORTS[parts.scheme], path)


def read_entry(text: str) -> str:
    """An entry of the allow list in its one spelling. Raises Usage."""
    text = text.strip().lower().rstrip(".")
    try:
        return str(ip_network(text)).removesuffix("/32").removesuffix("/128")
    except ValueError:
        # A name whose last part is a number would be read as an address.
        if _NAME.fullmatch(text) and not text.rpartition(".")[2].isdigit():
            return text
    raise Usage(
        f"bad entry {text!r}: give a host, like hooks.example.com or *.example.com, or a range, like 10.1.0.0/16"
    )


class AllowList:
    """What the owner has allowed."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._names: list[str] = []
        self._ranges = []
        for each in entries:
            try:
                self._ranges.append(ip_network(each))
            except ValueError:
                self._names.append(each)

    def check(self, target: Target) -> None:
        """Raises NotAuthorised for a host that cannot be allowed, whatever its name leads to."""
        literal = _literal(target.host)
        if literal is not None and not self._has(literal):
            raise NotAuthorised(f"webhooks may not go to {target.host}; {_how(target.host)}")
        if literal is None and not self._has_name(target.host) and not self._ranges:
            raise NotAuthorised(f"webhooks may not go to the host {target.host}; {_how(target.host)}")

    def refusal(self, host: str, address: str) -> str | None:
        """Why a connection to this address, which the host has now, may not be made."""
        found = _literal(address)
        if found is None:
            return f"{address!r} is no IP address"
        if self._has(found):
            return None
        if not self._has_name(host):
            return f"webhooks may not go to the host {host}; {_how(host)}"
        if not _is_public(found):
            return f"{host} leads to {address}, which is not public; {_how(address)}"
        return None

    def _has(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in each for each in self._ranges)

    def _has_name(self, host: str) -> bool:
        host = host.lower()
        return any(host.endswith(each[1:]) if each.startswith("*.") else host == each for each in self._names)


def connected(target: Target, allowed: AllowList, timeout_s: float) -> socket.socket:
    """A connection to the first address of the target that is allowed. Raises NotAuthorised and Unreachable."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{target.host} has no address: {error}") from None
    refused = ""
    failed = ""
    for family, kind, protocol, _, place in found:
        why = allowed.refusal(target.host, str(place[0]))
        if why is not None:
            refused = why
            continue
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(timeout_s)
            made.connect(place)
            return made
        except OSError as error:
            made.close()
            failed = f"{target.host} port {target.port} cannot be reached: {error}"
    if failed:
        raise Unreachable(failed)
    raise NotAuthorised(refused)


def _how(entry: str) -> str:
    return f"the owner of this node can allow it: `hocket webhook allow {entry}`"


def _literal(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and any(address in each for each in _GATEWAYS):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved
