"""`hocket log` shows, follows, verifies, rebuilds, exports, imports and archives the ops of the log. `hocket log
derive` runs the derivation passes of Python modules over them now, or repeats the passes that there were and compares
the results.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

from hocket.api import ops, rights
from hocket.api.jobs import OpLine, rejected
from hocket.api.log_operations import author_checkpoints
from hocket.api.ops import LIMIT_MAX
from hocket.api.retention import keeping, pruning, snapshots
from hocket.api.views import moment
from hocket.cli.declarations import App, Argument, CommandContext, Option
from hocket.cli.derived import add_operations, perform
from hocket.cli.options import ArchiveOption, private_file
from hocket.cli.printing import console, emit, notice, on_terminal, progress, say, table
from hocket.cli.settings import open_runtime, open_service, settings
from hocket.errors import Failed, NotAuthorised, StoreError, Usage
from hocket.kernel.texts import clean, counted
from hocket.log.archives.archive import SNAPSHOT
from hocket.log.snapshots.folder import SnapshotFolder

if TYPE_CHECKING:
    from hocket.api import Service
    from hocket.api.ops import PassLine
    from hocket.api.retention.snapshots import SnapshotShown
    from hocket.node.runtime import Runtime
    from hocket.work.derivation import Derivation


app = App()
add_operations(app, ops.events, author_checkpoints.checkpoints, author_checkpoints.checkpoint, author_checkpoints.prove)


@app.callback(invoke_without_command=True)
def log(
    ctx: CommandContext,
    follow: Annotated[bool, Option("--follow -f", help="Keep running, and show each new op.")] = False,
    limit: Annotated[int, Option("--limit", "N", "Start N ops back.", min=0, max=LIMIT_MAX)] = 20,
    job: Annotated[str | None, Option("--job", "JOB", "Only the ops of this job.")] = None,
    kind: Annotated[str | None, Option("--kind", "KIND", "Only jobs of this kind; `acme.` for all below acme.")] = None,
    archive: ArchiveOption = None,
) -> None:
    """Show the newest ops: sequence number, time, author, type, job, detail. A rejected op shows why. For programs,
    `hocket log events` says what the ops mean.

    \b
      hocket log --limit 100 --kind acme.render
      hocket log --follow --json
      hocket log verify
    """
    if ctx.invoked_subcommand is not None:
        return
    settings.archive = archive
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


@app.command("export")
def export_log(
    file: Annotated[str, Argument("FILE|-", "The file to write; - is standard output.")],
) -> None:
    """Write every op to a file, as a postcard sequence.

    \b
      hocket log export backup.ops
      hocket log export - | ssh other hocket log import -
    """
    from hocket.api import ops

    if file == "-" and on_terminal():
        raise Usage("refusing to write binary data to a terminal; name a file or redirect the output")
    with open_service() as service, progress("exporting") as bar:
        if file == "-":
            count = ops.export(service, sys.stdout.buffer, bar)
            sys.stdout.buffer.flush()
            notice(f"{counted(count, 'op')} exported")
            return
        try:
            with _written(Path(file)) as out:
                count = ops.export(service, out, bar)
        except OSError as error:
            raise StoreError(f"cannot write {file}: {error.strerror}") from None
    emit({"ops": count, "file": file})
    say(f"{counted(count, 'op')} exported to {file}")


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """Gives the file its name only when it is complete and on disk. Writes directly to anything but a regular file,
    such as a pipe.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as out:
            yield out
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with private_file(unfinished) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@app.command("import")
def import_log(
    file: Annotated[str, Argument("FILE|DIR|-", "The file or the archive to read; - is standard input.")],
) -> None:
    """Import the ops of an exported log or an archive. Each is verified; those that this log already has are skipped.

    Exit code 1 if any op was rejected. Importing again changes nothing.

    With the folder of a snapshot, the log begins anew from its horizon: settled ops that the snapshot does not have go.

    \b
      hocket log import backup.ops
      hocket log import /backup/hocket
      hocket log import snapshot
    """
    if file != "-" and SnapshotFolder(Path(file)).is_complete():
        _import_snapshot(file)
        return
    from hocket.api import ops
    from hocket.api.checks import TWINS
    from hocket.events.nodes import NodeForked
    from hocket.kernel.ids import node_text

    with open_service() as service:
        if file == "-":
            admitted = ops.take_in(service, sys.stdin.buffer)
        elif ops.is_archive(file):
            admitted = ops.take_in(service, file)
        else:
            try:
                source = open(file, "rb")  # noqa: SIM115
            except OSError as error:
                raise Usage(f"cannot read {file}: {error.strerror}") from None
            with source:
                admitted = ops.take_in(service, source)
    reasons = {reason.sentence: count for reason, count in admitted.refused.items()}
    counts = {"appended": admitted.appended, "duplicated": admitted.duplicated, "rejected": admitted.rejected}
    emit(counts | {"collided": admitted.collided, "unread": admitted.unread, "reasons": reasons})
    say(f"{admitted.appended} appended, {admitted.duplicated} duplicated, {admitted.rejected} rejected")
    for sentence, count in reasons.items():
        say(f"rejected {count}: {sentence}", "red")
    for node in sorted(admitted.forked):
        say(NodeForked(node_text(node)), "warn")
    if admitted.collided:
        raise Failed(f"integrity failure: {TWINS.format(count=admitted.collided)}")
    if admitted.unread:
        raise Failed(f"the file is damaged: {admitted.unread} ops after that were not imported; use an intact copy")
    if admitted.rejected:
        raise Failed("rejected ops were not imported; all others are on the log")


