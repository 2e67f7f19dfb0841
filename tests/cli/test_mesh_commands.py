"""The mesh on the command line: a second machine is invited, joins over real HTTP, and is revoked; who may do what; the
user's key is locked, backed up and restored; and a sentence with the right exit code for whatever goes wrong.
"""

import json
import os
import pty
import select
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import hocket

from .conftest import PATIENCE_S, PROGRAM, Program, until

WORKER = ("--may", "job:claim:acme.", "--may", "job:complete:acme.")


@pytest.fixture
def served(hocket: Program) -> Program:
    """The owner's home, with its server running."""
    process = hocket.start("serve", "--port", "0", "--json")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=PATIENCE_S)
    hocket.address = json.loads(line)["address"]  # type: ignore[attr-defined]
    return hocket


@pytest.fixture
def gpu(served: Program, tmp_path: Path) -> Iterator[Program]:
    """A second machine that has joined."""
    program = Program(tmp_path / "gpu")
    token = served("invite", "gpu", *WORKER, "--json", code=0).json["token"]
    program("join", token, code=0)
    yield program
    for process in program.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def nodes(program: Program) -> dict[str, dict[str, Any]]:
    return {each["name"] or each["node"]: each for each in program("nodes", "--json", code=0).json}


def here(program: Program) -> str:
    return str(program("whoami", "--json", code=0).json["node"])


@pytest.mark.parametrize("option", [("--pin", "00" * 32), ("--ca", "ca.pem")], ids=["pin", "ca"])
def test_a_certificate_cannot_be_checked_at_a_plain_address(served: Program, tmp_path: Path, option: tuple[str, str]):
    gpu = Program(tmp_path / "gpu")
    token = served("invite", "gpu", *WORKER, "--json", code=0).json["token"]
    assert "but the invitation has no such address" in gpu("join", token, *option, code=2).sentence
    assert not gpu.home.exists()
    gpu("join", token, code=0)


@pytest.mark.req("LW-01", "LW-23", "LW-24")
def test_a_second_machine_joins_works_and_is_revoked(served: Program, tmp_path: Path):
    result = served("invite", "gpu", *WORKER, "--expires", "30d", code=0)
    token, *words = result.out.splitlines()
    assert token.startswith("hocket-1-") and " " not in token
    assert any("claim jobs of kind acme.*" in line and "write artifacts" in line for line in words)
    gpu = Program(tmp_path / "gpu")
    joined = gpu("join", token, "--json", code=0).json
    assert joined["name"] == "gpu" and joined["user"] == served("status", "--json").json["user"]
    assert stat.S_IMODE((gpu.home / "node.key").stat().st_mode) == 0o600
    assert not (gpu.home / "user.key").exists()
    assert nodes(served)["gpu"]["standing"] == "pending"
    gpu("sync", code=0)
    assert nodes(served)["gpu"]["standing"] == "active" and nodes(served)["gpu"]["roles"] == ["worker"]
    assert nodes(gpu)["gpu"]["here"]
    # The same permissions on both sides.
    for program in (served, gpu):
        assert program("may", "gpu", "claim", "acme.render", code=0).out.startswith("yes")
        refused = program("may", "gpu", "claim", "other.kind", code=4)
        assert refused.out.startswith("no") and refused.err == ""
    assert gpu("submit", "acme.render").code == 4
    # It works, for the owner.
    tasks = gpu.home.parent / "acme.py"
    tasks.write_text("import hocket\n\n@hocket.job('acme.echo')\ndef echo(ctx, **payload):\n    return payload\n")
    job_id = served.submit("acme.echo", '{"n": 7}')
    gpu("sync", code=0)
    gpu("work", "acme.py", "--until-idle", code=0)
    until(lambda: served.show(job_id)["outcome"] == "succeeded", "the job")
    assert served.show(job_id)["result"] == {"n": 7}
    result = served("revoke", "gpu", "--yes", code=0)
    assert "gpu is revoked" in result.out and "what the coordinator accepted from it stands" in result.out
    assert nodes(served)["gpu"]["standing"] == "revoked"
    assert served.show(job_id)["outcome"] == "succeeded"
    assert "has no rights left" in served("revoke", "gpu", "--yes", code=3).sentence
    assert gpu("sync").code != 0
    served("log", "verify", code=0)


