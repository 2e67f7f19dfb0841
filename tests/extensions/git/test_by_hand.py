"""What the page on jobs in git says can be done by hand: done by hand, and held against what Hocket makes of it."""

import subprocess
from pathlib import Path

import pytest

from hocket.extensions.git import git_jobs, holding
from hocket.extensions.git.planes import open_plane
from hocket.extensions.git.verify import verify
from tests.docs import reader
from tests.extensions.git.hands import NOW_MS, finished, worker
from tests.extensions.git.places import Place

PAGE = reader.ROOT / "docs" / "git-plane.md"


@pytest.mark.req("GT-01", "GT-02", "GT-04", "GT-08")
def test_a_claim_by_hand_is_a_claim(tmp_path: Path):
    """The page up to the claim; then Hocket takes over."""
    text = PAGE.read_text(encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(text[: text.index("### Clear away")], encoding="utf-8")
    done = reader.shell(page, tmp_path, env := reader.environment(tmp_path))
    assert done and all(code == 0 for _, code, _ in done), done[-1]
    plane = open_plane(str(Path(env["HOME"]) / "jobs.git"), tmp_path / "cache")
    (found,) = verify(plane)
    assert not found.findings
    (job,) = git_jobs.listing(plane)
    assert job.state == "claimed" and job.claim is not None and job.claim.process == "by-hand"
    assert git_jobs.order_of(plane, job.refs).manifest.args == ("echo", "hello")
    over = holding.claim(plane, job, worker(), NOW_MS)
    assert over is not None and over.claim.fence == 2
    (found,) = verify(plane)
    assert not found.findings
    plane.close()


@pytest.mark.req("GT-09", "GT-10")
def test_a_result_is_verified_by_hand(here: Place, tmp_path: Path):
    job = finished(here.open())
    blocks = reader.blocks(PAGE)
    tools = next(block for block in blocks if "b3()" in block.text)
    by_hand = next(block for block in blocks if block.language == "sh" and "Proof-Of-Execution" in block.text)
    functions = [command.text for command in reader.commands(tools) if "()" in command.text]
    script = "\n".join(["set -e", *functions, f"job={job.refs.content_id.hex()}", by_hand.text])
    env = here.outside | {"PATH": reader.environment(tmp_path)["PATH"]}

    def run() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["bash", "-c", script], cwd=here.directory, env=env, capture_output=True, text=True)

    ran = run()
    assert ran.returncode == 0 and "Signature Verified Successfully" in ran.stdout, ran.stderr
    assert '"path":"outputs/made"' in ran.stdout
    other = finished(here.open(), 1, by=worker("two"))
    here.git("update-ref", job.refs.name("result"), str(other.refs.result))
    assert run().returncode != 0
