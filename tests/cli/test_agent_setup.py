"""`hocket agent`: what a set-up writes and takes back, and what its hooks refuse."""

import json
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PATIENCE_S, Program

PROGRAMS = ("claude", "codex", "cursor")
# What the files of each program may hold already, in the order in which their programs write them.
THEIRS: dict[str, str] = {
    ".mcp.json": json.dumps({"mcpServers": {"other": {"command": "x"}}}, indent=2) + "\n",
    ".claude/settings.json": json.dumps(
        {"model": "opus", "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "beep"}]}]}}, indent=2
    )
    + "\n",
    ".codex/config.toml": 'model = "gpt" # mine\n\n[mcp_servers.other]\ncommand = "x"\n',
    ".codex/hooks.json": json.dumps({"hooks": {"SessionStart": [{"hooks": []}]}}, indent=4) + "\n",
    ".cursor/mcp.json": json.dumps({"mcpServers": {"other": {"url": "http://x/é"}}}, indent=2, ensure_ascii=False)
    + "\n",
    ".cursor/hooks.json": json.dumps({"version": 1, "hooks": {"stop": [{"command": "./x.sh"}]}}, indent="\t") + "\n",
    "AGENTS.md": "# Ours\n\nUse tabs.\n",
}


def files_of(project: Path) -> dict[str, str]:
    return {str(each.relative_to(project)): each.read_text() for each in project.rglob("*") if each.is_file()}


def edit_of(project: Path, **used: Any) -> str:
    return json.dumps({"cwd": str(project), "hook_event_name": "PreToolUse", "tool_input": used})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "used"])
def test_a_set_up_is_shown_written_once_and_taken_back(
    hocket: Program, project: Path, program: str, is_new: bool
) -> None:
    for name, text in {} if is_new else THEIRS.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    before = files_of(project)
    words = ("agent", "setup", program, "--project", project)
    shown = hocket(*words, "--dry-run", "--json", code=0)
    assert not shown.json["written"] and files_of(project) == before
    refused = hocket(*words, code=2)
    assert "nothing was written; give --yes" in refused.err and "+++ AGENTS.md" in refused.out
    assert files_of(project) == before
    written = hocket(*words, "--yes", "--json", code=0).json
    after = files_of(project)
    changed = {str(project / name) for name in after if after[name] != before.get(name)}
    assert written["written"] and {*written["files"]} == changed and len(changed) == 4
    assert hocket(*words, "--yes", "--json", code=0).json["files"] == []
    for name, text in before.items():
        if name.endswith(".json"):
            kept, now = json.loads(text), json.loads(after[name])
            assert all(now["hooks"][event][: len(hooks)] == hooks for event, hooks in kept.get("hooks", {}).items())
            assert {**now.get("mcpServers", {}), **kept.get("mcpServers", {})} == now.get("mcpServers", {})
        else:
            assert after[name].startswith(text)
    hocket(*words, "--remove", "--yes", code=0)
    assert files_of(project) == before
    assert is_new <= (not any(project.iterdir()))


def test_another_name_replaces_the_first_and_agents_md_stays_for_the_others(hocket: Program, project: Path) -> None:
    for program in PROGRAMS:
        hocket("agent", "setup", program, "--project", project, "--yes", code=0)
    hocket("agent", "setup", "codex", "--agent", "second", "--scope", "repo", "--project", project, "--yes", code=0)
    server = tomllib.loads((project / ".codex/config.toml").read_text())["mcp_servers"]["hocket"]
    assert server["args"][-2:] == ["--agent", "second"]
    hooks = json.loads((project / ".codex/hooks.json").read_text())["hooks"]
    assert [len(each) for each in hooks.values()] == [1, 1]
    assert "--agent second --scope repo" in hooks["PreToolUse"][0]["hooks"][0]["command"]
    assert "in the scope `repo`" in (project / "AGENTS.md").read_text()
    for number, program in enumerate(PROGRAMS):
        assert (project / "AGENTS.md").exists(), number
        hocket("agent", "setup", program, "--project", project, "--remove", "--yes", code=0)
    assert files_of(project) == {}


def test_a_skill_that_was_changed_is_not_taken_away(hocket: Program, project: Path) -> None:
    hocket("agent", "setup", "claude", "--project", project, "--yes", code=0)
    skill = project / ".claude/skills/hocket/SKILL.md"
    skill.write_text(skill.read_text() + "Be kind.\n")
    hocket("agent", "setup", "claude", "--project", project, "--remove", "--yes", code=0)
    assert [*files_of(project)] == [".claude/skills/hocket/SKILL.md"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (".mcp.json", "{// mine\n}", "is not JSON"),
        (".mcp.json", "[]", "has no object at its top"),
        (".mcp.json", '{"mcpServers": 3}', "has not the form that its program reads"),
        (".claude/settings.json", '{"hooks": {"Stop": [3]}}', "has not the form that its program reads"),
        ("AGENTS.md", "<!-- hocket: begin -->\n", "and no line '<!-- hocket: end -->' after it"),
        ("AGENTS.md", "\udcff", "is not text in UTF-8"),
    ],
)
def test_a_file_of_another_form_is_left_alone(
    hocket: Program, project: Path, name: str, text: str, sentence: str
) -> None:
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_text(text, errors="surrogateescape")
    before = (project / name).read_bytes()
    refused = hocket("agent", "setup", "claude", "--project", project, "--yes", code=2)
    assert sentence in refused.sentence and name in refused.sentence
    assert [each for each in project.rglob("*") if each.is_file()] == [project / name]
    assert (project / name).read_bytes() == before


