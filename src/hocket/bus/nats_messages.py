"""Messages between machines, over NATS servers. Messages go as plain subjects. Announcements go as plain subjects too,
below a prefix of their own that a JetStream stream keeps; a late joiner reads the stream once, and from then on gets
announcements as everyone does. So a server without JetStream, or one that has lost its data, costs only the past. In a
cluster three servers keep the stream, and one of them can be lost.

This keeps one connection. When it ends, a task connects again to any of the servers, behind a circuit breaker, and
subscribes again. Until then messages are lost and counted: a hint that waits is of no use. The same holds for a server
that does not read what is sent to it.
"""

import asyncio
import hashlib
import itertools
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import api

from hocket.breakers import CircuitBreaker
from hocket.bus.messages import (
    ANNOUNCED_MAX,
    ANNOUNCED_S_MAX,
    CAPACITY,
    BoundedQueue,
    BusMessage,
    MessagesState,
    ask,
    check_message,
)
from hocket.bus.nats_access import NatsAccess, shown
from hocket.cancelling import cancellable, end_tasks
from hocket.errors import CircuitOpen
from hocket.events import Emit, ignore
from hocket.events.nodes import BusAway, BusConnected
from hocket.kernel.retrying import RetryPolicy

# Below this prefix are the subjects of announcements.
KEPT = "kept"
ANNOUNCED_BYTES_MAX = 64 * 1024 * 1024
CONNECT_S = 5.0
ANSWER_S = 5.0
# A server that does not answer a ping for this long is away. There is one ping for each interval.
PING_S = 5.0
CLOSE_S = 1.0
# What may wait for a server that does not read, before messages are lost.
PENDING_BYTES_MAX = 4 * 1024 * 1024
# The same for what has been received, and is not in its queue yet.
RECEIVED_MAX = 65_536
RECEIVED_BYTES_MAX = 16 * 1024 * 1024
FETCHED_AT_ONCE = 256
RETRIES = RetryPolicy(0.2, 8.0)

# How many servers of a cluster keep a stream.
REPLICAS = 3
# A cluster that kept no announcements is asked again after so many pings.
PINGS_WITHOUT_STREAM = 6

# Subjects of announcements, of the server, and of the client.
_THEIRS = (f"{KEPT}.", "$", "_INBOX.")
_FAILURES = (nats.errors.Error, OSError, asyncio.TimeoutError, TimeoutError)


