"""The program as a shell and a CI system use it: how it is started, completed and stopped, and how it ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import PATIENCE_S, PROGRAM, Program, until


def test_the_package_is_the_program_too(hocket: Program) -> None:
    said = subprocess.run([sys.executable, "-m", "hocket", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == hocket("--version", code=0).out


def test_a_checkout_without_package_metadata_runs_commands(hocket: Program, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import importlib.metadata as metadata\n"
        "def version(name):\n    raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = version\n"
    )
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert hocket("run", "--", "echo", "ran", environment={"PYTHONPATH": path}, code=0).out == "ran\n"


def test_a_file_of_handlers_imports_its_siblings(hocket: Program, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "sibling_of_handlers.py").write_text("ANSWER = 42\n")
    (elsewhere / "handlers.py").write_text(
        "import hocket\nfrom sibling_of_handlers import ANSWER\n\n"
        '@hocket.job("acme.answer")\ndef answer(ctx):\n    return ANSWER\n'
    )
    job_id = hocket.submit("acme.answer")
    hocket("work", elsewhere / "handlers.py", "--until-idle", code=0)
    assert hocket.show(job_id)["result"] == 42


def test_a_worker_can_fail_for_ci(hocket: Program) -> None:
    hocket.submit("test.echo")
    hocket("work", "tasks.py", "--until-idle", "--fail", code=0)
    hocket.submit("test.fail", "--retries", "1", "--backoff", "1ms")
    hocket.submit("test.fail")
    failed = hocket("work", "tasks.py", "--until-idle", "--fail", "--json", code=1)
    assert failed.json == {"succeeded": 0, "failed": 3, "handed_back": 0}
    assert "2 jobs failed; `hocket jobs --state failed` lists them" in failed.err
    assert "--fail is for --until-idle" in hocket("work", "tasks.py", "--fail", code=2).sentence


@pytest.mark.parametrize(
    "command", [("work", "tasks.py"), ("serve", "--port", "0"), ("jobs", "--watch"), ("log", "--follow")]
)
def test_ctrl_c_has_one_exit_code(hocket: Program, command: tuple[str, ...]) -> None:
    process = hocket.start(*command)
    until(lambda: list((hocket.home / "processes").iterdir()), "its start")
    assert process.stdout is not None and process.stderr is not None
    if command[0] in ("work", "serve"):
        (process.stderr if command[0] == "work" else process.stdout).readline()
    process.send_signal(signal.SIGINT)
    hocket.finished(process, 130)


def completed(hocket: Program, *words: str) -> list[str]:
    asked = {"_HOCKET_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    return hocket(environment=asked).out.split()


def test_words_are_completed(hocket: Program) -> None:
    assert completed(hocket, "hocket", "jo") == ["jobs", "job"]
    assert completed(hocket, "hocket", "jobs", "--sta") == ["--state"]
    assert completed(hocket, "hocket", "git", "ver") == ["verify"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed(shell: str, tmp_path: Path) -> None:
    environment = os.environ | {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    words = [*PROGRAM, "--install-completion", shell]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert f"complete_{shell}" in next(tmp_path.rglob("*hocket*")).read_text()


def test_a_wait_that_ends_badly_answers_in_json(hocket: Program) -> None:
    pending = hocket("submit", "other.kind", "--wait-for", "100ms", "--json", code=5)
    assert set(pending.json) == {"job_id", "kind", "created", "outcome", "result", "error"}
    assert (pending.json["outcome"], pending.json["error"]) == (None, None)
    assert "within 0.1 seconds" in pending.sentence
    worker = hocket.start("work", "tasks.py")
    until(lambda: " serves " in hocket("status").out, "the worker")
    failed = hocket("submit", "test.fail", "--wait", "--json", code=1)
    assert (failed.json["outcome"], failed.json["result"]) == ("failed", None)
    assert failed.json["error"] == "ValueError: it broke" and "it broke" in failed.sentence
    done = hocket("submit", "test.echo", "--wait", "--json", code=0).json
    assert (done["outcome"], done["result"], done["error"]) == ("succeeded", {}, None)
    worker.send_signal(signal.SIGTERM)
    hocket.finished(worker)


SHORT = [
    *(
        ["status"],
        ["jobs"],
        ["nodes"],
        ["whoami"],
        ["doctor"],
        ["peers", "list"],
        ["cron", "list"],
        ["route", "--list"],
    ),
    *(["artifacts", "list"], ["rules", "show"], ["keys", "show"], ["coordinator", "--show"], ["invite", "--list"]),
    *(["log"], ["log", "verify"], ["log", "late"], ["log", "rebuild"], ["git", "trust", "list"]),
    *(["submit", "test.echo"], ["run", "--", "echo", "x"], ["run", "--detach", "--", "echo", "x"]),
    *(["work", "--until-idle"], ["cron", "add", "n", "* * * * *", "a.b"], ["may", "here", "claim", "a.b"]),
]


@pytest.mark.parametrize("words", SHORT, ids=" ".join)
def test_with_json_stdout_is_json_and_nothing_else(hocket: Program, words: list[str]) -> None:
    options = words.index("--") if "--" in words else len(words)
    json.loads(hocket(*words[:options], "--json", *words[options:], code=0).out)
