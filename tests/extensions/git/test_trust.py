"""A good signature is not a trusted one: whose keys count, what `git verify` answers, and with which exit code."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hocket.errors import StoreError, Usage
from hocket.extensions.git import git_jobs
from hocket.extensions.git.trust import NAME_CHARS_MAX, TrustedKeys, parse_worker
from hocket.kernel.keys import SigningKey, did_key, key_text
from hocket.node.home import Home
from hocket.node.runtime import Runtime
from tests.extensions.git.hands import finished, submitted, worker
from tests.extensions.git.places import Place
from tests.extensions.git.test_workers import hocket, manifest

ONE, TWO = key_text(worker().key.public), key_text(worker("two").key.public)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Runtime.init(tmp_path / "home").close()
    return tmp_path / "home"


@pytest.mark.req("GT-15", "GT-10")
def test_three_answers(here: Place, home: Path):
    """`git verify` called a result good whose key nobody had ever heard of."""
    plane = here.open()
    job = finished(plane)
    words = ("git", "verify", here.directory)
    told = hocket(home, *words, code=4)
    assert f"unknown signed by {ONE}" in told and "hocket git trust add" in told
    assert hocket(home, *words, "--worker", ONE) == "good: 1 job\n"
    assert hocket(home, *words, "--worker", TWO, "--worker", ONE) == "good: 1 job\n"
    hocket(home, *words, "--worker", TWO, code=4)
    here.git("update-ref", job.refs.name("result"), str(finished(plane, 1).refs.result))
    assert "problems in" in hocket(home, *words, "--worker", ONE, code=1)


@pytest.mark.req("GT-15")
def test_the_answers_for_programs(here: Place, home: Path):
    plane = here.open()
    good, bad, unknown = finished(plane, 1), finished(plane, 2), finished(plane, 3, by=worker("two"))
    waiting = submitted(plane, 4)
    here.git("update-ref", "-d", bad.refs.name("claim"))
    told = hocket(home, "git", "verify", here.directory, "--worker", ONE, "--json", code=1)
    said = json.loads(told.splitlines()[0])
    verdicts = {each["content_id"][7:]: each for each in said["verdicts"]}
    assert {
        job.refs.content_id.hex(): verdicts[job.refs.content_id.hex()]["verdict"] for job in (good, bad, unknown)
    } == {
        good.refs.content_id.hex(): "good",
        bad.refs.content_id.hex(): "bad",
        unknown.refs.content_id.hex(): "unknown",
    }
    assert verdicts[waiting.refs.content_id.hex()] == {
        "content_id": "blake3:" + waiting.refs.content_id.hex(),
        "verdict": "good",
        "result": False,
        "signer": None,
    }
    assert verdicts[unknown.refs.content_id.hex()]["signer"] == TWO
    assert said["jobs"] == 4 and {each["content_id"][7:] for each in said["problems"]} == {bad.refs.content_id.hex()}


@pytest.mark.req("GT-15")
def test_a_home_trusts_its_own_node_and_the_keys_on_its_list(here: Place, home: Path, tmp_path: Path):
    plane = here.open()
    finished(plane)
    git_jobs.submit(plane, manifest(1), 1_000)
    hocket(home, "git", "work", here.directory, "--allow-any", "--until-idle")
    verify = ("git", "verify", here.directory)
    assert "1 of 2 jobs" in hocket(home, *verify, code=4)
    assert ONE in hocket(home, "git", "trust", "add", ONE, "--name", "the build server")
    assert "already trusted" in hocket(home, "git", "trust", "add", ONE.removeprefix("ed25519:"))
    assert hocket(home, *verify) == "good: 2 jobs\n"
    own = key_text(Home(home).node_key().public)
    assert [line.split("\t")[:2] for line in hocket(home, "git", "trust", "list").splitlines()] == [
        [own, "this node"],
        [ONE, "added"],
    ]
    # Without a home there is nobody to trust, but those who are named.
    assert "2 of 2 jobs" in hocket(tmp_path / "none", *verify, code=4)
    assert hocket(tmp_path / "none", *verify, "--worker", ONE, "--worker", own) == "good: 2 jobs\n"
    hocket(home, "git", "trust", "remove", ONE)
    hocket(home, *verify, code=4)
    assert "is not a trusted key" in hocket(home, "git", "trust", "remove", ONE, code=2)
    assert "is not a worker's key" in hocket(home, "git", "trust", "add", "ed25519:12", code=2)
    assert "is not a worker's key" in hocket(home, *verify, "--worker", "me", code=2)


@pytest.mark.req("GT-15")
def test_a_home_that_cannot_be_read_trusts_nobody(here: Place, home: Path):
    finished(here.open())
    (home / "git").mkdir(exist_ok=True)
    (home / "git" / "trusted").write_text("nonsense\n")
    told = hocket(home, "git", "verify", here.directory, code=4)
    assert "line 1 of" in told and "cannot read the keys" in told


@pytest.mark.req("GT-10", "GT-15")
def test_a_plain_clone_says_how_to_get_the_jobs(here: Place, home: Path, tmp_path: Path):
    """It said "good: 0 jobs"."""
    job = finished(here.open())
    clone = tmp_path / "a clone"
    git = {"env": here.outside, "check": True, "capture_output": True}
    subprocess.run(["git", "clone", "-q", str(here.directory), str(clone)], **git)  # type: ignore[call-overload]
    told = hocket(home, "git", "verify", clone, code=1)
    assert "nothing to verify" in told
    command = told.split("fetch them with: ")[1].strip()
    assert command == f"git -C '{clone}' fetch origin 'refs/gatos/*:refs/gatos/*'"
    assert command in hocket(home, "git", "show", clone, job.refs.content_id.hex(), code=2)
    subprocess.run(["sh", "-c", command], **git)  # type: ignore[call-overload]
    assert hocket(home, "git", "verify", clone, "--worker", ONE) == "good: 1 job\n"


def test_an_empty_repository_has_nothing_to_verify(here: Place, home: Path):
    assert hocket(home, "git", "verify", here.directory) == "good: 0 jobs\n"


@pytest.mark.req("GT-13")
def test_a_job_is_named_by_its_ulid_in_every_command(here: Place, home: Path):
    ulid = "01JBZ8Q0000000000000000000"
    file = home.with_name("job.yaml")
    file.write_text(f"command: [/bin/true]\ntimeout: 9\nulid: {ulid}\n")
    made = json.loads(hocket(home, "git", "submit", here.directory, file, "--json"))["content_id"]
    shown = json.loads(hocket(home, "git", "show", here.directory, ulid, "--json"))
    assert shown["content_id"] == made and shown["manifest"]["ulid"] == ulid
    said = json.loads(hocket(home, "git", "verify", here.directory, ulid, "--json"))
    assert [each["content_id"] for each in said["verdicts"]] == [made]
    assert json.loads(hocket(home, "git", "abort", here.directory, ulid, "--json"))["content_id"] == made


# --- the list


def test_keys_are_kept(tmp_path: Path):
    keys = TrustedKeys(tmp_path / "git" / "trusted")
    one, two = worker().key.public, worker("two").key.public
    assert keys.read() == {}
    assert keys.add(one, "  the  build\nserver ") and keys.add(two)
    assert keys.read() == {one: "the build server", two: ""}
    assert not keys.add(one) and not keys.add(two)
    assert keys.add(two, "second")
    assert keys.remove(one) and not keys.remove(one)
    assert keys.read() == {two: "second"}
    path = tmp_path / "git" / "trusted"
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_text() == f"{TWO} second\n"
    assert sorted(os.listdir(path.parent)) == ["trusted", "trusted.lock"]


@pytest.mark.parametrize("name", ["x" * (NAME_CHARS_MAX + 1), "a\x1b[2J", "\u202e"])
def test_a_name_that_a_terminal_should_not_see_is_refused(tmp_path: Path, name: str):
    with pytest.raises(Usage, match="is not a name"):
        TrustedKeys(tmp_path / "trusted").add(bytes(32), name)


def test_a_list_that_is_damaged_is_not_read_in_part(tmp_path: Path):
    path = tmp_path / "trusted"
    for text in (b"ed25519:12\n", b"\n", f"{ONE}\nnonsense\n".encode(), b"\xff\n"):
        path.write_bytes(text)
        with pytest.raises(StoreError):
            TrustedKeys(path).read()
        with pytest.raises(StoreError):
            TrustedKeys(path).add(bytes(32))
        assert path.read_bytes() == text


def test_several_may_write_at_once(tmp_path: Path):
    several = [SigningKey(bytes([number]) * 32).public for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda key: TrustedKeys(tmp_path / "trusted").add(key), several))
    assert TrustedKeys(tmp_path / "trusted").read().keys() == set(several)


def test_keys_as_people_give_them():
    public = worker().key.public
    for text in (key_text(public), public.hex(), did_key(public)):
        assert parse_worker(text) == public
    for text in ("", "ed25519:", "did:key:z6Mk", "did:web:x", public.hex()[1:], "ed25519:" + "é" * 64):
        with pytest.raises(Usage, match="is not a worker's key"):
            parse_worker(text)
