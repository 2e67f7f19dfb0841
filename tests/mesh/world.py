"""Real nodes for the tests of the mesh: homes on disk, real keys, a real server on loopback and a real client. Nothing
sleeps for luck: whoever waits, waits for something, with a deadline.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from hocket.events import sentences
from hocket.extensions.tempo.window_secret import window_tokens
from hocket.families.jobs import requests as jobs
from hocket.kernel.authority import revoke_root
from hocket.kernel.clock import Hlc
from hocket.kernel.frontier import Frontier, frontier_text
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.jws import make_bearer, read_bearer
from hocket.kernel.keys import SigningKey
from hocket.kernel.mesh_rules import rules_hash
from hocket.kernel.ops import NO_ID, Op, bind, decode, encode, link_to, read_sequence, sign
from hocket.kernel.ucan import NO_QUOTA, Capability, Quota, issue
from hocket.kernel.vocabulary import CreateArtifact, DelegateUcan
from hocket.log.rebuild import roster_digest
from hocket.mesh import enrolment, peers, wire
from hocket.mesh.loop import SyncLoop
from hocket.mesh.services import MeshServices
from hocket.mesh.wire import Reply, Request
from hocket.node.node import Node
from hocket.node.opening import join
from hocket.node.runtime import Runtime
from hocket.server.running import Server
from hocket.work.handlers import kind

PATIENCE_S = 60.0

READ = ("Job", "Artifact", "Registration", "Mesh")
WORKER = (
    *(Capability("Job", action, {}) for action in ("Schedule", "Claim", "Complete")),
    Capability("Artifact", "Write", {}),
    *(Capability(resource, "Read", {}) for resource in READ),
)


def _drafts(count: int, name: str, size: int) -> list[jobs.Draft]:
    return [kind(name).draft({"n": n, "text": "x" * size}) for n in range(count)]


class Place:
    """One node with everything that it has to do with others."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.log = runtime, runtime.log
        self.node = Node(runtime)
        self.key = runtime.home.node_key()
        self.notices: list[str] = []
        self.services = MeshServices(
            self.node,
            self.key,
            self.node.environment,
            runtime.home.processes,
            sentences(self.notices.append),
            runtime.blobs,
            runtime.output,
            window_tokens(runtime.home, runtime.log.user),
        )
        self.gate = self.services.gate()
        self.transport, self.exchanges = self.services.transport, self.services.exchanges
        self.server: Server | None = None
        self._syncing: asyncio.Task[None] | None = None

    @property
    def id(self) -> int:
        return self.log.node

    @property
    def address(self) -> str:
        assert self.server is not None
        return self.server.address

    async def serve(self, **options: Any) -> None:
        self.server = Server(self.gate, **options)
        await self.server.start()

    async def stop_serving(self) -> None:
        if self.server is not None:
            await self.server.stop()
            self.server = None

    def keep_in_touch(self) -> SyncLoop:
        self.services.exchanges = self.exchanges
        loop = self.services.loop()
        self._syncing = asyncio.create_task(loop.run())
        return loop

    async def close(self) -> None:
        if self._syncing is not None:
            self._syncing.cancel()
            await asyncio.wait([self._syncing])
        await self.stop_serving()
        await self.services.close()
        await self.node.close()

    def befriend(self, address: str, node: int | None = None) -> None:
        with self.runtime.store.write() as session:
            peers.add(session, address, self.log.physical(), node)

    def peer(self, address: str) -> Any:
        with self.runtime.store.read() as session:
            return peers.find(session, address)

    def digest(self) -> bytes:
        with self.runtime.read() as session:
            return roster_digest(session)

    def count(self) -> int:
        with self.runtime.store.read() as session:
            return session.head().seq

    def ids(self) -> set[bytes]:
        with self.runtime.store.read() as session:
            return {row.id for row in session.ops_after(0, 1_000_000)}

    def submit(self, count: int, name: str = "test.kind", size: int = 20) -> None:
        """Each job is an entry of the log by itself, though one transaction writes them."""
        self.log.run(lambda tx: [jobs.submit(tx, [draft]) for draft in _drafts(count, name, size)])

    def submit_bundle(self, count: int, name: str = "test.kind", size: int = 20) -> None:
        """The jobs are one entry of the log."""
        self.runtime.submit(_drafts(count, name, size))

    def headers(self, audience: str | int, **changes: Any) -> dict[str, str]:
        """Headers as this node would send them, unless changed."""
        key = changes.get("key", self.key)
        now = changes.get("now", self.log.physical() // 1000)
        nonce = (
            changes.get("nonce")
            or content_hash(repr(object()).encode() + str(asyncio.get_running_loop().time()).encode()).hex()
        )
        token = make_bearer(key, str(audience), now, nonce, changes.get("lifetime", 60))
        return {"authorization": f"Bearer {token}", wire.RULES_HASH: rules_hash(self.log.rules).hex()}

    async def ask(
        self,
        other: "Place",
        method: str = "GET",
        path: str = wire.OPS,
        query: str = "since=AA",
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """One request to another place's server, over the wire."""
        sent = self.headers(other.id) if headers is None else dict(headers)
        if body and headers is None:
            sent["content-type"] = wire.OCTETS
        return await self.transport.send(other.address, Request(method, path, query, sent, body))


def since(frontier: Frontier, limit: int | None = None) -> str:
    return f"since={frontier_text(frontier)}" + ("" if limit is None else f"&limit={limit}")


@asynccontextmanager
async def world(directory: Path, *names: str) -> AsyncIterator[list[Place]]:
    """Nodes of one user, each with a server; the first one made the user and is the coordinator."""
    async with AsyncExitStack() as stack:
        places: list[Place] = []
        for name in names:
            user_key = None if not places else places[0].runtime.home.path / "user.key"
            place = Place(await asyncio.to_thread(Runtime.init, directory / name, user_key))
            places.append(place)
            stack.push_async_callback(place.close)
            await place.serve()
        yield places


def delegation(owner: Place, public: bytes, grants: tuple[Capability, ...], expires: int | None = None) -> DelegateUcan:
    """A token of the user's, made where the user's key is."""
    token = issue(owner.runtime.home.user_key(), public, grants, owner.log.physical() // 1000 - 60, expires)
    return DelegateUcan(content_hash(token), token)


async def enrolled(directory: Path, owner: Place, grants: tuple[Capability, ...], quota: Quota = NO_QUOTA) -> Place:
    """A node that was invited by the owner and holds these grants."""
    invited = enrolment.invite(owner.log, owner.key, directory.name, grants, addresses=[owner.address], quota=quota)
    loop = asyncio.get_running_loop()

    def send(address: str, request: Request) -> Reply:
        return asyncio.run_coroutine_threadsafe(owner.transport.send(address, request), loop).result()

    return Place(await asyncio.to_thread(join, directory, invited.token, send))


class Guest:
    """A node that is only a key: what it sends is made by hand."""

    def __init__(self, seed: int) -> None:
        self.key = SigningKey(bytes([seed]) * 32)
        self.id = node_id(self.key.public)
        self._count = 0
        self.last = NO_ID

    def op(self, payload: Any, wall: int, logical: int | None = None, after: bytes | None = None) -> bytes:
        """It follows the guest's last op, or the one that is said."""
        self._count += 1
        stamp = Hlc(wall, self._count if logical is None else logical, self.id)
        link = link_to(self.last if after is None else after)
        op, _ = bind(Op(NO_ID, stamp, self.id, (link,), payload))
        self.last = op.id
        return encode(sign(op, self.key))


def resigned(server: Place, caller: int, request: Request, reply: Reply) -> Reply:
    """A reply that was changed on its way, signed again by the server: as if the server had said so itself."""
    asked = read_bearer(request.headers["authorization"].split()[1])
    now_s = server.log.physical() // 1000
    token = make_bearer(server.key, str(caller), now_s, asked.nonce, answer=wire.answer_hash(reply))
    return reply._replace(headers={**reply.headers, wire.NODE: token})


async def until(condition: Callable[[], Any] | Callable[[], Awaitable[Any]], what: str = "it") -> Any:
    """Waits for a condition to become true; gives its value."""
    pause = 0.01
    async with asyncio.timeout(PATIENCE_S):
        while True:
            value = condition()
            if isinstance(value, Awaitable):
                value = await value
            if value:
                return value
            await asyncio.sleep(pause)
            pause = min(0.05, pause * 1.5)


def run(directory: Path, test: Callable[..., Awaitable[None]], *names: str) -> None:
    async def inside() -> None:
        async with world(directory, *(names or ("a", "b"))) as places:
            await test(*places)

    asyncio.run(inside())


def introduced(a: Place, guest: Guest, grants: tuple[Capability, ...] = WORKER, **bounds: Any) -> bytes:
    """Lets a guest in: its delegation is on the log, and so its key is known. Gives the token's hash."""
    payload = delegation(a, guest.key.public, grants, **bounds)
    a.log.run(lambda tx: tx.author(payload))
    return payload.ucan_cid


def revoke(a: Place, cid: bytes) -> None:
    """By the user's key, which issued it."""
    word = revoke_root(a.runtime.home.user_key(), cid)
    assert isinstance(a.log.run(lambda tx: tx.author(word)), Op)


def joined(a: Place, guest: Guest, grants: tuple[Capability, ...] = WORKER) -> None:
    """Lets a guest in as one that has joined: its delegation is its own first op, so that others of it are taken in."""
    raw = guest.op(delegation(a, guest.key.public, grants), a.log.physical() - 30_000)
    assert a.log.admit([(raw, decode(raw))]).appended == 1


def received(reply: Reply) -> list[Op]:
    assert reply.status == 200
    return [op for _, op in read_sequence(reply.body) if isinstance(op, Op)]


async def ask(a: Place, guest: Guest, **request: Any) -> Reply:
    changes = request.pop("changes", {})
    headers = a.headers(a.id, key=guest.key, **changes) | request.pop("headers", {})
    if request.get("body"):
        headers.setdefault("content-type", wire.OCTETS)
    return await a.ask(a, headers={k: v for k, v in headers.items() if v is not None}, **request)


def artifact(artifact_id: bytes, content: bytes) -> CreateArtifact:
    return CreateArtifact(artifact_id, "test.blob", None, (), content_hash(content), content, None, None, len(content))