class NatsMessages:
    """`root` is the first part of every subject here; each root has a stream of its own. Make it on the event loop that
    uses it: it begins to connect at once.
    """

    def __init__(
        self,
        servers: Sequence[str],
        access: NatsAccess | None = None,
        *,
        root: str = "",
        emit: Emit = ignore,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        chance: random.Random | None = None,
        ping_s: float = PING_S,
    ) -> None:
        self._servers, self._access = list(servers), access or NatsAccess()
        self._found: list[str] = []
        self._root, self._emit, self._wall, self._ping_s = root, emit, wall, ping_s
        self._chance = chance or random.Random()
        self._what = ",".join(map(shown, servers))
        self.breaker = CircuitBreaker(f"the bus {self._what}", monotonic, emit)
        self._client: NatsClient | None = None
        self._subscriptions: dict[BoundedQueue, _NatsSubscription] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._state = MessagesState(self._what, False, int(wall() * 1000), "connecting", keeps=False)
        self._lost = 0
        self.changed = asyncio.Event()
        """Set and cleared whenever the state has changed."""
        self._keeping = asyncio.create_task(self._stay_connected())

    @property
    def state(self) -> MessagesState:
        state = self._state
        return MessagesState(state.what, state.is_connected, state.since_ms, state.detail, state.keeps, self._lost)

    # What callers do.

    async def publish(self, subject: str, data: bytes, *, reply_to: str = "") -> None:
        await self._send(check_message(BusMessage(subject, data, reply_to)))

    async def announce(self, subject: str, data: bytes) -> None:
        message = check_message(BusMessage(subject, data))
        await self._send(message._replace(subject=f"{KEPT}.{subject}"))

    async def subscribe(self, pattern: str, *, capacity: int = CAPACITY, since_s: float = 0.0) -> BoundedQueue:
        queue = BoundedQueue(pattern, capacity, self._emit, self._unsubscribed)
        made = self._subscriptions[queue] = _NatsSubscription(queue, min(since_s, ANNOUNCED_S_MAX))
        client = self._client
        if client is not None:
            try:
                await made.attach(client)
                await client.answered()
                await cancellable(self._give_past(client, made, made.since_s))
            except _FAILURES:
                pass  # the connection has ended; the next one subscribes
            except BaseException:
                queue.close()
                raise
        return queue

    async def request(self, subject: str, data: bytes, timeout_s: float) -> BusMessage | None:
        return await ask(
            self, f"{self._root or 'hocket'}.reply.{self._chance.randbytes(16).hex()}", subject, data, timeout_s
        )

    async def close(self) -> None:
        await end_tasks([self._keeping])
        for queue in list(self._subscriptions):
            queue.close()
        client, self._client = self._client, None
        if client is not None:
            with suppress(*_FAILURES):
                await client.answered()
            await client.end()
        await end_tasks(self._background)

    @property
    def root(self) -> str:
        return self._root

    @property
    def client(self) -> "NatsClient | None":
        """The connection, while there is one."""
        return self._client

    async def _send(self, message: BusMessage) -> None:
        client = self._client
        if client is None or client.pending_data_size + len(message.data) > PENDING_BYTES_MAX:
            self._lost += 1
            return
        try:
            await client.publish(message.subject, message.data, message.reply_to)
        except _FAILURES as error:
            self._lost += 1
            if isinstance(error, nats.errors.MaxPayloadError):
                self._note(detail=f"the server takes messages of up to {client.max_payload} bytes only")

    def _unsubscribed(self, queue: BoundedQueue) -> None:
        made = self._subscriptions.pop(queue)
        self._beside(made.detach())

    def _beside(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # The connection.

    async def _stay_connected(self) -> None:
        failures, away_since = 0, self._wall()
        while True:
            try:
                call = self.breaker.admit()
            except CircuitOpen as refused:
                await asyncio.sleep(min(refused.wait_s, RETRIES.cap_s))
                continue
            client = NatsClient(self._access, self._failed)
            try:
                not_kept = await self._connect(client, self._wall() - away_since)
            except BaseException as error:
                self._client = None
                await client.end()
                if not isinstance(error, _FAILURES):
                    self.breaker.abandoned(call)
                    raise
                self.breaker.failed(call, client.error or error)
                failures += 1
                self._set_away(client.error or error)
                await asyncio.sleep(RETRIES.delay_s(failures, self._chance.random()))
                continue
            self.breaker.succeeded(call)
            failures = 0
            self._note(True, not_kept if client.is_clustered else "", keeps=not not_kept)
            self._emit(BusConnected(self._what, not not_kept))
            await self._watch(client, away_since)
            self._client, away_since = None, self._wall()
            self._set_away(client.error or nats.errors.ConnectionClosedError())
            await client.end()

    async def _connect(self, client: "NatsClient", away_s: float) -> str:
        """Connects and subscribes. Returns why announcements are not kept; nothing if they are."""
        async with asyncio.timeout(2 * CONNECT_S):
            await client.begin([*self._servers, *self._found])
        # From here on a new subscription attaches itself.
        self._client = client
        known = {*self._servers, *self._found}
        self._found += [each for each in client.discovered() if each not in known][: len(known)]
        for each in list(self._subscriptions.values()):
            await each.attach(client)
        await client.answered()
        return await self._keep(client, away_s)

    async def _watch(self, client: "NatsClient", away_since: float) -> None:
        """Returns when the connection has ended, or the server does not answer. Looks meanwhile whether a cluster that
        had no quorum has one.
        """
        for pings in itertools.count(1):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._ping_s):
                    await client.is_over.wait()
                    return
            with suppress(*_FAILURES):
                await client.answered(self._ping_s)
            if client.is_over.is_set():
                return
            if client.is_clustered and not self._state.keeps and pings % PINGS_WITHOUT_STREAM == 0:
                not_kept = await self._keep(client, self._wall() - away_since)
                self._note(True, not_kept, keeps=not not_kept)

    def _set_away(self, error: BaseException) -> None:
        detail = _described(error)
        if self._state.is_connected or self._state.detail != detail:
            self._emit(BusAway(self._what, detail))
        self._note(False, detail)

    def _failed(self, error: BaseException) -> None:
        """The server or the client reports something that does not end the connection."""
        if isinstance(error, nats.errors.SlowConsumerError):
            for queue, each in self._subscriptions.items():
                if error.sub in each.live:
                    queue.drop()
        elif self._state.is_connected and "permissions violation" in str(error).lower():
            self._note(detail=_described(error))

    def _note(self, is_connected: bool | None = None, detail: str = "", *, keeps: bool | None = None) -> None:
        before = self._state
        if is_connected is None:
            is_connected, keeps = before.is_connected, before.keeps
        since_ms = before.since_ms if is_connected is before.is_connected else int(self._wall() * 1000)
        self._state = MessagesState(self._what, is_connected, since_ms, detail, bool(keeps))
        self.changed.set()
        self.changed.clear()

    # Announcements.

    async def _keep(self, client: "NatsClient", away_s: float) -> str:
        """Lets the server keep announcements from now on, and gives those that were missed. Returns why it keeps none;
        nothing if it does.
        """
        subjects = f"{KEPT}.{self._root}.>" if self._root else f"{KEPT}.>"
        config = api.StreamConfig(
            name=self._stream,
            subjects=[subjects],
            max_age=ANNOUNCED_S_MAX,
            max_msgs=ANNOUNCED_MAX,
            max_bytes=ANNOUNCED_BYTES_MAX,
            discard=api.DiscardPolicy.OLD,
        )
        try:
            await make_stream(client, config, ANSWER_S)
        except _FAILURES as error:
            return f"it keeps no announcements: {_described(error)}"
        for each in list(self._subscriptions.values()):
            # Once more what came just before the connection ended, and everything since.
            since_s = each.since_s if not each.has_past else min(each.since_s, away_s + 2 * self._ping_s)
            await self._give_past(client, each, since_s)
        return ""

    @property
    def _stream(self) -> str:
        return f"hocket-{hashlib.sha256(self._root.encode()).hexdigest()[:16]}"

    async def _give_past(self, client: "NatsClient", made: "_NatsSubscription", since_s: float) -> None:
        """Puts kept announcements into the queue of a subscription. If that fails, the past is missing there."""
        if since_s <= 0:
            return
        manager = client.jetstream(timeout=ANSWER_S)
        start = datetime.fromtimestamp(self._wall() - since_s, UTC)
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_TIME,
            opt_start_time=start,
            ack_policy=api.AckPolicy.NONE,
            inactive_threshold=10 * ANSWER_S,
            mem_storage=True,
        )
        with suppress(*_FAILURES):
            past = await manager.pull_subscribe(f"{KEPT}.{made.queue.pattern}", stream=self._stream, config=config)
            try:
                left = (await past.consumer_info()).num_pending or 0
                while left > 0:
                    got = await past.fetch(min(left, FETCHED_AT_ONCE), ANSWER_S)
                    for each in got:
                        made.queue.put(_announcement(each))
                    left -= len(got)
                made.has_past = True
            finally:
                await past.unsubscribe()


