"""`hocket derive`: the coordinator's derivation pass, and its repetition on any node."""

from typing import Annotated

import typer

from hocket.cli.app import new_app
from hocket.cli.output import emit, say
from hocket.cli.settings import HomeOption, JsonOption, open_service
from hocket.errors import Failed, Usage
from hocket.kernel.plurals import counted

app = new_app()


@app.command()
def derive(
    modules: Annotated[
        list[str], typer.Argument(metavar="MODULE...", help="Modules with derivations: dotted names or .py files.")
    ],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only this derivation.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Repeat all passes and compare; write nothing.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with every new op until Ctrl-C.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run derivations: pure functions, registered with `@hocket.derivation`, over all ops that count, in the order of
    time. It begins where the last pass ended, writes what follows as the results of jobs, and ends when all ops are
    read. Only the coordinator may. Any node can repeat the passes with --check; exit code 1 means that something
    differs.

    \b
      hocket derive rhythm.py
      hocket derive rhythm.py --follow
      hocket derive rhythm.py --check
    """
    from hocket.service import derive as passes
    from hocket.work.derivation import REGISTRY
    from hocket.work.handlers import load

    if check and follow:
        raise Usage("give --check or --follow")
    load(modules)
    wanted = [each for each in REGISTRY.values() if name in (None, each.name)]
    if not wanted:
        known = ", ".join(sorted(REGISTRY)) or "none; register one with `@hocket.derivation`"
        raise Usage(f"no derivation{'' if name is None else f' {name!r}'} in these modules; they have {known}")
    with open_service() as service:
        seen = 0
        while not check:
            done = [passes.derive(service, each) for each in wanted]
            if not seen or any(each.passes for each in done):
                emit(done)
                for each in done:
                    say(f"{each.name}: {counted(each.values, 'value')} from {counted(each.ops, 'op')}")
            if not follow:
                return
            seen = passes.more(service, seen)
        checked = [passes.check(service, each) for each in wanted]
    emit(checked)
    for found in checked:
        say(f"{found.name}: passes repeated: {found.passes}")
        for job_id in found.other_ops:
            say(f"pass {job_id} read other ops than count here now", "warn")
        for job_id in found.other_results:
            say(f"pass {job_id} gives another result", "warn")
    if any(found.other_ops or found.other_results for found in checked):
        raise Failed("the passes on the log differ from their repetition here")
