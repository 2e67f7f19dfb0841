"""What short commands and workers load. Loading is most of the processor time of a command and half of the memory of a
worker, so these are bounds on modules, not on seconds or bytes.
"""

import subprocess
import sys

import pytest

from hocket.cli import commands, declarations
from hocket.kernel import extension

from .conftest import PROGRAM, Program

# Typer and what it takes; what typing_extensions and dataclasses take; event loops, threads' pools and other processes;
# what only some stores and faces use.
NEVER = {
    *("typer", "rich", "inspect", "ast", "random"),
    *("asyncio", "ssl", "socket", "logging", "concurrent.futures", "multiprocessing", "subprocess"),
    *("cryptography", "nacl.bindings", "ctypes", "tomllib", "importlib.resources", "cronsim", "zoneinfo", "psycopg"),
    *("hocket.events", "hocket.node.node", "hocket.node.delivery", "hocket.work.worker", "hocket.work.runner"),
    *(
        "hocket.work.handlers",
        "hocket.work.run_outputs",
        "hocket.extensions.command.allowance",
        "hocket.kernel.yaml_subset",
    ),
    *("hocket.log.intake", "hocket.log.author_check", "hocket.log.audit", "hocket.log.store_check"),
    *("hocket.log.copies", "hocket.log.rebuild", "hocket.kernel.sanitise"),
    *(
        "hocket.store.postgres",
        "hocket.store.libsql",
        "hocket.extensions.git.git",
        "hocket.extensions.tempo.pulse",
        "hocket.server",
    ),
}
# What writes: a command that only reads jobs needs none of it.
WRITING = {"hashlib", "hocket.log.transaction", "hocket.log.projection", "hocket.log.sealing", "hocket.kernel.signing"}
# The most modules of Hocket that a command loads. Eleven are the records and the payloads of families, by which ops are
# decoded.
MOST = {
    "jobs": 102,
    "show": 102,
    "status": 123,
    "submit test.echo": 115,
    "send editor hello": 125,
    "inbox": 125,
    "lock list": 115,
}
# What a worker on SQLite, with plain handlers and without peers, has no work for: OpenSSL's signatures, secrets,
# schedules, jobs in git, other databases, servers of buses, webhooks.
IDLE = {
    *("cryptography", "nacl.bindings", "zoneinfo", "cronsim", "psycopg", "nats", "aiohttp", "starlette"),
    *("hocket.extensions.git.git", "hocket.extensions.git.planes", "hocket.log.store_check", "hocket.mesh.services"),
    *("tomllib", "http.client", "email", "hocket.extensions.webhooks.sending"),
    *(
        "hocket.store.postgres",
        "hocket.store.libsql",
    ),
}
# What the worker of a program has no work for besides: handler processes, commands, interrupted handlers, blobs.
EMBEDDED = {
    "ctypes",
    "typer",
    "rich",
    "multiprocessing",
    "tempfile",
    "shutil",
    "pickle",
    "hocket.extensions.command.job",
}
# The most modules of Hocket that such workers load. Some come with rounds that a short worker may not see.
WORK_MOST, EMBEDDED_MOST = 401, 331
WORKER = """
import sys

import hocket

@hocket.job("test.echo")
def echo(ctx, **payload):
    return payload

with hocket.open(sys.argv[1]) as node:
    node.submit(echo)
    node.work([echo], until_idle=True)
"""


def loaded(hocket: Program, *words: str) -> set[str]:
    return loaded_by(hocket, *PROGRAM[1:], *words)


def loaded_by(hocket: Program, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, env=hocket.environment()
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


@pytest.mark.touches("VX-01")
def test_a_worker_loads_what_its_jobs_need(hocket: Program):
    hocket.submit("test.echo")
    modules = loaded(hocket, "work", str(hocket.home.parent / "tasks.py"), "--until-idle")
    assert "hocket.work.worker" in modules
    assert sorted(modules & IDLE) == []
    ours = sorted(each for each in modules if each.split(".")[0] == "hocket")
    assert len(ours) <= WORK_MOST, ours


@pytest.mark.touches("VX-01")
def test_the_worker_of_a_program_loads_what_its_jobs_need(hocket: Program):
    modules = loaded_by(hocket, "-c", WORKER, str(hocket.home))
    assert "hocket.work.worker" in modules
    assert sorted(modules & (IDLE | EMBEDDED)) == []
    ours = sorted(each for each in modules if each.split(".")[0] == "hocket")
    assert len(ours) <= EMBEDDED_MOST, ours


def test_help_is_typers(hocket: Program):
    assert "typer" in loaded(hocket, "jobs", "--help")


def test_everything_that_is_loaded_by_its_place_is_there():
    """No import names these, so no type checker does."""
    for place, _ in commands.COMMANDS.values():
        declarations.loaded(place)
    for each in extension.extensions():
        seams = (each.shortcuts, each.members, each.submits, each.tasks, each.watches, each.checks, each.pacers)
        places = [
            place
            for seam in (*seams, each.context, each.node, each.counts, each.request_proofs)
            for place in seam.values()
        ]
        places += [place for kind in each.kinds for place in (kind.printed, kind.worker, kind.server, kind.refusal)]
        for place in (*places, each.proof, each.runtime, each.worker):
            assert not place or extension.loaded(place)