@pytest.mark.req("LW-23")
def test_a_token_is_for_one_node_once(served: Program, tmp_path: Path):
    token = served("invite", "gpu", *WORKER, "--json", code=0).json["token"]
    gpu, other = Program(tmp_path / "gpu"), Program(tmp_path / "other")
    assert "copy the whole token again" in gpu("join", token[:-3], code=2).sentence
    assert "bad invitation" in gpu("join", "nonsense", code=2).sentence
    assert not gpu.home.exists()
    gpu("join", "-", input=f"{token[:30]}\n{token[30:]}\n", code=0)
    assert "another node has already used" in other("join", token, code=3).sentence
    assert "has not joined yet" in other("jobs", code=2).sentence
    # The same node may ask again.
    gpu("join", token, code=0)
    assert "is the owner's" in served("join", token, code=3).sentence
    stranger = Program(tmp_path / "stranger")
    stranger("init", code=0)
    assert "belongs to another user" in stranger("join", token, code=3).sentence
    # A home that failed to join is good for the next token.
    other("join", served("invite", "other", *WORKER, "--json").json["token"], code=0)
    listed = {each["name"]: each for each in served("invite", "--list", "--json", code=0).json}
    assert listed["gpu"]["state"] == "used" and listed["gpu"]["used_by"] == here(gpu)


def test_invitations_are_listed_and_cancelled(served: Program, tmp_path: Path):
    token = served("invite", "gpu", *WORKER, "--json", code=0).json["token"]
    assert served("invite", "--list", code=0).out.split("\t")[:2] == ["gpu", "open"]
    assert "is already invited" in served("invite", "gpu", *WORKER, code=3).sentence
    served("invite", "--cancel", "gpu", code=0)
    assert "no open invitation" in served("invite", "--cancel", "gpu", code=2).sentence
    assert "was cancelled" in Program(tmp_path / "gpu")("join", token, code=4).sentence
    assert served("invite", "--list", "--json").json[0]["state"] == "cancelled"


@pytest.mark.req("LW-24", "LW-29")
def test_a_worker_is_invited_by_its_kinds(served: Program):
    made = served("invite", "gpu", "--worker", "acme.", "--worker", "other.", "--json", code=0).json
    assert "claim jobs of kind acme.* or other.*" in made["may"]
    assert any("read jobs of kind acme.* or other.*, artifacts of jobs" in each for each in made["may"])
    warned = served("invite", "geo", "--worker", "acme.", "--sanitize", "StripGeo", code=0).out
    assert "will not run jobs whose payload these rules change" in warned
    assert "command inputs" in served("invite", "runner", "--worker", "hocket.run", code=0).out
    plain = served("invite", "whole", "--worker", "hocket.run", "--may", "artifact:read", code=0).out
    assert "command inputs" not in plain
    assert "without a star: 'acme.'" in served("invite", "star", "--worker", "acme.*", code=2).sentence


@pytest.mark.req("LW-01")
@pytest.mark.parametrize("name", ["here", "cafe", "GPU"])
def test_a_name_that_means_something_else_is_refused(served: Program, name: str):
    served("invite", "gpu", *WORKER, code=0)
    assert served("invite", name, *WORKER).code == (3 if name == "GPU" else 2)
    node = here(served)
    assert served("coordinator", "--show", "--json", code=0).json["node"] == node
    assert served("coordinator", "here", code=3).sentence