def _import_snapshot(path: str) -> None:
    with open_service() as service:
        done = snapshots.load_snapshot(service, path)
    emit(done)
    say(f"{counted(done.added + done.later, 'op')} came in, {counted(done.deleted, 'settled op')} went")
    if done.rewritten:
        say(f"{counted(done.rewritten, 'op')} of this node were late and were written again")
    if done.dropped:
        say(f"{counted(done.dropped, 'op')} of this node would not count any more and were left out", "warn")
    if done.rejected:
        raise Failed(f"{counted(done.rejected, 'op')} after the horizon were rejected; exchange with another node")


@app.command()
def snapshot(
    to: Annotated[Path, Argument("DIR", "A new folder.")],
) -> None:
    """Write what remains of a pruned log into a folder: a node that cannot reach another one begins from it.

    Anyone can verify it: the horizon is signed, and as many nodes have cosigned it as the owner's rules ask for.

    \b
      hocket log snapshot /media/usb/snapshot
      hocket log verify /media/usb/snapshot
      hocket log import /media/usb/snapshot      (on the other machine, after hocket join)
    """
    with open_service() as service:
        shown = snapshots.write_snapshot(service, to)
    emit(shown)
    say(f"{_snapshot_text(shown)} written to {to}")


def _snapshot_text(shown: "SnapshotShown") -> str:
    return (
        f"{counted(shown.ops, 'op')} and {counted(shown.states, 'state')} of {counted(shown.authors, 'node')},"
        f" settled until {moment(shown.horizon_ms)}, cosigned by {counted(len(shown.witnesses), 'other node')},"
    )


@app.command()
def late(
    node: Annotated[str | None, Argument("[NODE]", "The node whose ops to decide on: a name or an id.")] = None,
    accept: Annotated[bool, Option("--accept", help="Put them on the log.")] = False,
    drop: Annotated[bool, Option("--drop", help="Delete them. The node must then join again.")] = False,
) -> None:
    """List ops that arrived long after the delegation they rely on had ended, or decide on those of one node.

    Such an op may be honest, from a machine that was offline, or backdated by a node whose delegation has ended. Accept
    only what you can explain. The mesh rules set the limit, a day by default.

    \b
      hocket log late
      hocket log late gpu-box --accept
      hocket log late gpu-box --drop
    """
    if accept == drop and (accept or node is not None):
        raise Usage("give a node and either --accept or --drop")
    if (accept or drop) and node is None:
        raise Usage("name a node; `hocket log late` lists them")
    if node is not None:
        perform(rights.decide_late, node, accept)
    else:
        perform(rights.late)


