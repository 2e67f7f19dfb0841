"""`hocket pulse` and `hocket reverb`: send the beats of a cluster, and report bar by bar what agents do."""

import asyncio
import os
import sys

from hocket.cli import INTERRUPTED
from hocket.cli.declarations import App
from hocket.cli.long_running import MetricsOption, monitored, start_logging
from hocket.cli.options import BusOption, LogFormatOption, PolicyOption, QuietOption, VerboseOption
from hocket.cli.output import emit, fields
from hocket.cli.settings import open_runtime
from hocket.extensions.tempo.beats.policy import TempoPolicy
from hocket.extensions.tempo.events import ReverbStarted
from hocket.extensions.tempo.node_tempo import pulsing, run_reverb
from hocket.extensions.tempo.policy_file import assumed_policy, needed_policy
from hocket.extensions.tempo.pulse_admin import PulseAdmin
from hocket.node.message_bus import BusSettings, bus_settings
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.node.signals import stopped_by_signals
from hocket.work.supervision import supervising

pulse_app = App()


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
      hocket pulse
      hocket pulse --policy tempo.yaml --metrics 9465
      hocket pulse --bus nats://host:4222

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


reverb_app = App()


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
    partition. `hocket report` shows the reports, and `hocket replay` plays a window again.

    \b
      hocket reverb
      hocket reverb --policy tempo.yaml --metrics 9465

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