async def make_stream(client: "NatsClient", config: api.StreamConfig, timeout_s: float) -> None:
    """Makes a stream, or gives it this configuration. In a cluster three servers keep it; one does where there are
    fewer.
    """
    manager = client.jsm(timeout=timeout_s)
    failure: nats.js.errors.APIError | None = None
    for replicas in (REPLICAS, 1) if client.is_clustered else (1,):
        wanted = config.evolve(num_replicas=replicas)
        for attempt in (manager.add_stream, manager.update_stream):
            try:
                await attempt(wanted)
                return
            except nats.js.errors.APIError as error:
                failure = error
    assert failure is not None
    raise failure


class _NatsSubscription:
    """One subscription, over all connections. `has_past` is whether its queue has got kept announcements."""

    def __init__(self, queue: BoundedQueue, since_s: float) -> None:
        self.queue, self.since_s = queue, since_s
        self.live: list[Subscription] = []
        self.has_past = False
        self._client: NatsClient | None = None

    async def attach(self, client: "NatsClient") -> None:
        if self._client is client:
            return
        self._client = client
        self.live = [
            await client.subscribe(
                pattern, cb=received, pending_msgs_limit=RECEIVED_MAX, pending_bytes_limit=RECEIVED_BYTES_MAX
            )
            for pattern, received in ((self.queue.pattern, self._plain), (f"{KEPT}.{self.queue.pattern}", self._kept))
        ]
        if self.queue.is_closed:
            await self.detach()

    async def detach(self) -> None:
        for each in self.live:
            with suppress(*_FAILURES):
                await each.unsubscribe()

    async def _plain(self, received: Msg) -> None:
        is_theirs = received.subject.startswith(_THEIRS)  # a pattern that begins with a wildcard matches these, too
        says_nobody_listens = (received.headers or {}).get(api.Header.STATUS)
        if not is_theirs and not says_nobody_listens:
            self.queue.put(BusMessage(received.subject, received.data, received.reply))

    async def _kept(self, received: Msg) -> None:
        self.queue.put(_announcement(received))


