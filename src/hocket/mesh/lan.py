"""Peers on the local network, by zeroconf: a server announces itself if asked to, and others can find it. A server that
is found is not trusted for it; it is only an address to try.
"""

import asyncio
import socket
from typing import NamedTuple

from zeroconf import ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from hocket.errors import Unreachable
from hocket.kernel.ids import content_hash, node_text

SERVICE = "_hocket._tcp.local."
FIND_S = 3.0
FOUND_MAX = 256
_INFO_MS = 1_500


class Found(NamedTuple):
    """An address, the node id that it claims, and whether it belongs to this node's user."""

    address: str
    node: str
    is_ours: bool


def _mark(user: str) -> str:
    """A mark that tells nodes of one user from others without naming the user."""
    return content_hash(user.encode()).hex()[:16]


class Announcement:
    """Announces a server on the local network until it is closed."""

    def __init__(self, node: int, user: str, scheme: str, hosts: list[str], port: int) -> None:
        self._info = AsyncServiceInfo(
            SERVICE,
            f"{node_text(node)}.{SERVICE}",
            addresses=[socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host) for host in hosts],
            port=port,
            properties={"node": node_text(node), "mesh": _mark(user), "scheme": scheme},
            server=f"hocket-{node_text(node)}.local.",
        )
        self._zeroconf: AsyncZeroconf | None = None

    async def open(self) -> None:
        try:
            self._zeroconf = AsyncZeroconf()
            await self._zeroconf.async_register_service(self._info, allow_name_change=True)
        except OSError as error:
            raise Unreachable(f"cannot announce on the local network: {error.strerror or error}") from error

    async def close(self) -> None:
        if self._zeroconf is not None:
            await self._zeroconf.async_unregister_all_services()
            await self._zeroconf.async_close()


async def find(user: str, seconds: float = FIND_S) -> list[Found]:
    """The servers that announce themselves within that time."""
    names: set[str] = set()

    def heard(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is not ServiceStateChange.Removed and len(names) < FOUND_MAX:
            names.add(name)

    try:
        zeroconf = AsyncZeroconf()
    except OSError as error:
        raise Unreachable(f"cannot search the local network: {error.strerror or error}") from error
    try:
        browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[heard])
        await asyncio.sleep(seconds)
        await browser.async_cancel()
        infos = [AsyncServiceInfo(SERVICE, name) for name in sorted(names)]
        known = await asyncio.gather(*(info.async_request(zeroconf.zeroconf, _INFO_MS) for info in infos))
        return [found for info, is_known in zip(infos, known, strict=True) if is_known for found in _found(info, user)]
    finally:
        await zeroconf.async_close()


def _found(info: AsyncServiceInfo, user: str) -> list[Found]:
    said = {
        key.decode("ascii", "replace"): (value or b"").decode("ascii", "replace")
        for key, value in info.properties.items()
    }
    scheme = "https" if said.get("scheme") == "https" else "http"
    hosts = [f"[{host}]" if ":" in host else host for host in info.parsed_addresses()]
    node = said.get("node", "")[:16]
    return [Found(f"{scheme}://{host}:{info.port}", node, said.get("mesh") == _mark(user)) for host in hosts]
