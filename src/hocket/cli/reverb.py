"""`hocket reverb`: runs a reverb in this process until a signal stops it."""

import asyncio
import os
import sys

from hocket.cli.declarations import new_app
from hocket.cli.log_lines import start_logging
from hocket.cli.monitoring import MetricsOption, monitored
from hocket.cli.options import BusOption, LogFormatOption, QuietOption, VerboseOption
from hocket.cli.settings import HomeOption, JsonOption, open_runtime
from hocket.cli.tempo_policy import PolicyOption, assumed_policy
from hocket.events.tempo import ReverbStarted
from hocket.kernel.beats.policy import TempoPolicy
from hocket.node.bus_settings import BusSettings, bus_settings
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.node.signals import stopped_by_signals
from hocket.node.tempo import run_reverb
from hocket.server.local_client import INTERRUPTED
from hocket.work.supervision import supervised

app = new_app()


@app.command()
def reverb(
    policy: PolicyOption = None,
    metrics: MetricsOption = None,
    bus: BusOption = None,
    verbose: VerboseOption = 0,
    quiet: QuietOption = 0,
    log_format: LogFormatOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
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
                work = supervised("the reverb", lambda: run_reverb(node, policy, emit), emit, node.environment)
                running = asyncio.create_task(work)
                await stopping.wait()
                running.cancel()
                await asyncio.wait([running])
        return received.is_interrupt
    finally:
        await node.finish()
