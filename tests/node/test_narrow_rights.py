"""The narrow rights of docs/postgres.md for the role of a node that was invited: it works with them, and can no longer
change ops or touch the rows of others.
"""

import re
from pathlib import Path

import psycopg
import pytest

from hocket.api import Service, programs
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.claiming import claim
from hocket.families.jobs.requests import Draft, Held
from hocket.kernel.ids import node_text
from hocket.kernel.policy import DEFAULT
from hocket.mesh.membership import members
from hocket.node.runtime import Runtime
from tests.cli.test_store_migration import RIGHTS, administer, new_role
from tests.node.sharers import Sharers

DOCS = Path(__file__).parents[2] / "docs"


def narrow_rights(role: str, node: int) -> str:
    """The SQL on the page, for this role and node."""
    section = (DOCS / "postgres.md").read_text().partition("### Narrow rights")[2]
    found = re.search(r"```sql\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1].replace("gpu_box", role).replace("0123456789abcdef", node_text(node))


@pytest.mark.req("LW-48")
def test_a_node_with_narrow_rights_does_its_work_and_touches_nothing_of_others(tmp_path: Path) -> None:
    nodes = Sharers(tmp_path)
    address = new_role(nodes.address, "gpu_worker")
    administer(nodes.address, *(right.format(role="gpu_worker") for right in RIGHTS))
    joined = nodes.join("fourth", nodes.invite("fourth"), address)
    administer(nodes.address, narrow_rights("gpu_worker", joined.log.node))
    with Service(nodes.second) as service:
        theirs = programs.create(service, "ci", ["mesh:read"])
    job_id = nodes.founder.submit([Draft("acme.render", b"{}", DEFAULT)])[0].job_id
    joined.submit([Draft("acme.other", b"{}", DEFAULT)])
    for _ in range(2):
        (taken,) = joined.log.run(lambda tx: claim(tx, 1, 1, lambda kind: 60_000)).taken
        held = Held(taken.job.id, taken.job.claim_op or b"")
        joined.log.run(lambda tx, held=held: jobs.complete(tx, held, b'"done"', 1))
    assert nodes.founder.brief(job_id)["outcome"] == "succeeded"
    joined.close()
    with Runtime.open(tmp_path / "fourth") as again:
        again.rebuild()
        with again.read() as session:
            assert {"founder", "fourth"} <= {each.name for each in members(again.log, session)}
        with Service(again) as service:
            assert programs.recognise(service, programs.create(service, "mine", ["mesh:read"]).token).name == "mine"
    founder = nodes.founder.log.node.to_bytes(8, "big")
    with psycopg.connect(address, autocommit=True) as sql:
        sql.execute("SET search_path = hocket")
        for refused in (
            "UPDATE ops SET body = '\\x00'",
            "DELETE FROM ops",
            "TRUNCATE ops",
            "UPDATE hocket_version SET version = 99",
            "ALTER TABLE tokens DISABLE ROW LEVEL SECURITY",
            "DROP POLICY gpu_worker ON tokens",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                sql.execute(refused)
        assert sql.execute("SELECT name FROM tokens").fetchall() == [("mine",)] and theirs.name == "ci"
        assert sql.execute("SELECT * FROM invitations").fetchall() == []
        assert sql.execute("UPDATE invitations SET used_by = NULL").rowcount == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            sql.execute("UPDATE tokens SET of_node = %s", (founder,))
    nodes.close()
