"""`hocket tempo pulse` and `hocket tempo reverb`: send the beats of a cluster, and report bar by bar what agents do.

A pulse has admin routes beside its metrics: `GET /admin/pulse` says which beat it is, at which tempo and who leads;
`POST /admin/tempo` with {"tempo_bpm": 14} has the leading pulse change the tempo on the next downbeat. The latter needs
a token of a program that may lock `pulse:CLUSTER`.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from hocket.api import Service
from hocket.api.programs import UnknownToken, recognise
from hocket.cli import INTERRUPTED
from hocket.cli.declarations import App
from hocket.cli.long_running import MetricsOption, monitored, start_logging
from hocket.cli.options import BusOption, LogFormatOption, PolicyOption, QuietOption, VerboseOption
from hocket.cli.printing import emit, fields
from hocket.cli.settings import open_runtime
from hocket.errors import Conflict, HocketError, NotAuthorised, Usage
from hocket.extensions.tempo.beats import BPM_MAX
from hocket.extensions.tempo.events import ReverbStarted
from hocket.extensions.tempo.heard_beats import local_frame
from hocket.extensions.tempo.leader_lock import SCOPE, leader_key
from hocket.extensions.tempo.node_tempo import pulsing, run_reverb
from hocket.extensions.tempo.policy import TempoPolicy
from hocket.extensions.tempo.policy_file import assumed_policy, needed_policy
from hocket.kernel.clock import wall_text
from hocket.kernel.decoding import decode_json
from hocket.mesh import wire
from hocket.mesh.wire import Reply, Request
from hocket.node.message_bus import BusSettings, bus_settings
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.node.signals import stopped_by_signals
from hocket.work.environment import supervising

if TYPE_CHECKING:
    from hocket.extensions.tempo.pulse import Pulse

pulse_app = App()
reverb_app = App()
PULSE, TEMPO = "/admin/pulse", "/admin/tempo"
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff", "content-type": wire.JSON}
_STATUSES: dict[type[HocketError], int] = {UnknownToken: 401, NotAuthorised: 403, Conflict: 409, Usage: 400}


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


@pulse_app.command()
def pulse(
    policy: PolicyOption = None,
    bus: BusOption = None,
    metrics: MetricsOption = None,
    verbose: VerboseOption = 0,
    quiet: QuietOption = 0,
    log_format: LogFormatOption = None,
) -> None:
    """Send the beats of a cluster, as its tempo policy says. Several pulses may run: one leads and sends each beat, and
    if it stops, another takes over within two beats. Agents that hear no leader count on at the same tempo.

    \b
      hocket tempo pulse
      hocket tempo pulse --policy tempo.yaml --metrics 9465
      hocket tempo pulse --bus nats://host:4222

    SIGTERM or Ctrl-C stops it. The exit code is 130 after Ctrl-C, 0 after SIGTERM.
    """
    start_logging(verbose, quiet, log_format)
    with open_runtime() as runtime:
        found = needed_policy(runtime.home, policy)
        asyncio.run(_pulse(runtime, found, bus_settings(runtime.home, bus), metrics))


async def _pulse(runtime: Runtime, policy: TempoPolicy, servers: BusSettings | None, metrics: str | None) -> None:
    node, ended = Node(runtime), asyncio.Event()
    admin = PulseAdmin(node, policy)
    troubles = lambda: ["this pulse stops"] if ended.is_set() else []  # noqa: E731
    monitoring, events = monitored(node, metrics, troubles, admin.routes)
    try:
        if servers is not None:
            await node.message_bus(events, servers)
        with stopped_by_signals(ended.set) as received:
            async with monitoring, node.in_touch(events), pulsing(node, policy, events, admin.began):
                shown = {"cluster": policy.cluster_id, "tempo_bpm": policy.initial_bpm, "process": os.getpid()}
                emit(shown)
                fields([(name.replace("_", " "), value) for name, value in shown.items()])
                sys.stdout.flush()
                await ended.wait()
        if received.is_interrupt:
            raise KeyboardInterrupt
    finally:
        await node.finish()


@reverb_app.command()
def reverb(
    policy: PolicyOption = None,
    metrics: MetricsOption = None,
    bus: BusOption = None,
    verbose: VerboseOption = 0,
    quiet: QuietOption = 0,
    log_format: LogFormatOption = None,
) -> None:
    """Run a reverb: it hears what agents do, and reports each bar on the bus and on the log.

    Several may run, on any nodes. They exchange what they have heard, and come to the same reports, also after a
    partition. `hocket tempo report` shows the reports, and `hocket tempo replay` plays a window again.

    \b
      hocket tempo reverb
      hocket tempo reverb --policy tempo.yaml --metrics 9465

    SIGTERM or Ctrl-C stops it. The exit code is 130 after Ctrl-C, 0 after SIGTERM.
    """
    start_logging(verbose, quiet, log_format)
    with open_runtime() as runtime:
        found = assumed_policy(runtime.home, policy)
        is_interrupted = asyncio.run(_run(runtime, found, bus_settings(runtime.home, bus), metrics))
    if is_interrupted:
        sys.exit(INTERRUPTED)


async def _run(runtime: Runtime, policy: TempoPolicy, servers: BusSettings | None, metrics: str | None) -> bool:
    """Whether Ctrl-C ended it."""
    node, stopping = Node(runtime), asyncio.Event()
    served, emit = monitored(node, metrics, lambda: ["this reverb stops"] if stopping.is_set() else [])
    try:
        with stopped_by_signals(stopping.set) as received:
            await node.message_bus(emit, servers)
            async with served, node.in_touch(emit):
                emit(ReverbStarted(os.getpid(), policy.cluster_id))
                async with supervising("the reverb", lambda: run_reverb(node, policy, emit), emit, node.environment):
                    await stopping.wait()
        return received.is_interrupt
    finally:
        await node.finish()


class TempoWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tempo_bpm: int


def _reply(status: int, answer: Any) -> Reply:
    return Reply(status, _HEADERS, msgspec.json.encode(answer))