def test_an_invitation_that_nobody_answers(hocket: Program, tmp_path: Path):
    assert "hocket mesh serve" in hocket("invite", "gpu", *WORKER, code=2).sentence
    token = hocket("invite", "gpu", *WORKER, "--address", "127.0.0.1:9", "--json", code=0).json["token"]
    gpu = Program(tmp_path / "gpu")
    sentence = gpu("join", token, code=5).sentence
    assert "http://127.0.0.1:9 cannot be reached" in sentence and "Join again with the same token" in sentence


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        ((), 2, "name the new node"),
        (("gpu",), 2, "no grants"),
        (
            ("gpu", "--may", "job:fly"),
            2,
            "job has no action 'fly'; it has read, schedule, claim, complete, define, approve, erase, all",
        ),
        (("gpu", "--may", "cake:eat"), 2, "unknown resource 'cake'"),
        (
            ("gpu", "--may", "artifact:write:acme."),
            2,
            "only artifact:read and actions on jobs, locks, inboxes, rows and accounts take a prefix",
        ),
        (("bad name", "--may", "all"), 2, "cannot be a node's name"),
        (("gpu", "--may", "all", "--expires", "soon"), 2, "bad --expires"),
        (("gpu", "--may", "all", "--expires", "0s"), 2, "last longer"),
        (("gpu", "--may", "all", "--valid", "90d"), 2, "at most 30 days"),
        (("gpu", "--may", "all", "--sanitize", "StripGeo,Cake"), 2, "'Cake' is not a sanitisation rule"),
        (("gpu", "--may", "all", "--address", "ftp://x"), 2, "is not an address"),
    ],
)
def test_wrong_invitations(hocket: Program, arguments: tuple[str, ...], code: int, part: str):
    address = () if "--address" in arguments else ("--address", "http://127.0.0.1:9")
    assert part in hocket("invite", *arguments, *address, code=code).sentence
    assert hocket("invite", "--list", "--json").json == []


@pytest.mark.req("LW-24", "LW-12", "LW-13")
def test_what_is_not_an_invited_nodes_to_do(gpu: Program, served: Program):
    address = ("--address", "http://127.0.0.1:9")
    assert "registration:write" in gpu("invite", "more", "--may", "job:claim:acme.", *address, code=4).sentence
    assert "only the owner's node may route" in gpu("route", "acme.x", "gpu", code=4).sentence
    assert "only the owner's node may designate" in gpu("coordinator", "gpu", code=4).sentence
    assert "only the node that invited" in gpu("revoke", here(served)[:8], code=4).sentence
    for command in (("keys", "backup", "x.key"), ("keys", "passphrase"), ("keys", "reissue")):
        assert "invited node's and has no user's key" in gpu(*command, code=4).sentence
    assert gpu("keys", "show", "--json", code=0).json["user_key"] == "elsewhere"
    assert gpu("doctor", code=0)
    assert gpu("init", code=3)


@pytest.mark.req("LW-12")
def test_routes(gpu: Program, served: Program):
    assert "acme. goes to gpu" in served("route", "acme.", "gpu", code=0).out
    assert "routed to gpu" in served("may", here(served), "claim", "acme.anything", code=4).out
    served("may", here(served), "claim", "other.kind", code=0)
    served("route", "acme.", "--clear", code=0)
    assert "goes to gpu" in served("route", "acme.x", "gpu", code=0).out
    assert served("route", "--list", code=0).out == f"acme.x\tgpu\t{here(gpu)}\n"
    assert "routed to gpu" in served("may", here(served), "claim", "acme.x", code=4).out
    assert "may not claim jobs of this kind" in served("route", "other.kind", "gpu", code=0).out
    served("route", "acme.x", "--clear", code=0)
    served("may", here(served), "claim", "acme.x", code=0)
    for wrong in ((), ("acme.x",), ("acme.x", "gpu", "--clear")):
        assert "give a kind and a node" in served("route", *wrong, code=2).sentence
    assert "hocket mesh nodes" in served("route", "acme.x", "nobody", code=2).sentence


