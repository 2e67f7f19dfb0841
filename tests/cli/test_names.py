"""Names of nodes: an owner chooses them, and nodes that are called alike are pointed out."""

import signal
from pathlib import Path

import pytest

from .conftest import Program


def test_init_names_the_node(tmp_path: Path) -> None:
    hocket = Program(tmp_path / "home")
    assert hocket("init", "--name", "rack-1", "--json", code=0).json["name"] == "rack-1"
    assert hocket("whoami", "--json", code=0).json["name"] == "rack-1"


@pytest.mark.parametrize("name", ["here", "no spaces", "dead", ""])
def test_init_refuses_a_bad_name(tmp_path: Path, name: str) -> None:
    hocket = Program(tmp_path / "home")
    assert "bad name" in hocket("init", "--name", name, code=2).sentence
    assert not (tmp_path / "home").exists()


def test_two_nodes_are_not_called_alike_without_a_word(tmp_path: Path) -> None:
    first, second = Program(tmp_path / "first"), Program(tmp_path / "second")
    first("init", "--name", "rack-1", code=0)
    said = second("init", "--user-key", first.home / "user.key", code=0)
    assert "rename this one with `hocket keys reissue --name NAME`" in said.err
    second("keys", "reissue", "--name", "rack_1", code=0)
    server = first.start("serve", "--port", "0")
    assert server.stdout is not None
    address = server.stdout.readline().split()[1]
    second("peers", "add", address, code=0)
    word = "these nodes are called alike: "
    assert word in second("sync", code=0).err and word in first("nodes", code=0).err
    assert "looks too much like rack-1" in second("keys", "reissue", "--name", "rack-1", code=3).sentence
    second("keys", "reissue", "--name", "rack-2", code=0)
    told = second("sync", code=0)
    assert told.err == first("nodes", code=0).err == ""
    assert {each["name"] for each in first("nodes", "--json", code=0).json} == {"rack-1", "rack-2"}
    server.send_signal(signal.SIGTERM)
    first.finished(server)