@app.command()
def archive(
    to: Annotated[
        str, Option("--to", "DIR|ADDRESS", "A folder; git+DIR, which commits the files; or s3://BUCKET/PREFIX.")
    ],
    before: Annotated[str, Option("--before", "AGE|DAY", "Days that ended so long ago, like 90d, or before that day.")],
    dry_run: Annotated[bool, Option("--dry-run", help="Say what it would write, and write nothing.")] = False,
) -> None:
    """Write the ops of past days into an archive: sealed files that anyone can verify. The log keeps them.

    An archive has a folder for each author, and a compressed file for each of its days (UTC). Nodes that have the same
    ops write the same files. Repeat the command to add what is new; if it was interrupted, it goes on. With
    git+DIR the folder is a git repository, and the files are committed.

    \b
      hocket log archive --before 90d --to /backup/hocket
      hocket log archive --before 90d --to git+/backup/repository
      hocket log archive --before 90d --to s3://backup/hocket
      hocket log archive --before 2026-01-01 --to archive --dry-run
      hocket log verify /backup/hocket
    """
    written = []
    with open_service() as service, progress("archiving") as bar:
        for file in ops.archive(service, to, before, dry_run=dry_run, progress=bar):
            written.append(file)
    if written and written[0].file == SNAPSHOT:
        say("the log is pruned: this archive begins at its horizon, and ops from before are in none", "warn")
    size = sum(each.bytes for each in written)
    emit({"files": [each._asdict() for each in written], "ops": sum(each.ops for each in written), "bytes": size})
    if not written:
        say(f"{to} has every op of these days already")
        return
    ops_text = counted(sum(each.ops for each in written), "op")
    did = "would write" if dry_run else "wrote"
    say(f"{did} {ops_text} to {counted(len(written), 'file')} in {to}, {counted(size, 'byte')}")


@app.command()
def verify(
    archive: Annotated[
        str | None, Argument("[ARCHIVE]", "An archive, or a file of one, instead of this node's log.")
    ] = None,
    head: Annotated[
        str | None, Option("--head", "COUNT:HEX", "An earlier chain head: is it still on this log?")
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        Option("--checkpoint", "FILE", "A checkpoint that was kept: are its entries still on this log?"),
    ] = None,
) -> None:
    """Check every signature, every link of the chain, and that the tail is complete. Exit code 1 if anything is wrong.

    Ops that were cut off together with the end mark are missed by a peer that has cosigned a checkpoint of them, so
    peers are asked. Without peers, keep the printed head, or a checkpoint, somewhere else.

    An archive, or a snapshot, is checked by itself. No node is needed; that of --home or $HOCKET_HOME only says which
    mesh it must be of.

    \b
      hocket log verify
      hocket log verify --head 120:9f2c...
      hocket log verify --checkpoint checkpoint.txt
      hocket log verify /backup/hocket
    """
    if archive is not None:
        if head is not None or checkpoint:
            raise Usage("--head and --checkpoint are about the log of a node; give an archive or one of these")
        if SnapshotFolder(Path(archive)).is_complete():
            _verify_snapshot(Path(archive))
        else:
            _verify_archive(archive)
        return
    expected = None if head is None else _head(head)
    kept = [_file(each) for each in checkpoint or ()]
    with open_service() as service, progress("verifying") as bar:
        audit = ops.verify(service, expected, bar, kept)
    text = f"{audit.head[0]}:{audit.head[1].hex()}"
    emit({"ops": audit.ops, "head": text, "findings": [each._asdict() for each in audit.findings]})
    for each in audit.findings:
        op = " ".join(part for part in ("" if each.seq is None else f"op {each.seq}", each.op_id or "") if part)
        say(f"{op}: {each.what}" if op else each.what, "red")
    if audit.findings:
        count = len(audit.findings)
        raise Failed(f"the log is damaged: {counted(count, 'finding')} in {counted(audit.ops, 'op')}")
    say(f"{counted(audit.ops, 'op')} verified, chain head {text}")


def _file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror}") from None


@contextmanager
def _named_service() -> "Iterator[Service | None]":
    """The node that the command line or the environment names; None without one."""
    named = settings.home is not None or os.environ.get("HOCKET_HOME")
    with open_service() if named else nullcontext() as service:
        yield service


def _verify_snapshot(path: Path) -> None:
    with _named_service() as service:
        shown = snapshots.prove_snapshot(service, path)
    emit(shown)
    say(f"{_snapshot_text(shown)} verified, of the mesh of {shown.mesh}")