@pytest.mark.req("LW-17", "LW-19")
def test_which_jobs_this_node_may_claim_now(gpu: Program, served: Program):
    served("route", "acme.", "gpu", code=0)
    served("route", "acme.mine", "here", code=0)
    kinds = ("acme.x", "acme.mine", "other.kind")
    made = {kind: served("submit", kind, "--json", code=0).json["job_id"] for kind in kinds}
    served("submit", "other.kind", "--not-before", "+1h", code=0)
    shown = served("jobs", "--claimable", "--json", code=0).json
    assert [each["job_id"] for each in shown] == [made["acme.mine"], made["other.kind"]]
    of_kind = served("jobs", "--claimable", "--kind", "other.", "--json", code=0).json
    assert [each["job_id"] for each in of_kind] == [made["other.kind"]]
    with closing(hocket.open_sync(served.home)) as node:
        assert [job.job_id for job in node.claimable("acme.")] == [made["acme.mine"]]
        assert [job.job_id for job in node.claimable(limit=1)] == [made["acme.mine"]]
    for more in (("--overdue",), ("--state", "pending")):
        assert "give one of --claimable" in served("jobs", "--claimable", *more, code=2).sentence


@pytest.mark.req("LW-13")
def test_a_coordinator_that_does_not_see_every_kind(served: Program, tmp_path: Path):
    """It could not decide about the jobs that it does not see."""
    narrow = Program(tmp_path / "narrow")
    token = served("invite", "narrow", *WORKER, "--may", "job:read:acme.", "--json", code=0).json["token"]
    narrow("join", token, code=0)
    done = served("coordinator", "narrow", code=0)
    assert "may not read the jobs of every kind" in done.out
    served("coordinator", "here", code=0)
    assert not served("coordinator", "narrow", "--json", code=0).json["reads_every_kind"]


def test_a_succession(gpu: Program, served: Program, tmp_path: Path):
    assert "no node may follow" in served("succession", code=0).out
    for words, given in (
        ("can never be met", ("here", "gpu", "--quorum", "3")),
        ("always met", ("here", "gpu", "--quorum", "1")),
        ("the coordinator must be one", ("gpu",)),
        ("no node 'nobody'", ("here", "nobody")),
        ("name more nodes, 3 at least", ("here", "gpu")),
        ("not a duration", ("here", "gpu", "--after", "soon")),
        ("a node is named twice", ("here", "gpu", "gpu")),
        ("takes no nodes", ("here", "gpu", "--none")),
        ("name the nodes", ("--quorum", "2")),
    ):
        assert words in served("succession", *given, code=2).sentence
    assert "no succession is in force" in served("succession", "--none", code=3).sentence
    token = served("invite", "rack", "--may", "all", "--json", code=0).json["token"]
    Program(tmp_path / "rack")("join", token, code=0)
    done = served("succession", "here", "gpu", "rack", "--after", "1m", code=0).out
    assert "is the coordinator, in term 0" in done
    assert "after 60 s of silence gpu or rack follows it, if 2 of the 3 nodes vote for that" in done
    assert "mesh succession --none" in served("coordinator", "gpu", code=3).sentence
    gpu("sync", code=0)
    assert "only the owner's node may say" in gpu("succession", here(served), "gpu", "rack", code=4).sentence
    shown = served("succession", "--json", code=0).json
    assert [each["name"] for each in shown["nodes"]][1] == "gpu" and shown["after_ms"] == 60_000
    assert "no node may follow" in served("succession", "--none", code=0).out


@pytest.mark.req("LW-13")
def test_the_coordinator(gpu: Program, served: Program):
    assert served("coordinator", "--show", "--json", code=0).json["node"] == here(served)
    assert served("coordinator", "gpu", "--json", code=0).json == {
        "node": here(gpu),
        "name": "gpu",
        "previous": here(served),
        "previous_hears": True,
        "reads_every_kind": True,
    }
    assert "is already the coordinator" in served("coordinator", "gpu", code=3).sentence
    assert "cannot confirm" in served("coordinator", here(served), code=0).out
    assert "name a node" in served("coordinator", code=2).sentence
    served("coordinator", "gpu", code=0)
    assert "it was the coordinator" in served("revoke", "gpu", "--yes", code=0).out
    assert "gpu is revoked" in served("coordinator", "gpu", code=3).sentence


