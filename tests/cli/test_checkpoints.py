"""Checkpoints from the command line: a tail that was cut together with its end mark is found by what was kept
elsewhere, and by a peer that has cosigned more.
"""

import json
import sqlite3
from base64 import b64decode
from contextlib import closing
from pathlib import Path

import pytest

from hocket.kernel.checkpoints.merkle import is_included, leaf_hash
from hocket.kernel.checkpoints.notes import is_signed_by, read_checkpoint, read_note, verifier_key
from hocket.kernel.keys import SigningKey
from hocket.node.home import Home
from tests.cli.conftest import Program

HEAD = "SELECT * FROM head"


class Cut:
    """What someone with write access to the database does: the end of the log, as it was at some moment, is put back,
    and all that came after it is removed, also what the node itself knows of it.
    """

    def __init__(self, hocket: Program) -> None:
        self._database = hocket.home / "log.db"
        with closing(sqlite3.connect(self._database)) as connection:
            (self._head,) = connection.execute(HEAD).fetchall()
            (self._last,) = connection.execute("SELECT max(seq) FROM ops").fetchone()

    def do(self) -> int:
        """Returns how many rows of the log are gone."""
        with closing(sqlite3.connect(self._database, isolation_level=None)) as connection:
            gone = connection.execute("DELETE FROM ops WHERE seq > ?", (self._last,)).rowcount
            connection.execute("DELETE FROM head")
            marks = ", ".join("?" * len(self._head))
            connection.execute(f"INSERT INTO head VALUES ({marks})", self._head)
            connection.execute("DELETE FROM checkpoints")
            return gone


def test_a_checkpoint_is_shown_and_the_list_has_it(used: Program) -> None:
    shown = used("log", "checkpoint", "--json", code=0).json
    note = read_note(shown["note"].encode())
    checkpoint = read_checkpoint(note.text)
    key = SigningKey(Home(used.home).node_key().seed).public
    assert is_signed_by(note, checkpoint.origin, key) and shown["key"] == verifier_key(checkpoint.origin, key)
    assert (shown["size"], shown["root"]) == (checkpoint.size, checkpoint.root.hex())
    assert shown["size"] > 0 and shown["cosigned"] == [] and shown["standing"] == "signed"
    assert used("log", "checkpoint", code=0).out == shown["note"]
    assert used("log", "checkpoints", "--json", code=0).json == [shown]
    assert str(shown["size"]) in used("log", "checkpoints", code=0).out
    assert used("log", "checkpoint", "--author", "nobody").code == 2


def test_an_op_is_proved_to_be_in_the_history_of_its_author(used: Program) -> None:
    job = used.submit("test.echo")
    (op,) = (each for each in used("show", job, "--json", code=0).json["ops"] if each["type"] == "ScheduleJob")
    assert "make one there with `hocket log checkpoint`" in used("log", "prove", op["id"], code=3).sentence
    used("log", "checkpoint", code=0)
    shown = used("log", "prove", op["id"], "--json", code=0).json
    head, _, note_text = shown["text"].partition("\n\n")
    form, extra, index, *hashes = head.split("\n")
    note = read_note(note_text.encode())
    checkpoint = read_checkpoint(note.text)
    assert (form, index) == ("c2sp.org/tlog-proof@v1", f"index {shown['index']}")
    entry = b64decode(extra.removeprefix("extra "))
    proof = [b64decode(each) for each in hashes]
    assert is_included(leaf_hash(entry), shown["index"], checkpoint.size, checkpoint.root, proof)
    assert not is_included(leaf_hash(entry + b"x"), shown["index"], checkpoint.size, checkpoint.root, proof)
    key = SigningKey(Home(used.home).node_key().seed).public
    assert is_signed_by(note, checkpoint.origin, key) and shown["key"] == verifier_key(checkpoint.origin, key)
    assert used("log", "prove", op["id"], code=0).out == shown["text"]
    assert "is not the id of an op" in used("log", "prove", "x", code=2).sentence
    assert "no op" in used("log", "prove", "01J00000000000000000000000", code=2).sentence