class NatsClient(Client):
    """One connection, which does not come back by itself. `error` is why it failed or ended."""

    def __init__(self, access: NatsAccess, failed: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._access, self._failed = access, failed
        self.is_over = asyncio.Event()
        self.error: BaseException | None = None
        self._pings: set[asyncio.Task[BaseException | None]] = set()

    async def begin(self, servers: list[str]) -> None:
        signing: dict[str, Any] = {}
        if self._access.key is not None:
            signing["signature_cb"] = self._access.key.signature
            if self._access.jwt:
                signing["user_jwt_cb"] = self._access.jwt.encode
            self._public_nkey = self._access.key.public
        await self.connect(
            servers,
            error_cb=self._erred,
            closed_cb=self._ended,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=CONNECT_S,  # type: ignore[arg-type]
            ping_interval=2**30,
            tls=self._access.tls(),
            pending_size=4 * PENDING_BYTES_MAX,
            flush_timeout=ANSWER_S,
            name="hocket",
            **signing,
        )

    @property
    def is_clustered(self) -> bool:
        return bool(self._server_info.get("cluster"))

    def discovered(self) -> list[str]:
        return [each.geturl() for each in self.discovered_servers]

    async def answered(self, timeout_s: float = ANSWER_S) -> None:
        """Waits until the server has read what was sent. A server that does not answer in time is away. A caller that
        is cancelled does not end the ping, since the client cannot read a reply that nobody waits for.
        """
        ping = asyncio.create_task(self._ping_server(timeout_s))
        self._pings.add(ping)
        ping.add_done_callback(self._pings.discard)
        try:
            error = await asyncio.shield(ping)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not ping.cancelled() or caller is None or caller.cancelling():
                raise
            error = nats.errors.ConnectionClosedError()  # `end` has cancelled the ping, and not the caller
        if error is not None:
            raise error

    async def _ping_server(self, timeout_s: float) -> BaseException | None:
        try:
            async with asyncio.timeout(timeout_s):
                # A ping overtakes what still waits here. When it is answered, all of that has left.
                for _ in range(2):
                    await self.flush(2 * timeout_s)  # type: ignore[arg-type]
        except _FAILURES:
            self.error = self.error or TimeoutError(f"no answer for {timeout_s:g} seconds")
            self.is_over.set()
            return self.error
        return None

    async def end(self) -> None:
        """Closes the connection, whether the server answers or not."""
        transport = self._transport
        for ping in self._pings:
            ping.cancel()
        with suppress(*_FAILURES):
            async with asyncio.timeout(CLOSE_S):
                await self.close()
        for name in ("_io_writer", "_bare_io_writer"):
            if (writer := getattr(transport, name, None)) is not None:
                writer.transport.abort()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # Checked before the credentials are sent: an attacker in between could say that there is no TLS.
        if initial_connection and self._access.needs_tls and not info.get("tls_required"):
            raise nats.errors.Error("the server offers no TLS")
        await super()._process_info(info, initial_connection)

    async def _erred(self, error: Exception) -> None:
        # A server that refuses a client says why and resets the connection: what fails while it closes is no reason.
        if not self.is_connected and not self.is_closed:
            self.error = error
        self._failed(error)

    async def _ended(self) -> None:
        self.error = self.error or self.last_error
        self.is_over.set()


def _announcement(received: Msg) -> BusMessage:
    return BusMessage(received.subject.removeprefix(f"{KEPT}."), received.data)


def _described(error: BaseException) -> str:
    return str(error).removeprefix("nats: ").strip("'") or type(error).__name__
