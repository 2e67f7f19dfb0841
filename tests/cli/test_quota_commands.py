"""Quotas on the command line: an invitation sets one, and lists, nodes and rules show it."""

from pathlib import Path

import pytest

from hocket.errors import Usage
from hocket.kernel.ucan import Quota
from hocket.mesh.grants import parse_quota, quota_words, size_words
from hocket.node.runtime import Runtime
from hocket.store import OverQuota

from .conftest import Program, until
from .test_mesh_commands import WORKER, nodes, served

__all__ = ["served"]

QUOTA = "ops=50/s,bytes=1Mi/s,ops=10k,bytes=2G"
SET = {"ops_per_s": 50, "bytes_per_s": 2**20, "ops": 10_000, "bytes": 2 * 10**9}


@pytest.mark.req("LW-45")
def test_an_invitation_sets_a_quota_that_is_shown(served: Program, tmp_path: Path) -> None:
    made = served("invite", "gpu", *WORKER, "--quota", QUOTA, "--json", code=0).json
    assert made["quota"] == SET
    assert served("invite", "--list", "--json", code=0).json[0]["quota"] == SET
    assert "50 ops and 1 MiB a second, 10,000 ops and 1.9 GiB in all" in served("invite", "--list", code=0).out
    gpu = Program(tmp_path / "gpu")
    gpu("join", made["token"], code=0)
    gpu("sync", code=0)
    until(lambda: nodes(served)["gpu"]["standing"] == "active")
    shown = nodes(served)["gpu"]
    assert shown["quota"] == SET and shown["over_quota"] is None
    assert shown["stored"]["ops"] > 0 and shown["stored"]["bytes"] > 0
    assert "(may: 50 ops and 1 MiB a second" in served("nodes", code=0).out
    # The user's own node has none.
    assert [each["quota"] for each in nodes(served).values() if each["here"]] == [{}]


def test_without_one_the_mesh_has_a_default(served: Program) -> None:
    made = served("invite", "phone", "--may", "job:read", "--json", code=0).json
    assert made["quota"] == {}
    assert "default" in served("invite", "--list", code=0).out
    assert "20 ops and 64 KiB a second, 20,000 ops and 32 MiB in all" in served("rules", "show", code=0).out


def test_the_rules_say_what_the_default_is(hocket: Program) -> None:
    before = hocket("rules", "show", "--json", code=0).json
    changed = hocket("rules", "set", "--writer-quota", "ops=7/s", "--reader-quota", "bytes=9", "--json", code=0).json
    assert changed["bounds"]["writers"] == before["bounds"]["writers"] | {"ops_per_s": 7}
    assert changed["bounds"]["readers"] == before["bounds"]["readers"] | {"bytes": 9}
    assert changed["hash"] != before["hash"]


@pytest.mark.parametrize(
    "text", ["", "50", "ops", "ops=", "ops=x", "ops=5/m", "ops=5,ops=6", "ops=0", "bytes=-1", "ops=1,", "bytes=99999T"]
)
def test_a_bad_quota_is_a_usage_error(text: str) -> None:
    with pytest.raises(Usage, match="bad quota"):
        parse_quota(text)


@pytest.mark.req("LW-45")
def test_a_node_over_its_quota_is_shown(hocket: Program) -> None:
    hocket("status", code=0)
    here = nodes(hocket).popitem()[1]["node"]
    with Runtime.open(hocket.home) as runtime, runtime.store.write() as session:
        session.put_over_quota(OverQuota(bytes.fromhex(here), runtime.log.physical(), 1234))
    assert hocket("status", "--json", code=0).json["over_quota"][0]["ops"] == 1234
    assert f"node {here}: 1,234 ops refused" in hocket("status", code=0).out
    assert nodes(hocket).popitem()[1]["over_quota"]["ops"] == 1234
    assert "bad quota" in hocket("invite", "gpu", *WORKER, "--quota", "ops=5/m", code=2).sentence


def test_quotas_in_words() -> None:
    assert parse_quota(" OPS=5/S , bytes = 3Ki ") == Quota(ops_per_s=5, bytes=3072)
    assert quota_words(Quota()) == ""
    assert quota_words(Quota(ops=1)) == "1 ops in all"
    assert [size_words(each) for each in (0, 1023, 1024, 1536, 2**40 * 5000)] == (
        ["0 B", "1023 B", "1 KiB", "1.5 KiB", "5000 TiB"]
    )
