"""Which commands of other nodes a worker runs, and which patterns allow more than they seem to."""

import os
from pathlib import Path

import pytest

from hocket.errors import Usage
from hocket.extensions.command import sandbox
from hocket.extensions.command.allowance import AS_ROOT, PROCESSES_MAX, Allowance, configured, read_pattern
from hocket.extensions.command.manifest import Manifest, parse_manifest
from hocket.work.presence import Serving


@pytest.fixture(autouse=True)
def no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test says whether a sandbox can be made, and whether the worker is root's."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sandbox, "_found", [sandbox.Bubblewrap("", "there is none")])


@pytest.fixture
def a_sandbox(no_sandbox: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_found", [sandbox.Bubblewrap("/bin/bwrap", "")])


def asked(*argv: str, **env: str) -> Manifest:
    return parse_manifest({"command": [*argv], "timeout": 1} | ({"env": env} if env else {}))


def allowing(*patterns: str, variables: tuple[str, ...] = ()) -> Allowance:
    return Allowance().extended(patterns, False, variables)


@pytest.mark.parametrize(
    ("pattern", "argv", "fits"),
    [
        ("make", ["make"], True),
        ("make", ["make", "test"], False),
        ("make *", ["make", "test"], True),
        ("make *", ["make"], False),
        ("make *", ["make", "test", "--eval=x:;evil"], False),
        ("make *", ["make", "a", "b"], False),
        ("make *", ["make", "--eval=$(shell evil)"], False),
        ("make *", ["make", "-f/dev/stdin"], False),
        ("make ?*", ["make", "-C/"], False),
        ("make -j* *", ["make", "-j8", "test"], True),
        ("make -j* *", ["make", "test", "-j8"], False),
        ("make test", ["make test"], False),
        ("make test", ["make", "test; evil"], False),
        ("cat *.txt", ["cat", "a b.txt"], True),
        ("cat 'a b' *", ["cat", "a b", "c"], True),
        ("ffmpeg **", ["ffmpeg"], True),
        ("ffmpeg **", ["ffmpeg", "-i", "x", "y"], True),
        ("ffmpeg -i * **", ["ffmpeg", "-i", "x", "-y"], True),
        ("ffmpeg -i * **", ["ffmpeg", "-y", "x"], False),
        ("ffmpeg -i * **", ["ffmpeg", "-i"], False),
        ("make *", ["/tmp/make", "test"], False),
        ("MAKE *", ["make", "test"], False),
    ],
)
def test_patterns_match_argument_by_argument(pattern: str, argv: list[str], fits: bool) -> None:
    assert allowing(pattern).allows(asked(*argv)) is fits


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("**", "name a program"),
        ("make ** test", "must be the last word"),
        ("make 'test", "No closing quotation"),
    ],
)
def test_a_pattern_that_means_nothing_is_refused(pattern: str, sentence: str) -> None:
    with pytest.raises(Usage, match=sentence):
        read_pattern(pattern)


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "TMPDIR", "MAKEFILES", "MAKEFLAGS", "PERLLIB", "LD_PRELOAD", "CI", "HOCKET_OTHER"]
)
def test_others_set_no_variable_that_is_not_on_the_list(name: str) -> None:
    assert not allowing("make test").allows(asked("make", "test", **{name: "x"}))
    assert not allowing("make test").allows(asked("make", "test", HOCKET_SECRETS=f"OK:{name}")), "nor as a secret"
    assert allowing("make test", variables=(name, "OK")).allows(asked("make", "test", **{name: "x"}))
    assert allowing("make test", variables=(name, "OK")).allows(asked("make", "test", HOCKET_SECRETS=f"OK:{name}"))


def test_the_variables_that_tell_us_how_to_run_it_need_no_leave() -> None:
    assert allowing("make test").allows(asked("make", "test", HOCKET_OUTPUTS="a", HOCKET_SANDBOX="on"))


def test_a_sandbox_is_the_default_where_one_can_be_made(a_sandbox: None) -> None:
    allowed = allowing("make test")
    assert allowed.sandbox_for(asked("make", "test")) == "on"
    assert allowed.sandbox_for(asked("make", "test", HOCKET_SANDBOX="network")) == "on"
    assert allowed._replace(sandbox="off").sandbox_for(asked("make", "test")) == "off"
    assert allowed._replace(sandbox="off").sandbox_for(asked("make", "test", HOCKET_SANDBOX="on")) == "on"


def test_without_bubblewrap_others_run_only_where_no_sandbox_is_required() -> None:
    allowed = Allowance(anything=True)
    assert allowed.allows(asked("make")) and allowed.sandbox_for(asked("make")) == "off"
    required = allowed._replace(sandbox="required")
    assert not required.allows(asked("make")) and required.sandbox_for(asked("make")) == "on"
    assert [*required.warnings()] == [
        "commands of other nodes do not run: a sandbox is required, but there is none",
    ]


def test_that_there_is_no_sandbox_is_told_where_others_may_run_something() -> None:
    (told,) = allowing("ffmpeg -i *").warnings()
    assert told.startswith("commands of other nodes run without a sandbox")
    assert [*Allowance().warnings()] == []


