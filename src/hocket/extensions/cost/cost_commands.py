"""`hocket cost`: what jobs used and cost, by a rate card."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hocket.cli.declarations import App, Argument, Option
from hocket.cli.options import seconds
from hocket.cli.printing import emit, fields, notice, say, table
from hocket.cli.settings import open_service
from hocket.errors import Usage
from hocket.kernel.texts import counted

if TYPE_CHECKING:
    from hocket.extensions.cost.costs import CostRow, Costs

# Of the devices without a rate, these many are named.
DEVICES_SHOWN = 5

app = App()


@app.command()
def cost(
    job: Annotated[
        str | None, Argument(metavar="JOB", help="A job id or a unique beginning of one.", show_default=False)
    ] = None,
    by: Annotated[
        str | None, Option("--by", metavar="GROUP", help="Sum up by kind, node or account; default kind.")
    ] = None,
    window: Annotated[
        str | None, Option("--window", metavar="DURATION", help="Only the runs that ended in this last time.")
    ] = None,
    estimate: Annotated[
        str | None,
        Option("--estimate", metavar="KIND", help="What a job of this kind is expected to cost, from history."),
    ] = None,
    rates: Annotated[
        Path | None, Option("--rates", metavar="FILE", help="The rate card; $HOCKET_RATES, or rates.yaml of the home.")
    ] = None,
) -> None:
    """Show what jobs used and cost, by a rate card: one job, or the sums by kind, node or account.

    \b
      hocket cost 01J9ZC
      hocket cost --by account --window 30d
      hocket cost --estimate acme.render
      hocket cost --estimate 'hocket.run ffmpeg'

    Commands are priced by what the runner measured, which is in their proofs; other jobs by the beats that they ran.
    """
    from hocket.extensions.command.request import KIND as COMMAND
    from hocket.extensions.cost.costs import CostsBy, costs, estimate_of, job_cost

    if sum(each is not None for each in (job, by, estimate)) > 1:
        raise Usage("give a job, --by or --estimate, and not two of them")
    if by is not None and by not in list(CostsBy):
        raise Usage(f"bad --by {by!r}; it is kind, node or account")
    window_s = seconds(window, "--window")
    with open_service() as service:
        if estimate is not None:
            kind, _, program = estimate.partition(" ")
            found = estimate_of(service.runtime, kind, program if kind == COMMAND and program else None)
            emit(found)
            if found is None:
                say(f"no job of {estimate} has succeeded yet", "dim")
            else:
                fields([("jobs", found.jobs), ("median", f"{found.median:.6g}"), ("p90", f"{found.p90:.6g}")])
        elif job is not None:
            row = job_cost(service.runtime, job, rates, service.fetch)
            emit(row)
            fields([("job", row.name), ("cost", f"{row.cost:.6g} {row.currency}"), *_used(row)])
            _tell_left_out(row)
        else:
            group = CostsBy(by or CostsBy.KIND)
            now_ms = service.runtime.log.reading().wall
            shown = costs(service.runtime, group, 0 if window_s is None else now_ms - round(window_s * 1000), rates)
            emit(shown)
            _show(group, shown)


def _show(group: str, shown: "Costs") -> None:
    rows = [
        (row.name or "-", row.jobs, row.runs, row.usage.beats, f"{row.usage.cpu_sec:.6g}", f"{row.cost:.6g}")
        for row in shown.rows
    ]
    table((group, "jobs", "runs", "beats", "cpu s", shown.total.currency), rows, "no run has ended")
    if shown.rows:
        say(f"total {shown.total.cost:.6g} {shown.total.currency}, {counted(shown.total.jobs, 'job')}", "bold")
    _tell_left_out(shown.total)
    if shown.uncharged:
        notice(
            f"{counted(shown.uncharged, 'job')} counted for no account: the submitter has no grant account:charge for"
            " the account that it named"
        )
    if shown.is_cut:
        notice("there are more jobs than one sum looks at; the oldest are left out")


def _tell_left_out(row: "CostRow") -> None:
    if row.unpriced:
        shown = [repr(each) for each in row.unpriced_devices[:DEVICES_SHOWN]]
        devices = ", ".join(shown) + (", …" if len(shown) < len(row.unpriced_devices) else "")
        notice(f"{counted(row.unpriced, 'run')} left out: rate_gpu_sec of the rate card has no rate for {devices}")
    if row.skipped_rates:
        notice(f"not in the cost, because the rate card does not name it: {', '.join(row.skipped_rates)}")
    if row.doubtful:
        notice(
            f"{counted(row.doubtful, 'run')} charged by time: the proof says more than a machine can use in the time of"
            " the run"
        )


def _used(row: "CostRow") -> list[tuple[str, object]]:
    use = row.usage
    amounts = [
        ("cpu seconds", use.cpu_sec),
        *((f"gpu seconds, {name}", seconds) for name, seconds in use.gpu_sec.items()),
        ("memory GB s", use.mem_gbs),
        ("disk MB", use.disk_io_mb),
        ("network MB", use.net_egress_mb),
    ]
    return [("runs", row.runs), ("beats", use.beats), *((name, f"{amount:.6g}") for name, amount in amounts)]