def test_without_entries_since_it_stays_and_with_some_it_grows(used: Program) -> None:
    first = used("log", "checkpoint", "--json", code=0).json
    assert used("log", "checkpoint", "--json", code=0).json == first
    used.submit("test.echo")
    second = used("log", "checkpoint", "--json", code=0).json
    assert second["size"] == first["size"] + 1 and second["root"] != first["root"]
    used("log", "verify", code=0)


@pytest.mark.req("VX-08")
def test_a_tail_that_was_cut_with_its_end_mark_is_found_by_a_checkpoint_that_was_kept(
    used: Program, tmp_path: Path
) -> None:
    cut = Cut(used)
    used.submit("test.echo")
    kept = tmp_path / "checkpoint.txt"
    kept.write_text(used("log", "checkpoint", code=0).out)
    assert used("log", "verify", "--checkpoint", kept, code=0).err == ""
    assert cut.do() > 0
    used("log", "verify", code=0)
    found = used("log", "verify", "--checkpoint", kept, "--json", code=1).json["findings"]
    assert [each["what"].split(":")[0] for each in found] == ["the tail is cut"]
    # Whoever goes on from there has other entries.
    used.submit("test.echo")
    used.submit("test.echo")
    (other,) = used("log", "verify", "--checkpoint", kept, "--json", code=1).json["findings"]
    assert "not the first on this log" in other["what"]


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"", 2, "cannot be read"),
        (b"\xff", 2, "cannot be read"),
        (None, 2, "cannot read"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_a_usage_error(
    used: Program, tmp_path: Path, content: bytes | None, code: int, says: str
) -> None:
    file = tmp_path / "note"
    if content is not None:
        file.write_bytes(content)
    assert says in used("log", "verify", "--checkpoint", file, code=code).sentence


def test_a_checkpoint_of_another_mesh_or_with_another_signature_is_a_finding(
    used: Program, fresh_home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "note"
    other = Program(tmp_path / "other")
    other("init", code=0)
    file.write_text(other("log", "checkpoint", code=0).out)
    (found,) = used("log", "verify", "--checkpoint", file, "--json", code=1).json["findings"]
    assert "no node of this mesh" in found["what"]
    own = used("log", "checkpoint", code=0).out
    lines = own.splitlines(keepends=True)
    file.write_text("".join([lines[0], "7\n", *lines[2:]]))
    (found,) = used("log", "verify", "--checkpoint", file, "--json", code=1).json["findings"]
    assert "not signed by" in found["what"]


@pytest.mark.req("VX-08")
def test_what_was_changed_in_the_stored_checkpoints_is_found_or_believed_by_nobody(used: Program) -> None:
    used("log", "checkpoint", code=0)
    with closing(sqlite3.connect(used.home / "log.db", isolation_level=None)) as connection:
        assert connection.execute("UPDATE checkpoints SET size = size + 1 WHERE state = 'signed'").rowcount == 1
    used("log", "verify", code=0)
    assert used("log", "checkpoints", "--json", code=0).json == []
    used("log", "checkpoint", code=0)
    assert len(used("log", "checkpoints", "--json", code=0).json) == 1


@pytest.mark.req("VX-07", "VX-08")
def test_a_tail_that_was_cut_with_its_end_mark_is_found_as_soon_as_a_peer_has_cosigned_it(
    used: Program, tmp_path: Path
) -> None:
    other = Program(tmp_path / "other")
    other("init", "--user-key", used.home / "user.key", code=0)
    serving = other.start("serve", "--port", "0", "--json")
    assert serving.stdout is not None
    address = json.loads(serving.stdout.readline())["address"]
    used("peers", "add", address, code=0)
    used("sync", code=0)
    cut = Cut(used)
    used.submit("test.echo")
    made = used("log", "checkpoint", "--json", code=0).json
    used("sync", code=0)
    used("log", "verify", code=0)
    (own,) = (each for each in used("log", "checkpoints", "--json", code=0).json if each["node"] == made["node"])
    assert own["size"] == made["size"] and len(own["cosigned"]) == 1
    assert cut.do() > 0
    found = used("log", "verify", "--json", code=1).json["findings"]
    assert any("the tail is cut" in each["what"] and "cosigned" in each["what"] for each in found), found
    other.end_started()
    # What the peer has said is remembered.
    done = used("log", "verify", "--json", code=1)
    found = done.json["findings"]
    assert "no peer answered" in done.err
    assert any("the tail is cut" in each["what"] for each in found), found