def test_the_rules(hocket: Program):
    before = hocket("rules", "show", "--json", code=0).json
    assert before["hash"].startswith("blake3:") and before["extensions"]["skew_ms"] == 300_000
    changed = hocket("rules", "set", "--skew", "2m", "--derivation-op", "CreateEntity", "--json", code=0).json
    assert changed["hash"] != before["hash"] and changed["extensions"]["derivation_ops"] == ["CreateEntity"]
    assert hocket("rules", "show", "--json", code=0).json == changed
    said = hocket("rules", "set", "--derivation-kind", "acme.derive.", code=0).out
    assert "every node needs the same" in said
    none = hocket("rules", "set", "--derivation-op", "", "--derivation-kind", "", "--json", code=0).json["extensions"]
    assert none["derivation_ops"] == none["derivation_kinds"] == []
    undone = ("--skew", "5m", "--derivation-op", "CascadeTombstone", "--derivation-kind", "likewise.derive.")
    assert hocket("rules", "set", *undone, "--json", code=0).json == before
    for wrong, part in (
        (("--skew", "0s"), "bad --skew"),
        (("--skew", "2d"), "at most 24h"),
        (("--derivation-op", "Cake"), "unknown op 'Cake'"),
        ((), "give at least one option"),
    ):
        assert part in hocket("rules", "set", *wrong, code=2).sentence
    hocket("submit", "test.echo", code=0)
    hocket("log", "verify", code=0)


@pytest.mark.req("GR-12")
def test_the_rules_can_say_that_ranked_jobs_are_open(hocket: Program, tmp_path: Path):
    before = hocket("rules", "show", "--json", code=0).json
    changed = hocket("rules", "set", "--ranked-open", "--json", code=0).json
    assert changed["ranked_open"] and changed["hash"] != before["hash"]
    hocket("rules", "set", "--skew", "5m", code=0)
    assert "ranked jobs\topen" in hocket("rules", "show", code=0).out
    begun = tmp_path / "begun"
    hocket("init", "--ranked-open", home=begun, code=0)
    assert hocket("rules", "show", "--json", home=begun, code=0).json == changed
    (begun / "complete").unlink()
    assert (
        "has other rules (it was begun without --strict and with --ranked-open)"
        in hocket("init", home=begun, code=3).sentence
    )
    assert hocket("rules", "set", "--no-ranked-open", "--json", code=0).json == before
    assert "strict mesh" in hocket("init", "--strict", "--ranked-open", home=tmp_path / "both", code=2).sentence
    assert not (tmp_path / "both").exists()


@pytest.mark.req("LW-30")
def test_other_rules_are_carried_by_the_invitation(served: Program, tmp_path: Path):
    served("rules", "set", "--skew", "90s", code=0)
    for process in served.started:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    again = served.start("serve", "--port", "0", "--json")
    assert again.stdout is not None and again.stdout.readline()
    gpu = Program(tmp_path / "gpu")
    gpu("join", served("invite", "gpu", *WORKER, "--json").json["token"], code=0)
    assert gpu("rules", "show", "--json").json == served("rules", "show", "--json").json
    gpu("sync", code=0)


def test_an_invitation_names_the_server_that_runs(served: Program):
    address = served.address  # type: ignore[attr-defined]
    second = served("serve", "--port", "0", "--json", code=3)
    assert f"a server of this home already runs at {address}, process " in second.err
    invited = served("invite", "one", *WORKER, "--json", code=0)
    assert invited.json["addresses"] == [address] and "no server runs" not in invited.err
    for process in served.started:
        process.kill()
        process.wait()
    assert "no server runs in this home" in served("invite", "two", *WORKER, code=0).err
    again = served.start("serve", "--port", "0", "--json")
    assert again.stdout is not None
    moved = json.loads(again.stdout.readline())["address"]
    assert served("invite", "three", *WORKER, "--json", code=0).json["addresses"] == [moved]


# Keys.


def locked(tmp_path: Path, name: str = "home") -> Program:
    program = Program(tmp_path / name)
    program("init", "--passphrase", environment={"HOCKET_PASSPHRASE": "open sesame"}, code=0)
    return program


