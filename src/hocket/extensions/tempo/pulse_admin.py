"""The admin routes of a pulse, beside its metrics: `GET /admin/pulse` says which beat it is, at which tempo and who
leads; `POST /admin/tempo` with {"tempo_bpm": 14} has the leading pulse change the tempo on the next downbeat. The
latter needs a token of a program that may lock `pulse:CLUSTER`.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from hocket.api import Service
from hocket.api.programs import UnknownToken, recognise
from hocket.errors import Conflict, HocketError, NotAuthorised, Usage
from hocket.extensions.tempo.beats.policy import TempoPolicy
from hocket.extensions.tempo.beats.tempo import BPM_MAX
from hocket.extensions.tempo.heard_beats import local_frame
from hocket.extensions.tempo.leader_lock import SCOPE, leader_key
from hocket.kernel.clock import wall_text
from hocket.kernel.decoding import decode_json
from hocket.mesh import wire
from hocket.mesh.wire import Reply, Request
from hocket.node.node import Node

if TYPE_CHECKING:
    from hocket.extensions.tempo.pulse import Pulse

PULSE, TEMPO = "/admin/pulse", "/admin/tempo"
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff", "content-type": wire.JSON}
_STATUSES: dict[type[HocketError], int] = {UnknownToken: 401, NotAuthorised: 403, Conflict: 409, Usage: 400}


class TempoWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tempo_bpm: int


class PulseAdmin:
    def __init__(self, node: Node, policy: TempoPolicy) -> None:
        self._node, self._policy = node, policy
        self._pulse: Pulse | None = None

    def began(self, pulse: "Pulse") -> None:
        self._pulse = pulse

    @property
    def routes(self) -> Mapping[tuple[str, str], Callable[[Request], Awaitable[Reply]]]:
        return {("GET", PULSE): self._answered(self._show), ("POST", TEMPO): self._answered(self._change)}

    @staticmethod
    def _answered(route: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Reply]]:
        async def reply(request: Request) -> Reply:
            try:
                return _reply(200, await route(request))
            except HocketError as error:
                status = next((each for kind, each in _STATUSES.items() if isinstance(error, kind)), 503)
                return _reply(status, {"error": str(error)})

        return reply

    async def _show(self, request: Request) -> dict[str, Any]:
        pulse = self._running()
        frame = local_frame(self._policy, pulse.tempo, pulse.now.at_ms, pulse.now.phases)
        change = pulse.next_change
        return {
            "frame": frame,
            "leads": bool(pulse.fence),
            "fence": pulse.fence,
            "degraded": pulse.now.is_degraded,
            "adaptive": self._policy.is_adaptive,
            "next_tempo_bpm": None if change is None else change.tempo.bpm,
            "next_tempo_at": None if change is None else wall_text(change.since_ms),
        }

    async def _change(self, request: Request) -> dict[str, Any]:
        await self._check(request)
        try:
            wanted = decode_json(request.body, TempoWanted)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Usage(f'send {{"tempo_bpm": 1 to {BPM_MAX}}}: {error}') from None
        change = self._running().change_tempo(wanted.tempo_bpm)
        return {"tempo_bpm": change.tempo.bpm, "since": wall_text(change.since_ms)}

    async def _check(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise UnknownToken("send a token in the header `Authorization: Bearer TOKEN`")
        program = await self._node.call(lambda: recognise(Service(self._node.runtime), token.strip()))
        key = leader_key(self._policy.cluster_id)
        if not program.may("Lock", "Acquire", (key,), SCOPE):
            raise NotAuthorised(f"the token {program.name} may not lock {key}")

    def _running(self) -> "Pulse":
        if self._pulse is None:
            raise Conflict("the pulse has not begun")
        return self._pulse


def _reply(status: int, answer: Any) -> Reply:
    return Reply(status, _HEADERS, msgspec.json.encode(answer))
