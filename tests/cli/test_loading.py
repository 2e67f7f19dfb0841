"""What short commands load. Loading is most of their processor time, so these are bounds on modules, not on seconds."""

import subprocess

import pytest

from .conftest import PROGRAM, Program

# Typer and what it takes; event loops, threads' pools and other processes; what only some stores and faces use.
NEVER = {
    *("typer", "rich", "asyncio", "ssl", "socket", "logging", "concurrent.futures", "multiprocessing", "subprocess"),
    *("cryptography", "nacl.bindings", "ctypes", "tomllib", "importlib.resources", "cronsim", "zoneinfo", "psycopg"),
    *("hocket.events", "hocket.node.node", "hocket.node.delivery", "hocket.work.worker", "hocket.work.runner"),
    *("hocket.work.handlers", "hocket.work.run_outputs", "hocket.work.command.allowance", "hocket.kernel.yaml_subset"),
    *("hocket.log.intake", "hocket.log.author_check", "hocket.log.audit", "hocket.log.store_check"),
    *("hocket.log.replica", "hocket.log.rebuild", "hocket.log.archive", "hocket.kernel.sanitise", "hocket.kernel.geo"),
    *("hocket.store.postgres", "hocket.store.libsql", "hocket.gitplane", "hocket.rhythm", "hocket.server"),
}
# What writes: a command that only reads jobs needs none of it.
WRITING = {"hashlib", "hocket.log.transaction", "hocket.log.projection", "hocket.log.sealing", "hocket.kernel.signing"}
# The most modules of Hocket that a command loads.
MOST = {
    "jobs": 131,
    "show": 130,
    "status": 178,
    "submit test.echo": 153,
    "send editor hello": 170,
    "inbox": 170,
    "lock list": 162,
}


def loaded(hocket: Program, *words: str) -> set[str]:
    done = subprocess.run(
        [PROGRAM[0], "-X", "importtime", *PROGRAM[1:], *words], capture_output=True, text=True, env=hocket.environment()
    )
    assert done.returncode == 0, done.stderr[-1000:]
    return {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.touches("VX-01")
@pytest.mark.parametrize("line", MOST)
def test_a_command_loads_what_it_needs(hocket: Program, line: str):
    job_id = hocket.submit("test.echo")
    hocket("cancel", job_id, code=0)
    words = [*line.split(), *([job_id] if line == "show" else [])]
    modules = loaded(hocket, *words)
    assert "hocket.node.runtime" in modules
    assert sorted(modules & NEVER) == []
    if line in ("jobs", "show"):
        assert sorted(modules & WRITING) == []
    ours = sorted(each for each in modules if each.split(".")[0] == "hocket")
    assert len(ours) <= MOST[line], ours


def test_help_is_typers(hocket: Program):
    assert "typer" in loaded(hocket, "jobs", "--help")