def test_a_passphrase(tmp_path: Path):
    hocket = locked(tmp_path)
    assert (hocket.home / "user.key").read_text().startswith("hocket-key-1 did:key:z")
    hocket("submit", "test.echo", code=0)
    assert hocket("keys", "show", "--json", code=0).json["user_key"] == "locked"
    assert "locked" in hocket("doctor", code=0).out
    assert "--passphrase-file or set HOCKET_PASSPHRASE" in hocket("keys", "reissue", code=2).sentence
    wrong = {"HOCKET_PASSPHRASE": "open barley"}
    assert "wrong passphrase" in hocket("keys", "reissue", environment=wrong, code=4).sentence
    assert "1 to 1024" in hocket("keys", "reissue", environment={"HOCKET_PASSPHRASE": ""}, code=2).sentence
    assert "cannot read a passphrase" in hocket("keys", "reissue", "--passphrase-file", "none", code=2).sentence
    (tmp_path / "old").write_text("open sesame\n")
    (tmp_path / "new").write_text("close sesame\n")
    hocket("keys", "reissue", "--passphrase-file", tmp_path / "old", code=0)
    change = ("keys", "passphrase", "--passphrase-file", tmp_path / "old")
    hocket(*change, "--new-passphrase-file", tmp_path / "new", code=0)
    assert "wrong passphrase" in hocket(*change, "--remove", code=4).sentence
    hocket("keys", "passphrase", "--remove", "--passphrase-file", tmp_path / "new", code=0)
    assert (hocket.home / "user.key").read_text().startswith("ed25519:")
    assert "is not locked" in hocket("keys", "passphrase", "--remove", code=3).sentence
    hocket("keys", "passphrase", "--new-passphrase-file", tmp_path / "old", code=0)
    hocket("init", code=3)


def test_a_second_node_with_a_locked_key(tmp_path: Path):
    first, second = locked(tmp_path), Program(tmp_path / "second")
    arguments = ("init", "--user-key", first.home / "user.key")
    assert "HOCKET_PASSPHRASE" in second(*arguments, code=2).sentence
    assert not second.home.exists()
    second(*arguments, environment={"HOCKET_PASSPHRASE": "open sesame"}, code=0)
    assert second("keys", "show", "--json").json["user_key"] == "locked"
    assert second("whoami", "--json").json["roles"] == ["owner", "worker"]


