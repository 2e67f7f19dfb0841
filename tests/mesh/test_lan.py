"""Finding servers on the local network, where it lets itself be looked around on."""

import asyncio
import os

import pytest

from hocket.errors import Unreachable
from hocket.mesh.lan import Announcement, Found, find

OURS, ANOTHERS = "did:key:zOurs", "did:key:zAnothers"
# Others may run the tests on this network.
ONE, OTHER = (int.from_bytes(os.urandom(8), "big") for _ in range(2))


def test_an_announced_server_is_found_and_told_apart():
    async def run() -> list[Found]:
        announcements = [
            Announcement(ONE, OURS, "https", ["127.0.0.1"], 7315),
            Announcement(OTHER, ANOTHERS, "http", ["127.0.0.1"], 7316),
        ]
        try:
            for each in announcements:
                await each.open()
            return await find(OURS, 2.0)
        finally:
            for each in announcements:
                await each.close()

    try:
        found = asyncio.run(run())
    except Unreachable as error:
        pytest.skip(str(error))
    if not found:
        pytest.skip("this machine's network carries no multicast")
    assert set(found) >= {
        Found("https://127.0.0.1:7315", f"{ONE:016x}", True),
        Found("http://127.0.0.1:7316", f"{OTHER:016x}", False),
    }