def _verify_archive(address: str) -> None:
    with ExitStack() as stack:
        service = stack.enter_context(_named_service())
        audit = ops.prove_archive(service, address, stack.enter_context(progress("verifying")))
    emit(audit._asdict() | {"findings": [each._asdict() for each in audit.findings]})
    for each in audit.findings:
        say(f"{each.file}: {each.what}" if each.op_id is None else f"{each.file}: op {each.op_id}: {each.what}", "red")
    if audit.findings:
        raise Failed(
            f"the archive is damaged: {counted(len(audit.findings), 'finding')} in {counted(audit.files, 'file')}"
        )
    days = audit.first_day if audit.first_day == audit.last_day else f"{audit.first_day} to {audit.last_day}"
    say(f"{counted(audit.ops, 'op')} in {counted(audit.files, 'file')} verified, {days}, of the mesh of {audit.mesh}")
    if audit.begins_ms is not None:
        say(f"it begins at the horizon of {moment(audit.begins_ms)}: ops from before are not in it")


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


@app.command()
def prune(
    dry_run: Annotated[bool, Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Let go now what the rules of `hocket retain` say: it leaves every view, and is deleted as soon as it is in an
    archive or the owner has waived that. Servers and workers do this by themselves; use it before a backup, or to see
    what would go.

    \b
      hocket log prune --dry-run
      hocket log prune
    """
    if dry_run:
        perform(keeping.forecast)
    else:
        perform(pruning.prune)


def derive(
    modules: Annotated[list[str], Argument("MODULE...", "Modules with derivations: dotted names or .py files.")],
    name: Annotated[list[str] | None, Option("--name", "NAME", "Only this derivation; may be repeated.")] = None,
    check: Annotated[
        bool, Option("--check", help="Run nothing: repeat every pass here and compare; exit code 1 if one differs.")
    ] = False,
) -> None:
    """Run the derivation passes of these modules until every op is read. Only the coordinator runs them; `hocket work`
    on the coordinator does it continuously.

    \b
      from hocket.kernel.vocabulary import CreateEntity, IngestEvidence

      @hocket.derivation("acme.sources", over=(IngestEvidence,))
      def sources(known, op):
          if known.setdefault(op.payload.source_type, 0) == 0:
              yield CreateEntity(op.derived_id(), "source", op.payload.source_type)
          known[op.payload.source_type] += 1

    \b
      hocket log derive graph.py
      hocket log derive graph.py --check        (on any node of the mesh)
    """
    from hocket.api import Service
    from hocket.api.ops import PassVerdict, passes
    from hocket.work.derivation import registered
    from hocket.work.handlers import load

    with open_runtime() as runtime:
        load(modules)
        wanted = registered(name or ())
        if not wanted:
            raise Usage(f"no derivations in {', '.join(modules)}; decorate a function with @hocket.derivation(name)")
        if not check:
            asyncio.run(_run(runtime, wanted))
        lines = passes(Service(runtime), wanted, check)
    emit(lines)
    _print(lines, check)
    if differing := [each for each in lines if each.verdict is PassVerdict.differs]:
        raise Failed(f"of {counted(len(lines), 'derivation job')} {len(differing)} came out differently here")


async def _run(runtime: "Runtime", wanted: "list[Derivation]") -> None:
    from hocket.node.node import Node
    from hocket.work.derivation import DerivationWatch, is_coordinator
    from hocket.work.handlers import REGISTRY, Handlers

    node, handlers = Node(runtime), Handlers([REGISTRY[each.kind] for each in wanted])
    try:
        if not await node.run(is_coordinator):
            raise NotAuthorised("only the coordinator derives; `hocket mesh coordinator` says which node that is")
        watch = DerivationWatch(node, handlers)
        while await watch.look():
            worker = await node.work(handlers, until_idle=True, concurrency=1)
            if worker.failed:
                raise Failed("a pass has failed; `hocket jobs --kind likewise.derive.` shows why")
            if worker.is_stopping:
                return
    finally:
        await node.finish()


def _print(lines: "list[PassLine]", check: bool) -> None:
    if check:
        rows = [(each.derivation, each.job_id, each.read, each.derived, each.verdict, each.detail) for each in lines]
        table(("derivation", "pass", "read", "derived", "here", "note"), rows, "no pass has run yet")
    elif lines:
        say(f"{counted(sum(each.derived for each in lines), 'op')} derived by {counted(len(lines), 'job')}")
    else:
        say("nothing to derive")
