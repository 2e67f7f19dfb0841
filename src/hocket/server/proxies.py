"""Which callers are reverse proxies that the operator trusts, and what is believed of their headers: the address of the
caller behind them, and no other.
"""

from collections.abc import Collection
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from hocket.errors import Usage
from hocket.server.connections import address_of

# A chain of proxies is read this far.
HOPS_MAX = 16
BASE_PATH_CHARS_MAX = 200


class TrustedProxies:
    """`networks` are addresses or networks such as 10.0.0.0/8. Raises Usage for anything else."""

    def __init__(self, networks: Collection[str] = ()) -> None:
        self._networks = [_network(each) for each in networks]

    def has(self, host: str) -> bool:
        if not self._networks:
            return False
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in each for each in self._networks)

    def caller(self, host: str, forwarded: str) -> tuple[str, bool]:
        """The address of a caller that is connected from `host`, and whether many callers share it. Each proxy adds the
        address that it sees to the end of the header; what stands before the last one that is no proxy of ours may be
        made up.
        """
        if not self.has(host):
            return address_of(host), False
        named = ""
        for each in [each.strip() for each in forwarded.split(",")[-HOPS_MAX:]][::-1]:
            named = each or named
            if not self.has(each):
                break
        return (address_of(named), False) if named else (address_of(host), True)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise Usage(
            f"{text!r} is not the IP address of a proxy or a network of them; write it like 127.0.0.1 or 10.0.0.0/8"
        ) from None


def checked_base_path(text: str) -> str:
    """A base path without the slash at its end; empty for none."""
    path = text.rstrip("/")
    is_good = all(
        part
        and part.isascii()
        and part.replace("-", "a").replace("_", "a").replace(".", "a").isalnum()
        and part not in (".", "..")
        for part in path.split("/")[1:]
    )
    if path and (not path.startswith("/") or not is_good or len(path) > BASE_PATH_CHARS_MAX):
        raise Usage(
            f"bad base path {text!r}; write it like /hocket, with letters, digits, dots, - and _ between slashes"
        )
    return path


def without_base(path: str, base: str) -> str:
    """The path behind a base path; one that does not begin with it is as the proxy sent it."""
    if not base or not path.startswith(base):
        return path
    rest = path[len(base) :]
    return "/" if not rest else rest if rest.startswith("/") else path