@pytest.mark.parametrize(
    "pattern",
    [
        *("*", "* **", "sh *", "sh **", "bash -c *", "/bin/sh -c *", "python *", "python3.11 **", "python tool.py"),
        *(
            "perl -e *",
            "env **",
            "xargs **",
            "make",
            "make *",
            "make test",
            "make **",
            "npm test",
            "./run.sh",
            "bin/x *",
        ),
        *("[a-z]*", "git **", "python3 -m pytest", "gcc-1? x"),
    ],
)
def test_a_pattern_that_allows_anything_is_told(a_sandbox: None, pattern: str) -> None:
    (told,) = allowing(pattern).warnings()
    assert told.startswith(f"the pattern {pattern!r} lets other nodes run anything: ")


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "ffmpeg -i * *.mp4",
            "ffmpeg **",
            "/opt/tool *",
            "make --version",
            "python3 /opt/tool.py *",
            "sh -c 'echo hi'",
        ),
        *("cat *", "makepasswd *", "pythonic *"),
    ],
)
def test_one_that_does_not_is_not(a_sandbox: None, pattern: str) -> None:
    assert [*allowing(pattern).warnings()] == []


@pytest.mark.parametrize("name", ["PATH", "*", "LD_*", "LD_PRELOAD", "PERLLIB", "P*", "MAKEFILES", "HOME", "PYTHON*"])
def test_a_variable_that_decides_what_runs_is_told(a_sandbox: None, name: str) -> None:
    (told,) = allowing("cat *", variables=(name,)).warnings()
    assert f"the variable {name!r} lets other nodes decide" in told
    assert [*allowing("cat *", variables=("CI", "FRAME_*")).warnings()] == []


def test_the_configuration_says_it_all(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '[commands]\nallow = ["ffmpeg -i *"]\nvariables = ["CI"]\nsandbox = "required"\npaths = ["/srv/models"]\n'
        'environment = ["CUDA_VISIBLE_DEVICES"]\n'
    )
    found = configured(path)
    assert [each.text for each in found.patterns] == ["ffmpeg -i *"]
    assert (found.variables, found.sandbox, found.paths) == (("CI",), "required", ("/srv/models",))
    assert "CUDA_VISIBLE_DEVICES" in found.environment
    for text, sentence in (
        ('sandbox = "yes"', "commands.sandbox must be one of auto, required, off, not 'yes'"),
        ("sandbox = true", "commands.sandbox must be one of"),
        ('paths = ["models"]', "commands.paths must name whole paths"),
        ('variables = "CI"', "commands.variables must be a list of strings"),
        ('allow = ["**"]', "commands.allow: bad pattern"),
    ):
        path.write_text(f"[commands]\n{text}\n")
        with pytest.raises(Usage, match=sentence.replace("[", r"\[")):
            configured(path)


def test_no_command_of_another_node_runs_as_root_unless_the_owner_says_so(
    a_sandbox: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for allowed in (Allowance(anything=True), allowing("make test")):
        assert not allowed.allows(asked("make", "test"))
        assert [*allowed.warnings()][-1] == (
            "commands of other nodes do not run: the worker runs as root; run it as a user of its own"
        )
        assert allowed.limit(Serving(("hocket.run",))) == Serving(("hocket.run",), refuses="root")
        permitted = allowed._replace(as_root=True)
        assert permitted.allows(asked("make", "test"))
        assert "commands of other nodes run as root" in [*permitted.warnings()][-1]
    config = tmp_path / "config.toml"
    monkeypatch.delenv(AS_ROOT)
    assert not configured(config).as_root
    config.write_text("[commands]\nas_root = true\n")
    assert configured(config).as_root
    config.unlink()
    monkeypatch.setenv(AS_ROOT, "1")
    assert configured(config).as_root


def test_the_network_is_the_owners_switch(a_sandbox: None, tmp_path: Path) -> None:
    online = asked("make", "test", HOCKET_SANDBOX="network")
    for allowed in (Allowance(anything=True), allowing("make test")):
        assert not allowed.allows(online) and allowed.allows(asked("make", "test"))
        permitted = allowed._replace(network=True)
        assert permitted.allows(online) and permitted.sandbox_for(online) == "network"
        assert permitted.sandbox_for(asked("make", "test")) == "on", "only for those that ask"
        assert "may use the network" in [*permitted.warnings()][-1]
    config = tmp_path / "config.toml"
    assert not configured(config).network
    config.write_text("[commands]\nnetwork = true\n")
    assert configured(config).network


def test_the_limits_are_the_owners(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    default = configured(config).limits
    assert default.memory_bytes_max > 0 and default.processes_max == PROCESSES_MAX and default.open_files_max > 0
    config.write_text('[commands]\nmemory_mib = 512\nprocesses = 40\nhide = ["/srv/models/licence"]\n')
    found = configured(config)
    assert (found.limits.memory_bytes_max, found.limits.processes_max) == (512 * 1024 * 1024, 40)
    assert found.hide == ("/srv/models/licence",)
    for text, sentence in (
        ("memory_mib = 0", "commands.memory_mib must be a whole number above 0, not 0"),
        ("processes = true", "commands.processes must be a whole number above 0, not True"),
        ('network = "yes"', "commands.network must be true or false, not 'yes'"),
        ("as_root = 1", "commands.as_root must be true or false, not 1"),
        ('paths = ["/"]', "commands.paths must name whole paths"),
        ('hide = ["key.pem"]', "commands.hide must name whole paths"),
    ):
        config.write_text(f"[commands]\n{text}\n")
        with pytest.raises(Usage, match=sentence):
            configured(config)