def test_bad_input_to_a_set_up(hocket: Program, project: Path) -> None:
    assert "no such program: 'vi'; give one of claude" in hocket("agent", "setup", "vi", code=2).sentence
    missing = hocket("agent", "setup", "claude", "--project", project / "nowhere", code=2)
    assert "is no folder" in missing.sentence
    (project / ".codex").mkdir()
    (project / ".codex/config.toml").write_text('[mcp_servers.hocket]\ncommand = "mine"\n')
    mine = hocket("agent", "setup", "codex", "--project", project, "--yes", code=2)
    assert "already has a server hocket of yours" in mine.sentence


def test_the_lines_that_a_set_up_writes_run(hocket: Program, project: Path) -> None:
    hocket("agent", "setup", "claude", "--agent", "me", "--project", project, "--yes", code=0)
    hooks = json.loads((project / ".claude/settings.json").read_text())["hooks"]
    (before,), (stop,) = hooks["PreToolUse"][0]["hooks"], hooks["SessionEnd"][0]["hooks"]
    hocket("lock", "acquire", "file:a.py", "--agent", "other", code=0)
    hocket("lock", "acquire", "file:b.py", "--agent", "me", code=0)
    edit = edit_of(project, file_path=str(project / "a.py"))

    def run(hook: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        words, told = shlex.split(hook["command"]), hocket.environment()
        return subprocess.run(words, input=edit, env=told, capture_output=True, text=True, timeout=PATIENCE_S)

    refused = run(before)
    assert refused.returncode == 2 and "is locked by other on" in refused.stderr
    assert run(stop).returncode == 0
    assert [each["agent"] for each in hocket("lock", "list", "--json", code=0).json] == ["other"]


@pytest.mark.req("VX-03")
def test_an_edit_of_what_another_agent_has_locked_is_refused(hocket: Program, project: Path) -> None:
    (project / ".git").mkdir()
    (project / "src").mkdir()
    hocket("lock", "acquire", "file:src/**", "--agent", "other", code=0)
    hocket("lock", "acquire", "file:mine.py", "--agent", "me", code=0)
    hocket("lock", "acquire", f"file:{project.parent}/beside.py", "--agent", "other", code=0)
    hocket("lock", "acquire", "file:scoped.py", "--agent", "other", "--scope", "repo", code=0)
    patch = "*** Begin Patch\n*** Add File: new.py\n+x\n*** Update File: src/a.py\n@@\n*** End Patch"

    def ask(*words: object, folder: Path = project, agent: str = "me", **used: Any) -> list[str]:
        done = hocket("agent", "hook", "before-edit", "--agent", agent, "--json", *words, input=edit_of(folder, **used))
        refused = [each["file"] for each in json.loads(done.out or "[]")]
        assert done.code == (2 if refused else 0), done
        assert all(f"{file} is locked by other on" in done.err and "until 20" in done.err for file in refused)
        return refused

    assert ask(file_path=str(project / "src/a.py")) == [str(project / "src/a.py")]
    assert ask(folder=project / "src", file_path="a.py") == ["a.py"]
    assert ask(command=patch) == ["src/a.py"]
    assert ask(input=patch.replace("src/a.py", "a.py")) == []
    assert ask(files=["mine.py", "src/b.py", "src/a.py"]) == ["src/b.py", "src/a.py"]
    assert ask(edits=[{"file_path": "src/x/y.py", "old": ""}]) == ["src/x/y.py"]
    assert ask(file_path="../beside.py") == ["../beside.py"]
    assert ask(file_path="mine.py") == ask(file_path="other.py") == ask(file_path="scoped.py") == []
    assert ask("--scope", "repo", file_path="scoped.py") == ["scoped.py"]
    assert ask(file_path="src/a.py", agent="other") == []
    assert ask(command="rm -rf src") == []


@pytest.mark.parametrize("said", ["{", "[]", '{"tool_input": 3}', '{"cwd": 3, "tool_input": {}}', "\x00"])
def test_a_hook_that_cannot_answer_does_not_refuse(hocket: Program, said: str) -> None:
    refused = hocket("agent", "hook", "before-edit", "--agent", "me", input=said, code=1)
    assert "stdin is not the JSON that a program sends before an edit" in refused.sentence


def test_a_hook_without_a_home_does_not_refuse(hocket: Program, project: Path) -> None:
    edit = edit_of(project, file_path="a.py")
    missing = hocket("agent", "hook", "before-edit", input=edit, home=project / "none", code=1)
    assert "no home at" in missing.sentence


def test_a_stop_releases_only_the_locks_of_the_agent(hocket: Program) -> None:
    for key, agent, scope in (("a", "me", ""), ("b", "me", "repo"), ("c", "other", "")):
        hocket("lock", "acquire", key, "--agent", agent, "--scope", scope, code=0)
    one = hocket("agent", "hook", "stop", "--agent", "me", "--scope", "repo", "--json", code=0).json
    assert [each["keys"] for each in one] == [["b"]]
    assert [each["keys"] for each in hocket("agent", "hook", "stop", "--agent", "me", "--json", code=0).json] == [["a"]]
    assert [each["agent"] for each in hocket("lock", "list", "--json", code=0).json] == ["other"]
