"""Values that a command needs and the log must not hold."""

import os
from pathlib import Path

import pytest

import hocket
from hocket.errors import Failed, Usage
from hocket.extensions.command.secrets import KEPT_S_MAX, Handed, Secrets, seal, secrets_of, unseal
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.keys import SigningKey
from hocket.node.node import SyncNode
from hocket.node.runtime import Runtime

JOB = bytes(range(16))


def test_only_the_claimer_can_open_what_was_sealed_for_it() -> None:
    claimer, other = SigningKey(bytes(32)), SigningKey(bytes(31) + b"x")
    sealed = seal(JOB, 3, {"TOKEN": "swordfish"}, claimer.public)
    assert b"swordfish" not in sealed and b"TOKEN" not in sealed
    assert unseal(sealed, JOB, 3, claimer) == {"TOKEN": "swordfish"}
    assert unseal(sealed, JOB, 3, other) is None
    assert unseal(sealed, JOB, 4, claimer) is None, "for another hold"
    assert unseal(sealed, bytes(16), 3, claimer) is None, "for another job"
    for changed in (b"", sealed[:-1], sealed[:40] + bytes([sealed[40] ^ 1]) + sealed[41:], b"x" * 100):
        assert unseal(changed, JOB, 3, claimer) is None
    assert seal(JOB, 3, {"A": "b"}, claimer.public) != seal(JOB, 3, {"A": "b"}, claimer.public)


@pytest.fixture
def node(tmp_path: Path) -> "SyncNode":
    return SyncNode(Runtime.init(tmp_path / "home"))


def test_secrets_from_python(node: SyncNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "from here")
    script = "test \"$MINE$OTHER\" = 'from herealso' || exit 3"
    named = node.submit(hocket.command("sh", "-c", script, secrets={"MINE": "from here", "OTHER": "also"}))
    taken = node.submit(hocket.command("sh", "-c", 'test "$MINE" = "from here"', secrets=["MINE"]))
    secrets = secrets_of(node.runtime.home)
    assert {*secrets.job_ids()} == {parse_ulid(named.job_id), parse_ulid(taken.job_id)}
    node.work([], allow=(), until_idle=True)
    assert named.result(timeout=10)["exit_code"] == taken.result(timeout=10)["exit_code"] == 0
    assert secrets.is_empty()
    assert node.runtime.show(named.job_id)["payload"]["env"] == {"HOCKET_SECRETS": "MINE:OTHER"}


@pytest.mark.parametrize(
    ("secrets", "sentence"),
    [
        (["NOT_SET_ANYWHERE"], "the secret variable 'NOT_SET_ANYWHERE' is not set here"),
        ({"1": "x"}, "not a variable name"),
        ({"A:B": "x"}, "not a variable name"),
        ({"A": "x" * 300_000}, "the secrets have 300001 bytes"),
        ({"A": os.fsdecode(b"\xff")}, "the value of A is not UTF-8"),
        ({"B": "x"}, "the variable B is both secret and plain"),
    ],
)
def test_what_cannot_be_a_secret_is_said(node: SyncNode, secrets: "dict[str, str] | list[str]", sentence: str) -> None:
    with pytest.raises(Usage, match=sentence):
        node.submit(hocket.command("true", env={"B": "1"}, secrets=secrets))
    assert secrets_of(node.runtime.home).is_empty()


def test_secrets_go_when_their_job_has_ended_or_their_time_is_up(node: SyncNode) -> None:
    handle = node.submit(hocket.command("true", secrets={"A": "1"}))
    secrets, now = secrets_of(node.runtime.home), (node.runtime.home.secrets / handle.job_id).stat().st_mtime
    with node.runtime.read() as session:
        secrets.sweep(session, now + KEPT_S_MAX - 1)
        assert secrets.job_ids() == [parse_ulid(handle.job_id)]
        secrets.sweep(session, now + KEPT_S_MAX + 1)
        assert secrets.is_empty()
    node.work([], allow=(), until_idle=True)
    with pytest.raises(Failed, match="the secret A is not here"):
        handle.result(timeout=10)


def test_what_was_handed_over_is_remembered(tmp_path: Path) -> None:
    secrets = Secrets(tmp_path / "secrets")
    assert secrets.is_empty() and secrets.handed() == []
    secrets.keep(JOB, {"A": "1"})
    handed = Handed(JOB, 2, bytes(16))
    secrets.note_handed(handed)
    assert secrets.handed() == [handed] and secrets.job_ids() == [JOB]
    secrets.forget_handed(handed)
    secrets.forget_handed(handed)
    assert secrets.handed() == [] and secrets.values(JOB) == {"A": "1"}
    assert os.listdir(tmp_path / "secrets") == [ulid_text(JOB)]
