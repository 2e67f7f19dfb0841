"""A machine that is revoked while it works. It is refused from then on, and told so; what it did on its own word is
taken back and done again; what the coordinator accepted from it stands; and whatever it writes later counts nowhere,
by whichever way it comes.
"""

from pathlib import Path

import pytest

import hocket
from tests.scenarios.machines import Machine, Reason, agree, journal, machines, until, verify


@pytest.mark.slow
@pytest.mark.req("LW-26", "LW-27", "LW-39")
def test_a_revoked_node(tmp_path: Path):
    with machines(tmp_path, "owner", "gpu", "phone") as [owner, gpu, phone]:
        owner("init")
        owner.serve()
        gpu("join", owner.invite("gpu", "job:schedule:acme.", "job:claim:acme.", "job:complete:acme."))
        phone("join", owner.invite("phone", "all"))
        phone.serve()
        worker = gpu.work()
        accepted, on_its_word = owner.submit_all(
            [
                {"kind": "acme.one", "payload": {"n": 1}},
                {"kind": "acme.open", "payload": {"n": 2}, "open": True},
            ]
        )
        until(lambda: all(phone.is_done(job) for job in (accepted, on_its_word)), "both jobs, on every machine")
        agree(owner, gpu, phone)

        said = owner("revoke", "gpu", "--yes").out
        assert "gpu is revoked" in said
        until(lambda: Reason.REVOKED in reasons(phone, gpu), "the revocation to be known")
        # What the coordinator accepted stands, be it that a job was open.
        for place in (owner, phone):
            assert place.is_done(accepted) and place.is_done(on_its_word)
        assert reasons(owner, gpu) == reasons(phone, gpu)
        # Its worker is refused, says so and ends, and nothing of what the machine goes on to write gets out.
        ended = worker.ended()
        assert ended.code == 4 and "this node may no longer work in its mesh: " in ended.err.splitlines()[-1]
        owner.processes[0].says("node gpu was refused (403)")
        late = gpu.submit("acme.late", "--open")
        with hocket.open(gpu.home) as node:
            node.work([hocket.job("acme.late")(lambda: None)], until_idle=True)
        assert gpu.is_done(late), "the revoked machine goes on by itself"
        assert "did not sync" in gpu("sync", code=1).sentence
        assert gpu("peers", "list", "--json").json["peers"][0]["state"] == "refused"
        assert not owner.has(late) and not phone.has(late)
        # Carried over by hand, its later ops are on the log and in no roster.
        gpu("log", "export", gpu.root / "all.ops")
        owner("log", "import", gpu.root / "all.ops")
        until(lambda: {line.type for line in phone.ops() if line.job == late} >= {"CompleteJob"}, "the ops to be known")
        for place in (owner, phone):
            assert not place.has(late)
            assert 0 not in {line.reason for line in place.ops() if line.job == late}
        # Nobody does it again.
        phone.work()
        after = phone.submit("acme.after")
        until(lambda: owner.is_done(after), "the next job to be done")
        runs = {(line["job"], line["machine"]) for line in journal(tmp_path) if line["event"] == "start"}
        assert not runs & {(on_its_word, "phone"), (accepted, "phone")}
        agree(owner, phone)
        owner.stop()
        phone.stop()
        verify(owner, gpu, phone)


def reasons(place: Machine, author: Machine) -> set[int]:
    """What becomes of the ops that a machine wrote about jobs."""
    return {line.reason for line in place.ops() if line.author == author.node and line.job is not None}
