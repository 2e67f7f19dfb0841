"""Homes: an owner's and an invited node's, what is in each, and who can read it."""

import os
import stat
from pathlib import Path

import pytest

from hocket.errors import Conflict, NotAuthorised, StoreError, Usage
from hocket.kernel.ids import node_text
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import DesignateCoordinator
from hocket.mesh import membership
from hocket.node.home import Home, read_user_key
from hocket.node.runtime import Runtime

from .people import Mesh


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def types(runtime: Runtime) -> list[str]:
    with runtime.read() as session:
        return [type(decode(row.body).payload).__name__ for row in session.ops_after(0, 10)]


def test_what_is_in_each(mesh: Mesh):
    gpu = mesh.join(mesh.invite())
    mesh.close()
    mesh.runtimes.clear()
    for home, files in ((mesh.owner.home, {"user.key"}), (gpu.home, {"user.did"})):
        there = {path.name for path in home.path.iterdir() if path.is_file()}
        assert there == {"complete", "init.lock", "log.db", "node.key"} | files
        assert mode(home.path) == 0o700
        assert {mode(path) for path in home.path.iterdir() if path.is_file()} == {0o600}
        assert home.user_did() == mesh.owner.log.user


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_whatever_the_umask(tmp_path: Path, umask: int):
    before = os.umask(umask)
    try:
        with Runtime.init(tmp_path / "deep" / "home") as runtime:
            assert mode(runtime.home.path) == 0o700
            assert {mode(path) for path in runtime.home.path.iterdir() if path.is_file()} == {0o600}
    finally:
        os.umask(before)


def test_a_directory_that_was_there_before_is_closed_to_others(tmp_path: Path):
    for name, content in (("empty", False), ("full", True)):
        (tmp_path / name).mkdir(mode=0o755)
        if content:
            (tmp_path / name / "notes.txt").write_text("mine")
        Runtime.init(tmp_path / name).close()
        assert mode(tmp_path / name) == 0o700


@pytest.mark.parametrize("key", ["user.key", "node.key"])
@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_key_files_that_others_can_read_are_refused(mesh: Mesh, key: str, bits: int):
    path = mesh.owner.home.path / key
    path.chmod(bits)
    with pytest.raises(Usage, match=f"run `chmod 600 {path}`") as caught:
        Runtime.open(mesh.owner.home.path)
    assert caught.value.exit_code == 2
    path.chmod(0o600)
    Runtime.open(mesh.owner.home.path).close()


def test_other_files_may_be_readable(mesh: Mesh):
    gpu = mesh.join(mesh.invite())
    for home in (gpu.home, mesh.owner.home):
        home.path.chmod(0o755)
        for path in home.path.iterdir():
            if path.is_file() and path.suffix != ".key":
                path.chmod(0o644)
        Runtime.open(home.path).close()


@pytest.mark.req("LW-01", "LW-13")
def test_the_users_first_node_is_the_coordinator_and_no_other(mesh: Mesh, tmp_path: Path):
    assert types(mesh.owner) == ["DelegateUcan", "DesignateCoordinator"]
    with mesh.owner.read() as session:
        payload = decode(session.entry(2).body).payload
    assert payload == DesignateCoordinator(mesh.owner.log.node)
    with Runtime.init(tmp_path / "second", mesh.owner.home.path / "user.key") as second:
        assert types(second) == ["DelegateUcan"] and second.log.user == mesh.owner.log.user
    assert types(mesh.join(mesh.invite())) == ["DelegateUcan", "DelegateUcan"]


def test_an_init_that_was_killed_does_not_forget_whose_key_it_was(mesh: Mesh, tmp_path: Path):
    """Else the second try would take it for the user's first node, and for the coordinator."""
    home = Home(tmp_path / "second")
    home.path.mkdir()
    home.note_user(mesh.owner.log.user)
    with pytest.raises(Usage, match="give its --user-key again"):
        Runtime.init(home.path)
    home.put_user_key(mesh.owner.home.user_key(), None)
    with Runtime.init(home.path) as runtime:
        assert types(runtime) == ["DelegateUcan"]
    with pytest.raises(Conflict, match="another user"):
        stranger = tmp_path / "third"
        Home(stranger).path.mkdir()
        Home(stranger).note_user(did_key(SigningKey(bytes(32)).public))
        Runtime.init(stranger, mesh.owner.home.path / "user.key")


def test_an_invited_nodes_home_has_nothing_of_the_users(mesh: Mesh):
    gpu = mesh.join(mesh.invite())
    with pytest.raises(NotAuthorised, match="has no user's key") as caught:
        gpu.home.user_key()
    assert caught.value.exit_code == 4
    (gpu.home.path / "user.did").write_text("nonsense")
    with pytest.raises(StoreError, match="does not say whose node this is"):
        gpu.home.user_did()
    (gpu.home.path / "user.did").unlink()
    with pytest.raises(Usage, match=r"has lost user\.key"):
        gpu.home.check()


# A locked key.


def test_a_locked_key_is_asked_for_only_when_it_is_needed(tmp_path: Path):
    with Runtime.init(tmp_path / "home", passphrase="open sesame") as runtime:
        assert runtime.home.is_locked() and runtime.log.append_plain("acme.render", b"{}")
        user = runtime.log.user
        seed = runtime.home.user_key(lambda: "open sesame").seed
    assert seed.hex() not in (tmp_path / "home" / "user.key").read_text()
    with Runtime.open(tmp_path / "home") as runtime:
        assert runtime.log.user == user
        runtime.log.append_plain("acme.render", b"{}")
        membership.route(runtime.log, "acme.render", runtime.log.node)
        with pytest.raises(Usage, match="is locked; give its passphrase"):
            runtime.home.user_key()
        with pytest.raises(NotAuthorised, match="wrong passphrase") as caught:
            runtime.home.user_key(lambda: "wrong")
        assert caught.value.exit_code == 4


def test_another_node_with_a_locked_key_keeps_it_locked(tmp_path: Path):
    with Runtime.init(tmp_path / "one", passphrase="secret") as one:
        user = one.log.user
    key = tmp_path / "one" / "user.key"
    with pytest.raises(Usage, match="passphrase"):
        Runtime.init(tmp_path / "two", key)
    assert not (tmp_path / "two").exists()
    with Runtime.init(tmp_path / "two", key, ask=lambda: "secret") as two:
        assert two.log.user == user and two.home.is_locked()
        assert two.home.user_key(lambda: "secret").seed == read_user_key(key, lambda: "secret").seed
        with two.read() as session:
            assert node_text(two.log.node) in {each.id for each in membership.members(two.log, session)}


def test_a_half_made_home_with_a_locked_key_is_finished_with_the_passphrase(tmp_path: Path):
    home = Home(tmp_path / "home")
    home.path.mkdir()
    home.put_user_key(SigningKey(os.urandom(32)), "secret")
    with pytest.raises(Usage, match="passphrase"):
        Runtime.init(home.path)
    with Runtime.init(home.path, ask=lambda: "secret") as runtime:
        assert types(runtime) == ["DelegateUcan", "DesignateCoordinator"] and runtime.home.is_locked()
