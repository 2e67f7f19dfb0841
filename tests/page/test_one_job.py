"""What the page shows of one job while it runs and when it has ended, and what a browser can save of it."""

import http.client
import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import hocket
from hocket.node.runtime import Runtime
from tests.cli.fork_server import start_command
from tests.page.visitors import Visitor
from tests.server.served import PATIENCE_S, ROOT, Served, environment, serving
from tests.server.served import hocket as command
from tests.waiting import wait_for

SCRIPT = "<script>alert(1)</script>"
HANDLERS = f"""
import time
from pathlib import Path

import hocket


@hocket.job("shown.parts", lease="10m")  # so that no renewal comes on the log
def parts(ctx, gate):
    print("printed {SCRIPT}", flush=True)
    ctx.part("first {SCRIPT}\\n")
    while not Path(gate).exists():
        time.sleep(0.02)
    print("printed more", flush=True)
    ctx.part("second\\n")
    while not Path(gate + "2").exists():
        time.sleep(0.02)


@hocket.job("shown.file")
def file(ctx):
    ctx.artifact(b"<!doctype html>{SCRIPT}", type="text.html")
    ctx.artifact(b"{SCRIPT}" * 100_000, type="text.large")
"""


@pytest.fixture(scope="module")
def worker(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    handlers = tmp_path_factory.mktemp("handlers") / "shown.py"
    handlers.write_text(HANDLERS)
    with open(os.devnull, "wb") as nowhere:  # a worker also prints what its handlers print
        words = ["--home", str(served.home), "work", str(handlers)]
        process = start_command(words, environment({}), ROOT, (nowhere.fileno(), nowhere.fileno()))
    yield
    process.terminate()
    process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def visitor(served: Served) -> Visitor:
    return Visitor(served)


def submitted(served: Served, kind: str, **payload: str) -> str:
    return command(served.home, "submit", kind, json.dumps(payload)).stdout.split()[-1]


def ended(served: Served, job: str) -> None:
    def is_over() -> bool:
        return bool(json.loads(command(served.home, "show", job, "--json").stdout)["outcome"])

    wait_for(is_over, "the end of the job")


@pytest.mark.usefixtures("worker")
def test_what_a_running_job_sends_is_shown_as_it_comes(served: Served, visitor: Visitor, tmp_path: Path):
    gate = tmp_path / "gate"
    job = submitted(served, "shown.parts", gate=str(gate))
    address = f"/jobs/{job}"
    wait_for(lambda: f"printed {SCRIPT}" in visitor.get(address).text, "what it printed")
    wait_for(lambda: f"first {SCRIPT}" in visitor.get(address).text, "the first part")
    assert "second" not in visitor.get(address).text and "printed more" not in visitor.get(address).text
    gate.touch()
    wait_for(lambda: "second" in visitor.get(address).text, "the second part")
    wait_for(lambda: "printed more" in visitor.get(address).text, "what it printed then")
    shown = visitor.get(address)
    assert "script" not in {tag for tag, named in shown.tags if named.get("type") != "module"}
    Path(f"{gate}2").touch()
    ended(served, job)
    shown = visitor.get(address)
    assert "What it printed" in shown.text and "Parts of its result" not in shown.text and "second" in shown.text


@pytest.mark.usefixtures("worker")
def test_an_open_page_hears_of_output_and_parts(served: Served, visitor: Visitor, tmp_path: Path):
    gate = tmp_path / "gate"
    job = submitted(served, "shown.parts", gate=str(gate))
    wait_for(lambda: f"first {SCRIPT}" in visitor.get(f"/jobs/{job}").text, "the first part")
    where = urlsplit(served.address)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE_S)
    connection.request("GET", f"/changes?job={job}", headers={"Cookie": visitor.cookie})
    reply = connection.getresponse()
    assert reply.status == 200
    ops = json.loads(command(served.home, "status", "--json").stdout)["ops"]
    gate.touch()
    assert next(line for line in reply if line.startswith(b"data")) == b'data: "changed"\n'
    assert json.loads(command(served.home, "status", "--json").stdout)["ops"] == ops, "nothing came on the log"
    connection.close()
    Path(f"{gate}2").touch()
    ended(served, job)


