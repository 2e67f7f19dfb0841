"""The server side of the exchange: who asks, whether it may, and what it gets. A caller gets a status code, never the
reason; every refusal is counted by reason and reported to the operator. The log decides what an op means; `outgoing`
decides what may leave this node.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from math import ceil

from hocket.bus.hints import OUTPUT, about
from hocket.events import Emit, ignore
from hocket.events.nodes import CallerRefused, NodeForked, OpRefused, OpsCollided
from hocket.families.access import NodeAccess
from hocket.families.blobs import Blobs
from hocket.families.jobs.claiming import accept
from hocket.families.retention.facts import MoveHorizon
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.authority import Standing
from hocket.kernel.capabilities import OURS, knowledge_text, read_knowledge
from hocket.kernel.frontier import Frontier
from hocket.kernel.ids import node_text
from hocket.kernel.jws import Bearer, check_bearer, make_bearer, read_bearer
from hocket.kernel.keys import SigningKey
from hocket.kernel.mesh_rules import rules_hash
from hocket.kernel.ops import Op, read_sequence
from hocket.kernel.postcard import Malformed
from hocket.log import Transaction
from hocket.log.checkpoints import sharing
from hocket.log.lost_past import rewind
from hocket.log.snapshots.own_late import write_late_again
from hocket.mesh import bus_sharing, incoming, peers, presence, wire
from hocket.mesh.bus_sharing import MessageRelay
from hocket.mesh.gate_requests import (
    Caller,
    OpPages,
    RequestCounts,
    RequestRefused,
    Turns,
    UsedTokens,
    asked_page,
    at_once,
    check_type,
    json_reply,
)
from hocket.mesh.hint_stream import HintStreams
from hocket.mesh.incoming import Pushed, recover
from hocket.mesh.outgoing import PeerReader, order_ops
from hocket.mesh.output import AskedOutput, answer_blob, answer_output, keep_output, read_query
from hocket.mesh.quotas import BatchWork, Buckets, Quotas
from hocket.mesh.snapshots.serving import ServedSnapshots, read_snapshot_query
from hocket.mesh.succession import words
from hocket.mesh.succession.serving import NamedPaths, confirmed_soon, is_led
from hocket.mesh.sync import stored_messages
from hocket.mesh.wire import BodyTooLong, NoRoom, Reply, Request, SecondProof
from hocket.work.environment import Environment
from hocket.work.output_files import OutputFiles

# A worker that offers claims asks many times a second.
RATE_PER_S = 200.0
BURST = 400.0
# A query longer than this counts as several requests.
QUERY_BYTES = 4 * 1024
# The most requests of one node in work at once, and the most bodies read from it at once.
REQUESTS_AT_ONCE_MAX = 16
BODIES_AT_ONCE_MAX = 4
# An unknown node may send only its introduction: at this rate from one address, and from all together.
STRANGERS_RATE_PER_S = 10.0
STRANGERS_BURST = 50.0
ALL_STRANGERS_RATE_PER_S = 50.0
ALL_STRANGERS_BURST = 200.0
INTRODUCTION_BYTES_MAX = 64 * 1024
# The same refusal of the same caller is reported again after this long.
TELL_AGAIN_S = 60.0
TOLD_MAX = 1_000
# The most bodies that are verified at once; the others wait.
ADMISSIONS_MAX = 2

Handler = Callable[[Request], Awaitable[Reply]]
Routes = dict[tuple[str, str], Handler]


class Gate:
    """Answers requests. `origins` are the addresses that tokens may name instead of this node's id; `routes` are
    further paths, each with its own access check; `met` is called when a node with the same rules comes for the first
    time, or for the first time since it had other rules. With `is_contested`, other nodes always wait for their turn.
    """

    def __init__(
        self,
        access: NodeAccess,
        key: SigningKey,
        environment: Environment,
        *,
        origins: Callable[[], Collection[str]] = tuple,
        routes: Routes | None = None,
        emit: Emit = ignore,
        met: Callable[[int], Awaitable[None]] | None = None,
        blobs: Blobs | None = None,
        output: OutputFiles | None = None,
        quotas: Quotas | None = None,
        relay: MessageRelay | None = None,
        second_proof: SecondProof | None = None,
        used_tokens: UsedTokens | None = None,
        served_snapshots: ServedSnapshots | None = None,
        is_contested: bool = False,
    ) -> None:
        self._output, self._second_proof = output, second_proof
        self._snapshots = served_snapshots
        self._relay = relay
        self._quotas = quotas or Quotas(environment.monotonic, emit)
        self._access, self._key, self._environment = access, key, environment
        self._blobs = blobs
        self._origins, self._emit, self._met = origins, emit, met
        self._routes: Routes = {
            ("GET", wire.HEALTH): self._health,
            ("GET", wire.OPS): self._get_ops,
            ("POST", wire.OPS): self._post_ops,
            ("POST", wire.EXCHANGE): self._exchange,
            ("POST", wire.DELIVER): self._deliver,
            ("POST", wire.DELIVER_ANEW): self._deliver,
            ("GET", wire.HINTS): self._hints,
            ("POST", wire.INTRODUCE): self._introduce,
            ("GET", wire.BLOBS): self._blob,
            ("POST", wire.PRESENCE): self._presence,
            ("POST", wire.CHECKPOINTS): self._checkpoints,
            ("GET", wire.SNAPSHOT): self._snapshot,
            ("GET", wire.OUTPUT): self._get_output,
            ("POST", wire.OUTPUT): self._post_output,
            ("GET", wire.BUS): self._get_messages,
            ("POST", wire.BUS): self._post_messages,
            **dict.fromkeys((("POST", path) for path in words.PATHS), self._ask_named),
            **(routes or {}),
        }
        self._named = NamedPaths(access.log, key, environment.monotonic, self._admit)
        self._paths = frozenset(path for _, path in self._routes)
        self._used_tokens = used_tokens or UsedTokens()
        self._began_s = environment.physical_ms() // 1000
        self._callers = Buckets(RATE_PER_S, BURST, environment.monotonic)
        self._strangers = Buckets(STRANGERS_RATE_PER_S, STRANGERS_BURST, environment.monotonic)
        self._all_strangers = Buckets(ALL_STRANGERS_RATE_PER_S, ALL_STRANGERS_BURST, environment.monotonic)
        self._asking: Counter[int] = Counter()
        self._sending: Counter[int] = Counter()
        self._turns = Turns(ADMISSIONS_MAX, lambda node: self._quotas.used_ms(node), is_contested)
        self._hint_streams = HintStreams(access, environment, emit)
        self._pages = OpPages(access, environment, self._hint_streams.gave)
        self._presence_board, self._presence_lock = presence.PresenceBoard(access.log, environment), asyncio.Lock()
        self._keys: tuple[int, dict[bytes, tuple[bytes, str]]] = (-1, {})
        self._told: OrderedDict[tuple[str, int | None], float] = OrderedDict()
        self.refusals: Counter[str] = Counter()
        self.drift: dict[int, str] = {}
        self._agreeing: set[int] = set()
        # An earlier process may have begun a recovery.
        self._is_recovering = True
        self._programs: dict[int, str] = {}

    async def open(self) -> None:
        await self._access.call(lambda: order_ops(self._access.log.store))

    async def close(self) -> None:
        """Closes the streams."""
        await self._hint_streams.close()
        self._used_tokens.close()
        if self._relay is not None:
            self._relay.close()

    async def answer(self, request: Request) -> Reply:
        """Every reply, even a refusal, carries this node's rules hash."""
        try:
            reply = await self._handler(request)(request)
        except RequestRefused as refused:
            reply = self._refusal(refused)
        except BodyTooLong:
            reply = self._refusal(RequestRefused(413, "a body that is too large"))
        except NoRoom:
            reply = self._refusal(RequestRefused(503, "no room for more bodies", retry_after="5"))
        return self._stamped(reply)

    def has(self, path: str) -> bool:
        """Whether the gate answers requests for this path."""
        return path in self._paths

    def failed(self, status: int, error: Exception) -> Reply:
        """The reply if this node could not answer through no fault of the caller: come back later."""
        refused = RequestRefused(status, "this node failed", None, f"{type(error).__name__}: {error}", retry_after="5")
        return self._stamped(self._refusal(refused))

    def turned_away(self, status: int, reason: str, detail: str = "") -> None:
        """Counts and reports what the server refused without asking the gate."""
        self._count(RequestRefused(status, reason, None, detail))

    def _refusal(self, refused: RequestRefused) -> Reply:
        self._count(refused)
        return Reply(refused.status, refused.headers)

    def _stamped(self, reply: Reply) -> Reply:
        return reply._replace(headers={**reply.headers, wire.RULES_HASH: self._rules()})

    def _handler(self, request: Request) -> Handler:
        handler = self._routes.get((request.method, request.path))
        if handler is None:
            methods = sorted(method for method, path in self._routes if path == request.path)
            if methods:
                raise RequestRefused(405, "a method that the path does not support", allow=", ".join(methods))
            raise RequestRefused(404, "an unknown path")
        return handler

    def _rules(self) -> str:
        return rules_hash(self._access.log.rules).hex()

    def _count(self, refused: RequestRefused) -> None:
        self.refusals[refused.reason] += 1
        now, told = self._environment.monotonic(), (refused.reason, refused.node)
        if now - self._told.get(told, -TELL_AGAIN_S) < TELL_AGAIN_S:
            return
        self._told[told] = now
        if len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)
        node = None if refused.node is None else node_text(refused.node)
        self._emit(CallerRefused(refused.status, refused.reason, node, refused.detail))

    # Who asks.

    @asynccontextmanager
    async def _called(self, request: Request) -> AsyncIterator[Caller]:
        """Identifies the caller, and counts the request while it is in work."""
        caller = await self._caller(request)
        with at_once(self._asking, caller.node, REQUESTS_AT_ONCE_MAX, "too many requests at once"):
            yield caller

    async def _body(self, request: Request, caller: Caller) -> bytes:
        """Reads the body of a caller that may send one."""
        check_type(request, caller.node)
        if wait := self._quotas.wait(caller.node):
            raise RequestRefused(429, "over its quota", caller.node, retry_after=str(ceil(wait)))
        with at_once(self._sending, caller.node, BODIES_AT_ONCE_MAX, "too many bodies at once"):
            body = (await request.whole(wire.BODY_BYTES_MAX)).body
        if not body:
            raise RequestRefused(400, "an empty body", caller.node)
        return body

    async def _caller(self, request: Request) -> Caller:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise self._unknown("no token")
        try:
            bearer = read_bearer(token.strip())
        except Malformed:
            raise self._unknown("an unreadable token") from None
        caller = await self._access.call(lambda: self._recognise(token.strip(), bearer))
        proof, now_ms = request.headers.get(wire.WINDOW, ""), self._environment.physical_ms()
        second = self._second_proof
        if second is not None and not second.is_valid(proof, token.strip(), now_ms):
            raise self._unknown("no token of this window", caller.node, second.hint)
        if not self._used_tokens.use(bearer, self._environment.physical_ms() // 1000):
            raise self._unknown("a token that was used before", caller.node)
        if caller.standing is not Standing.ACTIVE:
            raise RequestRefused(403, f"its delegation is {caller.standing.value}", caller.node)
        if caller.is_forked:
            raise RequestRefused(403, "it has two histories", caller.node)
        if wait := self._callers.take(caller.node, 1 + len(request.query) // QUERY_BYTES):
            raise RequestRefused(429, "too many requests", caller.node, retry_after=str(max(1, round(wait))))
        is_new = self._check_rules(request, caller)
        if is_new and self._met is not None:
            await self._met(caller.node)
        knows = request.headers.get(wire.KNOWS)
        if knows is not None and self._programs.get(caller.node) != knows:
            self._programs[caller.node] = knows
            await peers.note_program(self._access, caller.node, read_knowledge(knows), self._emit)
        return caller

    def _unknown(self, reason: str, node: int | None = None, detail: str = "") -> RequestRefused:
        # A caller with a wrong clock can learn the time from this.
        time = str(self._environment.physical_ms() // 1000)
        return RequestRefused(401, reason, node, detail, **{"www_authenticate": "Bearer", wire.TIME: time})

    def _recognise(self, token: str, bearer: Bearer) -> Caller:
        log, node = self._access.log, bearer.node
        now_ms = self._environment.physical_ms()
        with log.store.read() as session:
            state = session.head().permissions_state
            permissions = log.permissions_reader.read(session, state)
            authority = permissions.authority
            known_by, keys = self._keys
            if known_by != state:
                keys = session.nodes()
                self._keys = state, keys
        known = keys.get(node.to_bytes(8, "big"))
        if known is None:
            raise self._unknown("an unknown node", detail=node_text(node))
        audiences = {str(log.node), *self._origins()}
        fault = check_bearer(token, bearer, known[0], audiences, now_ms // 1000)
        if fault is None and bearer.issued < self._began_s:
            # This process does not know which tokens were used before it started, so it accepts none from then.
            fault = "the token was issued before this server started"
        if fault is not None:
            # The identity is not proven: any caller can write a token that names this node.
            raise self._unknown("an invalid token", detail=f"it names node {node_text(node)}; {fault}")
        whole = authority.reads_everything(node, now_ms)
        standing = authority.standing(node, now_ms)
        reader = PeerReader(node, authority, now_ms, whole, log.rules.is_strict)
        return Caller(reader, standing, bearer.nonce, state, node in permissions.forks)

    def _check_rules(self, request: Request, caller: Caller | None) -> bool:
        """Whether it is new that the caller has the same rules."""
        ours, theirs = self._rules(), request.headers.get(wire.RULES_HASH)
        node = None if caller is None else caller.node
        if theirs is not None and theirs.lower() == ours:
            is_new = node is not None and node not in self._agreeing
            if node is not None:
                self.drift.pop(node, None)
                self._agreeing.add(node)
            return is_new
        if node is not None:
            self.drift[node] = (theirs or "")[:64]
            self._agreeing.discard(node)
        said = "none" if theirs is None else f"blake3:{theirs[:64]}"
        refused = RequestRefused(
            409, "other mesh rules", node, f"its rules are {said}, those of this node blake3:{ours}"
        )
        if caller is not None:
            # A peer that receives this stops asking for long, so the answer must prove which node sent it.
            refused.headers = dict(self._proved(caller, Reply(refused.status)).headers)
        raise refused

    # What the caller gets.

    async def _health(self, request: Request) -> Reply:
        return json_reply(200, {"node": node_text(self._access.log.node), "protocol": wire.PROTOCOL})

    async def _get_ops(self, request: Request) -> Reply:
        async with self._called(request) as caller:
            with self._hint_streams.answering(caller.node):
                if is_led(self._access.log):
                    await confirmed_soon(self._access)
                return await self._access.call(
                    lambda: self._proved(caller, self._answer(caller, *asked_page(request, caller.node)))
                )

    async def _post_ops(self, request: Request) -> Reply:
        async with self._called(request) as caller:
            body = await self._body(request, caller)
            async with self._turns.turn(caller.node):
                counts = await self._access.call(lambda: self._admit(caller, body))
            return self._proved(caller, json_reply(200, counts.shown()))

    async def _deliver(self, request: Request) -> Reply:
        """A push that brings messages for agents of this node. The answer names those that are stored by now."""
        async with self._called(request) as caller:
            body = await self._body(request, caller)

            def work() -> Reply:
                counts = self._admit(caller, body)
                return json_reply(200, {**counts.shown(), "stored": stored_messages(self._access.log, body)})

            async with self._turns.turn(caller.node):
                return self._proved(caller, await self._access.call(work))

    async def _exchange(self, request: Request) -> Reply:
        """A push and a pull in one, for a worker that offers claims and waits for the answer."""
        async with self._called(request) as caller:
            body = await self._body(request, caller)

            def admit() -> RequestCounts:
                asked_page(request, caller.node)
                return self._admit(caller, body)

            def answer(counts: RequestCounts) -> Reply:
                reply = self._answer(caller, *asked_page(request, caller.node))
                said = zip(wire.COUNTS, map(str, counts), strict=True)
                return self._proved(caller, reply._replace(headers={**reply.headers, **dict(said)}))

            with self._hint_streams.answering(caller.node):
                if not is_led(self._access.log):
                    async with self._turns.turn(caller.node):
                        return await self._access.call(lambda: answer(admit()))
                async with self._turns.turn(caller.node):
                    counts = await self._access.call(admit)
                await confirmed_soon(self._access)
                return await self._access.call(lambda: answer(counts))

    async def _hints(self, request: Request) -> Reply:
        caller = await self._caller(request)
        if not self._hint_streams.has_room(caller.node):
            raise RequestRefused(429, "too many listeners", caller.node, retry_after="60")
        headers = {"content-type": wire.EVENTS, "cache-control": "no-store"}
        return self._proved(caller, Reply(200, headers, stream=self._hint_streams.listen(caller.node)))

    async def _get_messages(self, request: Request) -> Reply:
        caller = await self._caller(request)
        relay = self._relay_for(caller)
        if not relay.has_room(caller.node):
            raise RequestRefused(429, "too many listeners", caller.node, retry_after="60")
        headers = {"content-type": wire.EVENTS, "cache-control": "no-store"}
        return self._proved(caller, Reply(200, headers, stream=relay.listen(caller.node)))

    async def _post_messages(self, request: Request) -> Reply:
        async with self._called(request) as caller:
            relay = self._relay_for(caller)
            body = (await request.whole(bus_sharing.RELAYED_BYTES_MAX)).body
            if not await relay.receive(body):
                raise RequestRefused(400, "a body that has no messages", caller.node)
            return self._proved(caller, Reply(200))

    def _relay_for(self, caller: Caller) -> MessageRelay:
        if self._relay is None:
            raise RequestRefused(404, "messages, but this node passes none on", caller.node)
        return self._relay

    async def _blob(self, request: Request) -> Reply:
        async with self._called(request) as caller:
            blobs = self._blobs
            if blobs is None:
                raise RequestRefused(404, "a blob, but this node has none", caller.node)
            return await self._access.call(lambda: answer_blob(self._access.log, blobs, caller.reader, request.query))

    async def _presence(self, request: Request) -> Reply:
        async with self._called(request) as caller:
            body = (await request.whole(presence.BODY_BYTES_MAX)).body
            async with self._presence_lock:
                board = self._presence_board
                reply = await self._access.call(lambda: board.answer(caller.reader, caller.permissions, body))
            return self._proved(caller, reply)

    async def _checkpoints(self, request: Request) -> Reply:
        async with self._called(request) as caller:
            body = (await request.whole(sharing.BODY_BYTES_MAX)).body
            try:
                found, events = await self._access.call(lambda: sharing.answer(self._access.log, body))
            except Malformed:
                raise RequestRefused(400, "an unreadable question about checkpoints", caller.node) from None
            for event in events:
                self._emit(event)
            return self._proved(caller, Reply(200, {"content-type": wire.JSON}, found))

    async def _ask_named(self, request: Request) -> Reply:
        """The coordinator, or a successor, asks this node because the owner has named it."""
        async with self._called(request) as caller:
            body = await self._body(request, caller)
            async with self._turns.turn(caller.node):
                return self._proved(
                    caller, await self._access.call(lambda: self._named.answer(request.path, caller, body))
                )

    async def _snapshot(self, request: Request) -> Reply:
        async with self._called(request) as caller:
            served = self._snapshots
            if served is None or not caller.reader.reads_everything:
                raise RequestRefused(404, "a snapshot, but this node gives it none", caller.node)
            try:
                asked = read_snapshot_query(request.query)
            except Malformed:
                raise RequestRefused(400, "an unreadable query for a snapshot", caller.node) from None
            return self._proved(caller, await self._access.call(lambda: served.answer(asked)))

    async def _get_output(self, request: Request) -> Reply:
        async with self._called(request) as caller:
            files, asked = self._output_asked(request, caller)
            reply, is_elsewhere = await self._access.call(
                lambda: answer_output(self._access.log, files, caller.reader, asked)
            )
            if is_elsewhere:
                self._environment.bus.publish(about(OUTPUT, asked.job_id))
            return self._proved(caller, reply)

    async def _post_output(self, request: Request) -> Reply:
        async with self._called(request) as caller:
            files, asked = self._output_asked(request, caller)
            body = await self._body(request, caller)
            log, is_wanted = self._access.log, self._hint_streams.wishes.has(asked.job_id)
            reply = await self._access.call(lambda: keep_output(log, files, caller.node, asked, body, is_wanted))
            return self._proved(caller, reply)

    def _output_asked(self, request: Request, caller: Caller) -> tuple[OutputFiles, AskedOutput]:
        asked = read_query(request.query)
        if self._output is None or asked is None:
            raise RequestRefused(400, "an unreadable query for output", caller.node)
        return self._output, asked

    async def _introduce(self, request: Request) -> Reply:
        """An unknown node sends the op that introduces it. The answer does not tell it the outcome."""
        if wait := self._strangers.take(request.address) or self._all_strangers.take(None):
            raise RequestRefused(429, "too many introductions", None, retry_after=str(max(1, round(wait))))
        self._check_rules(request, None)
        check_type(request, None)
        request = await request.whole(INTRODUCTION_BYTES_MAX)
        received = list(read_sequence(request.body))
        if len(received) != 1 or (delegation := incoming.introduction_in(received[0][1])) is None:
            raise RequestRefused(400, "a body that is not an introduction")
        log, now_s = self._access.log, self._environment.physical_ms() // 1000
        if await self._access.call(lambda: incoming.is_introduced(log, delegation)):
            return Reply(204)
        fault = await self._access.call(lambda: incoming.introduction_fault(log, delegation, now_s))
        if fault is None:
            await self._access.call(lambda: log.admit(received, sender=delegation.node))
        else:
            self._count(RequestRefused(204, fault, None, f"it names node {node_text(delegation.node)}"))
        return Reply(204)

    def _answer(self, caller: Caller, since: Frontier, limit: int) -> Reply:
        return self._pages.answer(caller, since, limit)

    def _proved(self, caller: Caller, reply: Reply) -> Reply:
        """A reply with the server's own token for this caller, request and answer. It proves to the caller which node
        answered, and that the answer was not changed.
        """
        reply = self._stamped(reply)
        answer = wire.answer_hash(reply)
        now_s = self._environment.physical_ms() // 1000
        token = make_bearer(self._key, str(caller.node), now_s, caller.nonce, answer=answer)
        return reply._replace(headers={**reply.headers, wire.NODE: token, wire.KNOWS: knowledge_text(OURS)})

    def _admit(self, caller: Caller, body: bytes) -> RequestCounts:
        unauthorised, has_moved, log = 0, False, self._access.log

        def decide(tx: Transaction, ops: Sequence[Op]) -> None:
            nonlocal unauthorised, has_moved
            unauthorised += sum(tx.projection.reason(op.id) in UNAUTHORISED for op in ops)
            has_moved = has_moved or any(isinstance(op.payload, MoveHorizon) for op in ops)
            accept(tx, ops)

        meter = self._quotas.meter(log, caller.node)
        pushed = Pushed(body, caller.reader, incoming.all_authors(log), meter, log.node)
        costs = BatchWork(self._quotas, log, meter, lambda: self._turns.is_awaited(caller.node))
        admission = log.admit(pushed, decide, sender=caller.node, costs=costs, decide_held=accept)
        if admission.branch is not None:
            rewind(log, admission.branch)
            pushed = Pushed(body, caller.reader, incoming.all_authors(log), meter, log.node)
            admission = log.admit(pushed, decide, sender=caller.node, costs=costs, decide_held=accept)
            self._is_recovering = True
        if self._is_recovering:
            self._is_recovering = recover(log, self._emit) is not None
        if has_moved:
            write_late_again(log)
        if admission.is_stopped and meter is not None:
            pushed.stop(admission)
        if pushed.left or pushed.cut:
            log.hear(pushed.left + pushed.cut)
        if pushed.left:
            reason = "ops of other authors from a restricted reader, or of too many authors"
            self.refusals[reason] += len(pushed.left)
        for why, count in admission.refused.items():
            self._emit(OpRefused(node_text(caller.node), why.name, count))
        retry_s = 0.0 if meter is None else meter.finish(admission)
        if over_quota := self._quotas.note(log, caller.node, meter, admission):
            self.refusals["ops beyond a quota"] += over_quota
        if admission.collided:
            self._emit(OpsCollided(node_text(caller.node), admission.collided))
        unseen = pushed.unread + (0 if meter is None else meter.cut + meter.stopped)
        rejected = admission.rejected + unauthorised + len(pushed.left) + unseen
        for author in admission.forked:
            self._emit(NodeForked(node_text(author)))
        unlinked = admission.refused.get(Reason.UNLINKED, 0)
        appended = admission.appended - unauthorised
        return RequestCounts(
            appended, admission.duplicated, rejected, admission.held, unlinked, over_quota, ceil(retry_s)
        )
