"""Presence in a store that nodes share: each node writes what it says about itself, and the others read it there. They
need no connection to each other.
"""

import asyncio

from hocket.families.access import NodeAccess
from hocket.families.liveness import BEAT_S
from hocket.work.environment import Environment
from hocket.work.presence import AHEAD_MS, KEPT_MS, own_presence


class SharedPresence:
    def __init__(self, access: NodeAccess, environment: Environment) -> None:
        self._access, self._environment = access, environment

    async def run(self) -> None:
        """Runs until it is cancelled; ends at once if no other node shares the store."""
        while self._access.log.is_shared:
            await self._access.call(self._say)
            await asyncio.sleep(BEAT_S * self._environment.chance.uniform(0.8, 1.0))

    def _say(self) -> None:
        log, environment = self._access.log, self._environment
        with log.store.read() as session:
            own = own_presence(session, environment.liveness, log, environment.hardware)
        with log.store.write() as session:
            session.drop_presence(own.heard_ms - KEPT_MS, own.heard_ms + AHEAD_MS)
            session.put_presence(own.row)