@pytest.mark.usefixtures("worker")
def test_an_artifact_is_saved_and_never_shown(served: Served, visitor: Visitor):
    job = submitted(served, "shown.file")
    ended(served, job)
    shown = visitor.get(f"/jobs/{job}")
    links = [named for tag, named in shown.tags if tag == "a" and named.get("href", "").startswith("/artifacts/")]
    assert len(links) == 2 and "text.html" in shown.text
    for link, content in zip(links, (b"<!doctype html>" + SCRIPT.encode(), SCRIPT.encode() * 100_000), strict=True):
        answer = served.ask("GET", link["href"], headers={"Cookie": visitor.cookie})
        assert answer.status == 200 and answer.body == content
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"
        name = link["title"].replace(":", "-")
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}.bin"'
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        part = served.ask("GET", link["href"], headers={"Cookie": visitor.cookie, "Range": "bytes=1-4"})
        assert part.status == 206 and part.body == content[1:5]
        assert served.ask("GET", link["href"]).status == 401
    reader = Visitor(served, "--may", "job:read")
    assert "/artifacts/" not in reader.get(f"/jobs/{job}").html
    assert served.ask("GET", links[0]["href"], headers={"Cookie": reader.cookie}).status == 403
    assert served.ask("GET", f"/jobs/{job}/ops", headers={"Cookie": reader.cookie}).status == 200


@pytest.mark.usefixtures("worker")
def test_the_proof_of_a_command_is_saved_and_verified(served: Served, visitor: Visitor, tmp_path: Path):
    assert command(served.home, "run", "--", "echo", "hello").returncode == 0
    job = json.loads(command(served.home, "jobs", "--kind", "hocket.run", "--json").stdout)[0]["job_id"]
    shown = visitor.get(f"/jobs/{job}")
    assert "hello" in shown.text
    assert any(named.get("href") == f"/jobs/{job}/proof" for tag, named in shown.tags if tag == "a")
    file = tmp_path / "proof.json"
    file.write_bytes(served.ask("GET", f"/jobs/{job}/proof", headers={"Cookie": visitor.cookie}).body)
    verified = command(served.home, "proof", "verify", str(file))
    assert "the signatures are good" in verified.stderr, verified.stderr
    other = submitted(served, "never.run")
    assert f"/jobs/{other}/proof" not in visitor.get(f"/jobs/{other}").html
    assert served.ask("GET", f"/jobs/{other}/proof", headers={"Cookie": visitor.cookie}).status == 404


def test_the_signed_ops_of_a_job_are_what_another_node_admits(served: Served, visitor: Visitor, tmp_path: Path):
    job = submitted(served, "never.run")
    command(served.home, "cancel", job)
    file, theirs = tmp_path / "job.ops", tmp_path / "log.ops"
    file.write_bytes(served.ask("GET", f"/jobs/{job}/ops", headers={"Cookie": visitor.cookie}).body)
    command(served.home, "log", "export", str(theirs))
    exported = theirs.read_bytes()
    assert file.read_bytes()[0] == 2 and file.read_bytes()[1:] in exported


def test_each_op_says_whether_its_signature_is_good(served: Served, visitor: Visitor):
    job = submitted(served, "never.run")
    story = visitor.get(f"/jobs/{job}").html.partition('id="story"')[2].partition("</table>")[0]
    assert re.search(r'class="state own">.*?own</span>', story)


def test_an_op_of_another_node_is_verified(tmp_path: Path):
    home, other = tmp_path / "home", tmp_path / "other"
    Runtime.init(home, name="box").close()
    with serving(home) as served:
        invitation = command(home, "invite", "far", "--may", "job:schedule", "--json").stdout
        joined = command(other, "join", json.loads(invitation)["token"])
        assert joined.returncode == 0, joined.stderr
        job = command(other, "submit", "far.job", "{}").stdout.split()[-1]
        visitor = Visitor(served)
        wait_for(lambda: visitor.get(f"/jobs/{job}").status == 200, "the job of the other node")
        story = visitor.get(f"/jobs/{job}").html.partition('id="story"')[2].partition("</table>")[0]
        assert re.search(r'class="state verified">.*?verified</span>', story) and "far" in story


def test_what_another_node_offered_and_the_coordinator_accepted_is_one_line(tmp_path: Path):
    home, far = tmp_path / "home", tmp_path / "far"

    def run(ctx: hocket.Context) -> None:
        raise RuntimeError(f"it broke {SCRIPT}")

    job_type = hocket.job("far.work", retries=0)(run)
    Runtime.init(home, name="box").close()
    with serving(home) as served:
        invitation = command(home, "invite", "helper", "--worker", "far.", "--json").stdout
        assert command(far, "join", json.loads(invitation)["token"]).returncode == 0
        job = command(home, "submit", "far.work", "{}").stdout.split()[-1]
        with closing(hocket.open_sync(far)) as node:
            node.work([job_type], until_idle=True, signals=False)
        visitor = Visitor(served)
        shown = visitor.get(f"/jobs/{job}")
        story = shown.text.partition("What happened")[2].partition("Download")[0]
        # The worker did it, although the coordinator wrote the ops that count.
        assert re.search(r"claimed helper 1 ", story) and re.search(r"failed helper 1 .*it broke <script>", story)
        assert story.count("claimed") == story.count(" failed ") == 1
        assert "does not count" not in story and "AcceptWork" not in story and "accepts 01" not in story
        assert "which accepts" in shown.html