@pytest.mark.req("LW-24")
def test_a_lost_owner_comes_back_from_a_backup_on_another_machine(gpu: Program, served: Program, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    backup = tmp_path / "backup.key"
    said = served("keys", "backup", backup, "--passphrase-file", secret, code=0).out
    assert "never leaves its machine" in said
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600 and "hocket-key-1" in backup.read_text()
    assert "already exists" in served("keys", "backup", backup, "--passphrase-file", secret, code=3).sentence
    assert "has its user's key" in served("keys", "restore", backup, "--passphrase-file", secret, code=3).sentence
    gpu("sync", code=0)
    stranger = Program(tmp_path / "stranger")
    stranger("init", code=0)
    assert "another user" in stranger("keys", "restore", backup, "--passphrase-file", secret, code=3).sentence
    assert "HOCKET_PASSPHRASE" in gpu("keys", "restore", backup, code=2).sentence
    gpu("keys", "restore", backup, "--passphrase-file", secret, code=0)
    gpu("keys", "reissue", "--passphrase-file", secret, code=0)
    assert gpu("whoami", "--json").json["roles"] == ["owner", "worker"]
    lost = here(served)
    gpu("revoke", lost[:8], "--yes", "--passphrase-file", secret, code=0)
    gpu("coordinator", "gpu", code=0)
    gpu("submit", "acme.render", code=0)
    assert nodes(gpu)["gpu"]["roles"] == ["owner", "coordinator", "worker"]


def test_backup_and_restore_of_a_lost_key(hocket: Program, tmp_path: Path):
    plain = tmp_path / "plain.key"
    assert "unlocked: anyone who reads it can act as you" in hocket("keys", "backup", plain, "--plain", code=0).out
    assert plain.read_text() == (hocket.home / "user.key").read_text()
    (hocket.home / "user.key").unlink()
    assert "has lost user.key" in hocket("jobs", code=2).sentence
    assert "no key file" in hocket("keys", "restore", tmp_path / "none", code=2).sentence
    hocket("keys", "restore", plain, code=0)
    hocket("jobs", code=0)
    (hocket.home / "user.key").write_text("garbage\n")
    hocket("keys", "restore", plain, code=0)
    hocket("doctor", code=0)
    # A locked key is copied as it is.
    (tmp_path / "secret").write_text("open sesame")
    hocket("keys", "passphrase", "--new-passphrase-file", tmp_path / "secret", code=0)
    hocket("keys", "backup", tmp_path / "locked.key", code=0)
    assert (tmp_path / "locked.key").read_text() == (hocket.home / "user.key").read_text()
    assert hocket(
        "keys", "backup", tmp_path / "no" / "such.key", "--plain", "--passphrase-file", tmp_path / "secret", code=5
    )


def test_no_secret_is_ever_printed(hocket: Program):
    secrets = [(hocket.home / name).read_text().strip().removeprefix("ed25519:") for name in ("user.key", "node.key")]
    for command in (("keys", "show"), ("whoami",), ("nodes",), ("doctor",), ("status",), ("log",)):
        for form in ((), ("--json",)):
            out = hocket(*command, *form, code=0).out
            assert not any(secret in out for secret in secrets)


@pytest.mark.parametrize("key", ["user.key", "node.key"])
def test_every_command_refuses_keys_that_others_can_read(hocket: Program, key: str):
    (hocket.home / key).chmod(0o644)
    for command in (["jobs"], ["submit", "test.echo"], ["keys", "show"], ["nodes"], ["serve"]):
        assert f"chmod 600 {hocket.home / key}" in hocket(*command, code=2).sentence
    assert "chmod 600" in hocket("doctor", code=1).out


# A person at a terminal.


def typed(program: Program, *arguments: object, answers: dict[str, str]) -> tuple[int, str]:
    """Runs a command on a terminal of its own and answers what it asks; gives its exit code and all that was shown."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=program.environment() | {"TERM": "xterm", "COLUMNS": "200"},
        start_new_session=True,
    )
    os.close(slave)
    shown = ""
    waiting = dict(answers)
    while True:
        ready, _, _ = select.select([master], [], [], PATIENCE_S)
        assert ready, f"nothing more came: {shown}"
        try:
            data = os.read(master, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data.decode(errors="replace")
        for prompt, text in list(waiting.items()):
            if prompt in shown:
                os.write(master, f"{text}\n".encode())
                del waiting[prompt]
    os.close(master)
    return process.wait(PATIENCE_S), shown


def test_on_a_terminal_an_invitation_is_drawn_and_a_revocation_asked(gpu: Program, served: Program):
    code, shown = typed(served, "invite", "phone", "--may", "job:schedule", answers={})
    assert code == 0 and "hocket-1-" in shown and "█" in shown and "submit jobs" in shown
    code, shown = typed(served, "revoke", "gpu", answers={"revoke it?": "n"})
    assert code == 3 and "nothing was revoked" in shown
    code, shown = typed(served, "revoke", "gpu", answers={"revoke it?": "y"})
    assert code == 0 and "gpu is revoked" in shown


def test_on_a_terminal_a_passphrase_is_typed_twice_and_not_shown(hocket: Program):
    code, shown = typed(hocket, "keys", "passphrase", answers={"new passphrase": "sesame", "once more": "sesamy"})
    assert code == 2 and "differ" in shown and "sesame" not in shown
    code, shown = typed(hocket, "keys", "passphrase", answers={"new passphrase": "sesame", "once more": "sesame"})
    assert code == 0 and "sesame" not in shown
    code, shown = typed(hocket, "keys", "passphrase", "--remove", answers={"passphrase of": "sesame"})
    assert code == 0 and hocket("keys", "show", "--json").json["user_key"] == "here"
