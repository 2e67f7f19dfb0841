"""`hocket testing worker`: the example workers keep every promise, and a worker that breaks one is told which."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from hocket.testing.workers import put_to_trial, try_worker
from hocket.testing.workers.promises import PROMISES, Promise
from hocket.testing.workers.temporary_server import TemporaryServer
from hocket.testing.workers.trial import Trial
from tests.cli.fork_server import ROOT, run_command, start_command
from tests.server.served import environment
from tests.testing.worker_examples import WORKERS, command
from tests.waiting import PATIENCE_S, wait_for

# The shell counts seconds, and starts some processes for each renewal.
LEASE_S = 8.0
TRIALS_S = 120.0


@pytest.mark.slow
@pytest.mark.parametrize("language", ["python", "shell", "typescript", "go"])
def test_an_example_keeps_every_promise(tmp_path: Path, language: str):
    worker = command(language, tmp_path)
    findings = asyncio.run(try_worker(worker, lease_s=LEASE_S, patience_s=TRIALS_S, at_once=len(PROMISES)))
    assert len(findings) == len(PROMISES)
    # On a busy machine, one of so many workers may stand still for a whole lease. What it breaks alone, it breaks.
    if broken := [each.promise for each in findings if not each.kept]:
        findings = asyncio.run(try_worker(worker, broken, lease_s=2 * LEASE_S, patience_s=TRIALS_S, at_once=1))
    assert [f"{each.promise}: {each.seen} ({each.printed})" for each in findings if not each.kept] == []


# What a broken worker does instead, as changes of the example in Python, and what the trial of the promise sees.
BROKEN: dict[str, tuple[list[tuple[str, str]], str]] = {
    "works": ([('return payload.get("echo")', 'return "something else"')], "should have the result 0 succeeded with"),
    "renews": (
        [("    while True:\n        time.sleep(min", "    while False:\n        time.sleep(min")],
        "claimed 2 times",
    ),
    "repeats-claim": (
        [
            (
                "    while is_needed():\n",
                "    while is_needed():\n"
                "        body.update({'claim_id': uuid.uuid4().hex} if 'claim_id' in body else {})\n",
            )
        ],
        "with a new claim_id",
    ),
    "repeats-end": (
        [("    while is_needed():\n", "    while is_needed() and not (path.endswith('end') and pause_s > 0.1):\n")],
        "claimed 2 times",
    ),
    "late-claim": (
        [
            (
                "        renew(new, LEASE_S / 3)",
                "        [setattr(hold, 'until', time.monotonic() + LEASE_S) for hold in new.values()]",
            )
        ],
        "after its lease, and sent fence 1",
    ),
    "lease-end": ([("        if time.monotonic() >= self.until:", "        if False:")], "of a lease that was over"),
    "stale-fence": (
        [
            (
                "        refused = ",
                "        post('/v1/jobs/end', body, iter([True, False]).__next__)\n        refused = ",
            )
        ],
        "the first refusal was final",
    ),
    "lost": (
        [("        else:  # cancel or lost", '        elif state["state"] == "cancel":')],
        "after it had heard 'lost'",
    ),
    "cancel": (
        [("        else:  # cancel or lost", '        elif state["state"] == "lost":')],
        "after it had heard 'cancel'",
    ),
    "frozen": (
        [
            ("        if time.monotonic() >= self.until:", "        if False:"),
            ("        else:  # cancel or lost", "        elif False:"),
            (
                "        refused = ",
                "        post('/v1/jobs/end', body, iter([True, False]).__next__)\n        refused = ",
            ),
        ],
        "the first refusal was final",
    ),
    "killed": ([('WORKER = f"python-{uuid.uuid4().hex}"', 'WORKER = "python"')], "claimed with the same worker"),
    "drain": (
        [("new, draining, code = claim()", "new, _, code = claim()"), ('if answer.get("drain"):', "if False:")],
        "after an answer with drain",
    ),
    "sigterm": ([('    post("/v1/jobs/goodbye"', '    False and post("/v1/jobs/goodbye"')], "without goodbye"),
    "restart": (
        [("            pass  # No whole answer came", "            os._exit(3)  # No whole answer came")],
        "code 3",
    ),
    "busy": (
        [("        time.sleep(pause_s * random.uniform(0.5, 1))", "        time.sleep(0.01)")],
        "had Retry-After: 1",
    ),
}


@pytest.mark.slow
def test_a_worker_that_breaks_a_promise_is_found(tmp_path: Path):
    source = (WORKERS / "worker.py").read_text("utf-8")

    async def found(promise: Promise, shared: TemporaryServer, lease_s: float) -> tuple[bool, str]:
        changes, _ = BROKEN[promise.name]
        text = source
        for good, bad in changes:
            assert good in text, f"{promise.name}: the example no longer has {good!r}"
            text = text.replace(good, bad, 1)
        worker = tmp_path / f"{promise.name}.py"
        worker.write_text(text, "utf-8")
        async with AsyncExitStack() as stack:
            own = TemporaryServer(tmp_path / f"home-{promise.name}-{lease_s:.0f}")
            server = await stack.enter_async_context(own) if promise.own_server else shared
            trial = Trial(promise.name, server, [sys.executable, str(worker)], tmp_path, lease_s, 10 * lease_s)
            finding = await put_to_trial(promise, trial)
        return finding.kept, finding.seen

    async def all_found() -> dict[str, tuple[bool, str]]:
        async with TemporaryServer(tmp_path / "home") as shared:
            seen = await asyncio.gather(*(found(promise, shared, 4.0) for promise in PROMISES))
            findings = {promise.name: each for promise, each in zip(PROMISES, seen, strict=True)}
            # As above: on a busy machine a trial may see something else.
            for promise in PROMISES:
                if promise.name in missed(findings):
                    findings[promise.name] = await found(promise, shared, 12.0)
        return findings

    def missed(findings: dict[str, tuple[bool, str]]) -> dict[str, tuple[bool, str]]:
        return {name: (kept, seen) for name, (kept, seen) in findings.items() if kept or BROKEN[name][1] not in seen}

    findings = asyncio.run(all_found())
    assert findings.keys() == BROKEN.keys()
    assert missed(findings) == {}


def hocket(tmp_path: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
    return run_command(["testing", "worker", *words], None, environment({}), ROOT, PATIENCE_S)


def test_the_command_prints_a_line_for_each_promise(tmp_path: Path):
    worker = ["--", sys.executable, str(WORKERS / "worker.py")]
    done = hocket(tmp_path, "--json", "--only", "works", *worker)
    (finding,) = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 0 and finding["promise"] == "works" and finding["kept"]
    done = hocket(tmp_path, "--only", "works", "--", sys.executable, "-c", "raise SystemExit('no such worker')")
    assert done.returncode == 1
    assert b"BROKEN  works          the worker ended with exit code 1 before the job ends" in done.stdout
    assert b"it printed last: no such worker" in done.stdout
    assert b"1 of 1 promises broken: works" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), b"write `--` and the command"),
        (("--only", "other", "--", "true"), b"unknown promise 'other'; known are works, renews"),
        (("--", "/no/such/worker"), b"cannot start /no/such/worker"),
    ],
)
def test_wrong_use_is_explained(tmp_path: Path, words: tuple[str, ...], message: bytes):
    done = hocket(tmp_path, *words)
    assert done.returncode == 2 and message in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_trial_leaves_nothing_behind(tmp_path: Path, number: signal.Signals):
    log = tmp_path / "pids"
    worker = ["sh", "-c", f"echo $$ >> {log}; exec {sys.executable} {WORKERS / 'worker.py'}"]
    rest = tmp_path / "rest"
    rest.mkdir()
    with (tmp_path / "output").open("wb") as output:
        words = ["testing", "worker", "--only", "renews", "--only", "lost", "--", *worker]
        kit = start_command(words, environment({"TMPDIR": str(rest)}), ROOT, (output.fileno(), output.fileno()))
    wait_for(lambda: log.exists() and len(log.read_text().split()) == 2, "the workers")
    assert len(processes_of(rest)) >= 3  # the server and two workers
    kit.send_signal(number)
    assert kit.wait(PATIENCE_S) == 130
    assert [*rest.iterdir()] == []
    # A process that was killed may take a moment to go.
    wait_for(lambda: processes_of(rest) == [], "the end of all processes")


def processes_of(directory: Path) -> list[int]:
    """The processes that have the directory among their words or variables."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            text = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
            if str(directory).encode() in text and int(path.name) != os.getpid():
                found.append(int(path.name))
    return found
