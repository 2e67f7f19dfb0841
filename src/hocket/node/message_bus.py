"""The messages of one node: signed with its key, believed from the members of its mesh. `open_message_bus` opens the
bus that the settings name. A process with a server notes its state in a file beside an OS lock, for `hocket status`.

The settings say which servers carry the messages: `--bus`, else $HOCKET_BUS, else `url` in the table [bus] of the
home's config.toml. Without any of them, messages stay on this machine. Credentials are in a file, and so are the
authorities that TLS trusts.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from hocket.bus.envelope import LIFE_MS
from hocket.bus.messages import MessageBus, cluster_root
from hocket.bus.nats_access import NatsAccess, read_access, read_servers, shown
from hocket.bus.process_messages import ProcessMessages
from hocket.bus.signed import SignedMessages
from hocket.cancelling import end_tasks
from hocket.errors import StoreError, Usage
from hocket.events import Emit
from hocket.families.access import NodeAccess
from hocket.kernel.authority import Standing
from hocket.kernel.keys import SigningKey
from hocket.log.permissions import Permissions
from hocket.node.home import Home, configured_table, exposure
from hocket.node.running import BusNote, RunningBus
from hocket.node.variables import BUS, BUS_CA, BUS_CREDENTIALS, given
from hocket.store import Session
from hocket.work.environment import Environment

# How often the members are read again. An unknown author has them read at once, but not more often than that.
REFRESH_S = 5.0
UNKNOWN_S = 1.0

_URL, _CREDENTIALS, _CA = "url", "credentials", "ca"
_VARIABLES = {_URL: BUS, _CREDENTIALS: BUS_CREDENTIALS, _CA: BUS_CA}


class BusSettings(NamedTuple):
    servers: list[str]
    access: NatsAccess

    def __str__(self) -> str:
        return ",".join(map(shown, self.servers))


def bus_settings(home: Home, url: str | None = None) -> BusSettings | None:
    """Raises Usage, which names the setting and repeats no secret."""
    table = _configured(home.configuration)
    chosen = {key: given(variable) or table.get(key) for key, variable in _VARIABLES.items()}
    text = url or chosen[_URL]
    if text is None:
        return None
    where = "--bus" if url else BUS if given(BUS) else f"bus.url in {home.configuration}"
    try:
        servers = read_servers(text)
    except Usage as error:
        raise Usage(f"bad {where}: {error}") from None
    credentials, ca = (chosen[key] and Path(str(chosen[key])).expanduser() for key in (_CREDENTIALS, _CA))
    if credentials and credentials.is_file() and (exposed := exposure(credentials)):
        raise Usage(exposed)
    return BusSettings(servers, read_access(servers, credentials or None, ca or None))


def credentials_path(home: Home) -> Path | None:
    path = given(BUS_CREDENTIALS) or _configured(home.configuration).get(_CREDENTIALS)
    return None if path is None else Path(path).expanduser()


def _configured(path: Path) -> dict[str, str]:
    table = configured_table(path, "bus", _VARIABLES)
    if not all(isinstance(value, str) for value in table.values()):
        raise Usage(f'{path}: bus must be a table of texts, like [bus] with url = "nats://host:4222"')
    return table


class NodeMessages(SignedMessages):
    """Open it with `open_message_bus`, or with `NodeMessages.open` over any bus. Close it when done."""

    def __init__(
        self,
        node: NodeAccess,
        messages: MessageBus,
        key: SigningKey,
        environment: Environment,
        processes: Path | None = None,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__(messages, key, node.log.user, self._known_key, environment.physical_ms, randomness=randomness)
        self._node = node
        self._keys: dict[int, bytes] = {}
        self._is_wanted = asyncio.Event()
        self._note_file = None if processes is None else BusNote(processes)
        self._tending: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        node: NodeAccess,
        messages: MessageBus,
        key: SigningKey,
        environment: Environment,
        processes: Path | None = None,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> "NodeMessages":
        made = cls(node, messages, key, environment, processes, randomness)
        await made._refresh()
        made._tending = asyncio.create_task(made._tend())
        return made

    @property
    def is_local(self) -> bool:
        """Whether its messages stay on this machine unless a relay carries them."""
        return isinstance(self.messages, ProcessMessages)

    async def close(self) -> None:
        if self._tending is not None:
            await end_tasks([self._tending])
        await super().close()
        if self._note_file is not None:
            self._note_file.close()

    def _known_key(self, node: int) -> bytes | None:
        public = self._keys.get(node)
        if public is None:
            self._is_wanted.set()
        return public

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(UNKNOWN_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S - UNKNOWN_S):
                    await self._is_wanted.wait()
            self._is_wanted.clear()
            await self._refresh()

    async def _refresh(self) -> None:
        log, now_ms = self._node.log, self._now_ms()

        def look(session: Session) -> tuple[dict[int, bytes], int]:
            permissions = log.permissions(session)
            extensions = permissions.rules.extensions
            return member_keys(permissions, now_ms), LIFE_MS if extensions is None else extensions.skew_ms

        with suppress(StoreError):  # then the members are those of the last time
            self._keys, skew_ms = await self._node.peek(look)
            self._life_ms = max(LIFE_MS, skew_ms)
        self._note()

    def _note(self) -> None:
        if self._note_file is not None:
            what, is_connected, since_ms, detail, keeps, lost = msgspec.structs.astuple(self.state)
            refused = {reason.value: count for reason, count in sorted(self.counts.items())}
            self._note_file.write(RunningBus(os.getpid(), what, is_connected, since_ms, detail, keeps, lost, refused))


async def open_message_bus(
    node: NodeAccess, home: Home, settings: BusSettings | None, environment: Environment, emit: Emit
) -> NodeMessages:
    """With settings, over their servers; without, between the processes of this home."""
    messages: MessageBus
    if settings is None:
        messages = ProcessMessages(home.messages, emit)
    else:
        try:
            from hocket.bus.nats_messages import NatsMessages
        except ImportError as error:
            raise Usage(f"the bus {settings} needs {error.name}; install hocket[nats]") from None
        root = cluster_root(node.log.user)
        messages = NatsMessages(settings.servers, settings.access, root=root, emit=emit)
    processes = None if settings is None else home.processes
    return await NodeMessages.open(node, messages, home.node_key(), environment, processes)


def member_keys(permissions: Permissions, now_ms: int) -> dict[int, bytes]:
    """The keys of the nodes whose messages are believed now."""
    return {
        each.node: each.public
        for each in permissions.delegations
        if each.node not in permissions.forks and permissions.authority.standing(each.node, now_ms) is Standing.ACTIVE
    }
