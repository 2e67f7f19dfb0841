"""`hocket derive`: runs the derivation passes of Python modules now, or repeats the passes that there were and compares
the results.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated

from hocket.cli.declarations import Argument, Option, new_app
from hocket.cli.output import emit, say, table
from hocket.cli.settings import open_runtime
from hocket.errors import Failed, NotAuthorised, Usage
from hocket.kernel.texts import counted

if TYPE_CHECKING:
    from hocket.api.ops import PassLine
    from hocket.node.runtime import Runtime
    from hocket.work.derivation import Derivation

app = new_app()


@app.command()
def derive(
    modules: Annotated[
        list[str],
        Argument(metavar="MODULE...", help="Modules with derivations: dotted names or .py files."),
    ],
    name: Annotated[
        list[str] | None, Option("--name", metavar="NAME", help="Only this derivation; may be repeated.")
    ] = None,
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
      hocket derive graph.py
      hocket derive graph.py --check        (on any node of the mesh)
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
            raise NotAuthorised("only the coordinator derives; `hocket coordinator` says which node that is")
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
