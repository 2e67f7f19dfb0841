"""`hocket log`: shows, follows, verifies, rebuilds, exports and imports the ops of the log."""

import sys
from typing import Annotated

import typer

from hocket.cli.archive import export_log, import_log
from hocket.cli.declarations import new_app
from hocket.cli.job import rejected
from hocket.cli.late import late
from hocket.cli.output import console, emit, on_terminal, progress, say
from hocket.cli.settings import open_service, settings
from hocket.errors import Failed, Usage
from hocket.kernel.plurals import counted
from hocket.kernel.safe_text import clean
from hocket.service import ops
from hocket.service.op_lines import OpLine
from hocket.service.ops import LIMIT_MAX

app = new_app()
app.command("export")(export_log)
app.command("import")(import_log)
app.command("late")(late)


@app.callback(invoke_without_command=True)
def log(
    ctx: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep running, and show each new op.")] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, max=LIMIT_MAX, help="Start N ops back.")] = 20,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only the ops of this job.")] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="Only jobs of this kind; `acme.` for all below acme.")
    ] = None,
) -> None:
    """Show the newest ops: sequence number, time, author, type, job, detail. A rejected op shows why.

    \b
      hocket log --limit 100 --kind acme.render
      hocket log --follow --json
      hocket log verify
    """
    if ctx.invoked_subcommand is not None:
        return
    with open_service() as service:
        wanted = ops.OpFilter(service, job, kind)
        newest = ops.tail(service, wanted, limit)
        if not follow:
            emit(newest.items)
        for line in newest.items:
            _say(line, follow)
        if follow:
            sys.stdout.flush()
            for lines in ops.follow(service, wanted, newest.seen):
                for line in lines:
                    _say(line, follow)
                sys.stdout.flush()


def _say(line: OpLine, follow: bool) -> None:
    if follow and settings.as_json:
        emit(line)
    if settings.as_json:
        return
    cells = (line.seq, line.hlc, line.author, line.type, line.job_id or "-")
    text = " ".join(clean(cell) for cell in cells)
    detail = clean(line.detail if line.counts else rejected(line))
    if on_terminal():
        from rich.text import Text

        console().print(Text.assemble(text, " ", (detail, "dim" if line.counts else "red")))
    else:
        print(f"{text} {detail}".rstrip())


@app.command()
def verify(
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="COUNT:HEX", help="An earlier chain head: is it still on this log?"),
    ] = None,
) -> None:
    """Check every signature, every link of the chain, and that the tail is complete. Exit code 1 if anything is wrong.

    Keep the printed head somewhere else. Without it, you cannot tell later whether ops were cut off together with the
    head.

    \b
      hocket log verify
      hocket log verify --head 120:9f2c...
    """
    expected = None if head is None else _head(head)
    with open_service() as service, progress("verifying") as bar:
        audit = ops.verify(service, expected, bar)
    text = f"{audit.head[0]}:{audit.head[1].hex()}"
    emit({"ops": audit.ops, "head": text, "findings": [each._asdict() for each in audit.findings]})
    for each in audit.findings:
        op = " ".join(part for part in ("" if each.seq is None else f"op {each.seq}", each.op_id or "") if part)
        say(f"{op}: {each.what}" if op else each.what, "red")
    if audit.findings:
        count = len(audit.findings)
        raise Failed(f"the log is damaged: {counted(count, 'finding')} in {counted(audit.ops, 'op')}")
    say(f"{counted(audit.ops, 'op')} verified, chain head {text}")


def _head(text: str) -> tuple[int, bytes]:
    count, _, chain = text.partition(":")
    try:
        link = bytes.fromhex(chain)
        if not count.isdecimal() or len(link) != 32:
            raise ValueError
        return int(count), link
    except ValueError:
        raise Usage(f"bad --head {text!r}; use the head that `hocket log verify` printed, COUNT:HEX") from None


@app.command()
def rebuild() -> None:
    """Drop everything derived from the log and derive it again. Continues an interrupted rebuild.

    \b
      hocket log rebuild
    """
    with open_service() as service, progress("rebuilding") as bar:
        rebuilt = ops.rebuild(service, bar)
    resumed = rebuilt.before is None
    emit(
        {
            "ops": rebuilt.ops,
            "roster": rebuilt.after.hex(),
            "resumed": resumed,
            "unchanged": rebuilt.unchanged,
            "changed": rebuilt.changed,
        }
    )
    changed = f"changed: {', '.join(rebuilt.changed)}"
    outcome = "finished the rebuild" if resumed else "nothing changed" if rebuilt.unchanged else changed
    say(f"{counted(rebuilt.ops, 'op')} refolded: {outcome}")
