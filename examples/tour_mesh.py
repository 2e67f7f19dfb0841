"""The tour's second part: a mesh. An owner's node and two invited ones, each with its own home, key and process, talk
HTTP over this machine's loopback. Each job goes to a node that may run it; a worker is killed in the middle of a lease;
the owner falls silent and comes back; a node is revoked. Each printed line was checked first, and the first failed
check ends the tour.

    python examples/tour_mesh.py [--base DIR]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Protocol

import msgspec
import tour_mesh_jobs as jobs

import hocket
from hocket.families.jobs.rules import Job

HERE = Path(__file__).resolve().parent
PATIENCE_S = 40.0
FRAMES, LETTERS, INDEXES = 20, 20, 8
GRANTS = {
    "gpu": ("job:claim:acme.render.", "job:complete:acme.render.", "job:schedule:acme.render."),
    "post": ("job:claim:acme.mail.", "job:complete:acme.mail."),
}
BOTH = ("job:claim:acme.pack.", "job:complete:acme.pack.")


def _outcome(job: bytes) -> tuple[object, ...]:
    """The outcome of a job in a roster; ops that no longer count may have moved its last time."""
    told = msgspec.msgpack.decode(job, type=Job)
    return told.kind, told.state, told.outcome, told.fence, told.claimer, told.artifacts


class Wrong(Exception):
    """A check has failed."""


def must(holds: object, what: str) -> None:
    if not holds:
        raise Wrong(what)


def wait_for(look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        must(time.monotonic() < deadline, f"timed out waiting for {what}")
        time.sleep(0.02)
    return seen


class Member:
    """One node: its home, a window on its log, and its process, a server or a worker."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.home = folder / name
        self.output = folder / f"{name}.out"
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._window = ExitStack()
        self._node: hocket.SyncNode | None = None

    def __call__(self, *words: str, code: int = 0) -> Any:
        """Runs a command on this home, as in a shell; returns its JSON answer."""
        done = subprocess.run(self._command("--json", *words), capture_output=True, text=True, timeout=PATIENCE_S)
        ended = f"`hocket {words[0]}` on {self.name} left with {done.returncode}, not {code}"
        must(done.returncode == code, f"{ended}: {(done.stderr or done.stdout).strip()}")
        return json.loads(done.stdout.splitlines()[0]) if done.stdout.strip() else None

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "hocket.cli", "--home", str(self.home), *words]

    @property
    def node(self) -> hocket.SyncNode:
        if self._node is None:
            self._node = self._window.enter_context(hocket.open(self.home))
        return self._node

    def job(self, job_id: str) -> dict[str, Any]:
        """What this node's log says about a job; empty if it does not know the job."""
        try:
            return self.node.job(job_id).status()
        except hocket.Usage:
            return {}

    def roster(self) -> dict[bytes, bytes]:
        """Everything that this node's log says about every job, as bytes."""
        with self.node.runtime.read() as session:
            return {entry.job.id: msgspec.msgpack.encode(entry.job) for entry in session.each_job()}

    def start(self, *words: str) -> None:
        environment = os.environ | {"TOUR_FOLDER": str(self._folder)}
        with self.output.open("a") as output:
            self._process = subprocess.Popen(
                self._command(*words), stdout=subprocess.PIPE, stderr=output, text=True, env=environment
            )

    def serve(self, port: int) -> str:
        """Starts its server; returns its address when it accepts connections."""
        self.start("serve", "--port", str(port), "--json")
        assert self._process is not None and self._process.stdout is not None
        said = self._process.stdout.readline()
        must(said, f"the server of {self.name} did not start: {self.output.read_text()}")
        return str(json.loads(said)["address"])

    def work(self) -> None:
        self.start("work", str(HERE / "tour_mesh_jobs.py"), "--concurrency", "2")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def stop(self) -> None:
        """Stops its process, as Ctrl-C would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self.wait_end(0)

    def wait_end(self, code: int) -> None:
        """Waits until its process has ended by itself."""
        assert self._process is not None
        self._process.communicate(timeout=PATIENCE_S)
        left, self._process = self._process.returncode, None
        must(left == code, f"the process of {self.name} left with {left}, not {code}: {self.output.read_text()}")

    def close(self) -> None:
        self.kill()
        self._window.close()


class Tour:
    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._owner, self._gpu, self._post = self._all = tuple(Member(folder, name) for name in ("owner", *GRANTS))
        self._port = 0
        self._twice: set[str] = set()

    def __enter__(self) -> "Tour":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._all:
            member.close()

    def run(self) -> None:
        self.gather()
        self.share()
        self.kill_one()
        self.cut_off()
        self.revoke()
        self.verify()

    # The parts of the story.

    def gather(self) -> None:
        owner = self._owner
        owner("init")
        address = owner.serve(0)
        self._port = int(address.rpartition(":")[2])
        self._say(f"owner has created a home and serves at {address}")
        for member in (self._gpu, self._post):
            self._enrol(member)
        for name, kind in (("gpu", "acme.mail.letter"), ("post", "acme.render.frame")):
            answer = owner("may", name, "claim", kind, code=4)
            must(answer["may"] is False, f"{name} may claim {kind}")
            self._say(f"`hocket node may {name} claim {kind}` says no")
        routed = owner("route", "acme.pack.index", "post")
        must(routed["able"], "post could not do what was routed to it")
        self._say("both may do acme.pack.*, but the owner routes acme.pack.index to post alone")

    def _enrol(self, member: Member) -> None:
        grants = [word for grant in (*GRANTS[member.name], *BOTH) for word in ("--may", grant)]
        token = self._owner("invite", member.name, *grants)["token"]
        joined = member("join", token)
        key = (member.home / "node.key").exists() and not (member.home / "user.key").exists()
        must(key and joined["name"] == member.name, f"{member.name} did not join as it should")
        may = "; ".join(each for each in joined["may"] if "of kind" in each)
        self._say(f"{member.name} joined with an invitation and a key made in its own home; it may {may}")

    def share(self) -> None:
        owner = self._owner
        for member in (self._gpu, self._post):
            member.work()
        wanted = [(jobs.frame, FRAMES), (jobs.letter, LETTERS), (jobs.index, INDEXES)]
        handles = owner.node.submit_many([(kind, {"number": n}) for kind, count in wanted for n in range(count)])
        self._say(f"owner submits {len(handles)} jobs of three kinds; both workers run the same program")
        ran: Counter[tuple[str, str]] = Counter()
        for handle in handles:
            result = handle.result(PATIENCE_S)
            status = handle.status()
            must(status["attempts"] == 1, f"a job was tried {status['attempts']} times")
            ran[status["kind"], result["node"]] += 1
        done = {("acme.render.frame", "gpu"): FRAMES, ("acme.mail.letter", "post"): LETTERS}
        done["acme.pack.index", "post"] = INDEXES
        must(ran == done, f"the wrong nodes did the work: {dict(ran)}")
        ops = [op for handle in handles for op in handle.status()["ops"]]
        ends = {f"accepts {op['id']}" for op in ops if op["type"] == "CompleteJob"}
        accepted = sum(op["type"] == "AcceptWork" and op["counts"] and op["detail"] in ends for op in ops)
        must(accepted == len(handles), f"the owner accepted {accepted} ends of {len(handles)} jobs")
        self._say(
            f"gpu did the {FRAMES} frames; post the {LETTERS} letters and the {INDEXES} routed indexes, each once"
        )
        self._say("  (claims and completions count because the owner, the coordinator, accepted each of them)")

    def kill_one(self) -> None:
        slow = self._owner.node.submit(jobs.slow)
        _, holder = wait_for(lambda: self._runs(slow.job_id), "the slow job to start")[0]
        victim = next(member for member in self._all if member.name == holder)
        victim.kill()
        killed_at = time.time()
        held = slow.status()
        must(held["state"] == "running" and held["fence"] == 1, f"the slow job was not held: {held['state']}")
        left = held["deadline_ms"] / 1000 - killed_at
        self._say(f"{holder} is killed with SIGKILL in the middle of a job, {left:.1f} s before its lease ends")
        result = slow.result(PATIENCE_S)
        status = slow.status()
        expired = [op for op in status["ops"] if op["type"] == "ExpireWork" and op["counts"]]
        must(len(expired) == 1, "the lease of the killed worker was not ended by the owner")
        must(result["node"] != holder and status["fence"] == 2, "the job did not go to the other node")
        must(status["done_ms"] > held["deadline_ms"], "the job was given away before its lease was over")
        self._twice.add(slow.job_id)
        took = status["done_ms"] / 1000 - killed_at
        self._say(
            f"the owner ended the lease when it was over, and not before; {result['node']} did the job under fence 2,"
        )
        self._say(f"  {took:.1f} s after the kill")
        victim.work()

    def cut_off(self) -> None:
        owner, gpu = self._owner, self._gpu
        held = owner.node.submit(jobs.long)
        wait_for(lambda: self._runs(held.job_id), "the long job to start")
        owner.stop()
        self._say("gpu holds a job; now the owner's server is stopped, and no node can reach the coordinator")
        waiting, free = gpu.node.submit(jobs.frame, number=FRAMES), gpu.node.submit(jobs.note)
        (self._folder / "go").touch()
        free_result = free.result(PATIENCE_S)
        must(free_result == {"node": "gpu"}, "the open job was not done by gpu")
        offered = wait_for(lambda: _offered(gpu.job(held.job_id), "CompleteJob"), "the end of the long job")
        must(len(offered) == 1 and gpu.job(held.job_id)["outcome"] is None, "the long job counts as ended already")
        self._say("gpu finishes the job that it holds; the completion is on its log as an offer and does not count yet")
        wait_for(lambda: "no decision from the coordinator" in gpu.output.read_text(), "gpu to miss the coordinator")
        must(
            not self._runs(waiting.job_id) and gpu.job(waiting.job_id)["fence"] == 0,
            "a job was started without the coordinator",
        )
        self._say("a frame submitted on gpu meanwhile does not start; a job marked open does, and completes")
        must(not owner.job(waiting.job_id) and not owner.job(free.job_id), "the owner heard of jobs over a cut line")
        must(owner.job(held.job_id)["state"] == "running", "the owner let go of the job that gpu holds")
        owner.serve(self._port)
        back_at = time.monotonic()
        ended = [held.job_id, waiting.job_id, free.job_id]
        wait_for(lambda: all(owner.job(each).get("outcome") == "succeeded" for each in ended), "the mesh to heal")
        for each in ended:
            runs = self._runs(each)
            must([node for _, node in runs] == ["gpu"], f"a job ran twice, or somewhere else: {runs}")
        self._say(
            f"the server is back; {time.monotonic() - back_at:.1f} s later the owner has all three jobs, each run once"
        )

    def revoke(self) -> None:
        owner, gpu, post = self._all
        wait_for(lambda: owner.roster() == gpu.roster() == post.roster(), "three equal rosters")
        self._say(f"all three homes agree on all {len(owner.roster())} jobs, byte for byte")
        before = post.roster()
        done = owner("revoke", "post", "--yes")
        must(done["name"] == "post" and not done["cascade"], "another node was revoked")
        refused = post("sync", code=1)
        must([each["state"] for each in refused] == ["refused"], f"post was not refused: {refused}")
        post.wait_end(4)
        must("may no longer work in its mesh" in post.output.read_text(), "post does not say why it has ended")
        letter = owner.node.submit(jobs.letter, number=LETTERS)
        stood = {each["name"]: each["standing"] for each in owner("nodes")}
        must(stood["post"] == "revoked" and stood["gpu"] == "active", f"the standings are {stood}")
        wait_for(lambda: gpu.job(letter.job_id), "gpu to hear of the last letter")
        must(post.roster() == before and not self._runs(letter.job_id), "post learns and does what it may not")
        now = owner.roster()
        stands = all(_outcome(now[entry]) == _outcome(before[entry]) for entry in before)
        must(stands, "what the owner had accepted from post no longer stands")
        self._say(
            "post is revoked: the owner refuses it, and its worker ends; a new letter does not reach it and waits,"
        )
        self._say("  and what the owner had accepted from it stands")

    def verify(self) -> None:
        owner, gpu, post = self._all
        wait_for(lambda: owner.roster() == gpu.roster(), "two equal rosters")
        standings = {each["name"]: each["standing"] for each in gpu("nodes")}
        must(standings["post"] == "revoked", "gpu has not heard that post is revoked")
        for member in (gpu, owner):
            member.stop()
        must(owner.roster() == gpu.roster(), "the rosters of owner and gpu differ")
        theirs = owner.roster()
        for job, said in post.roster().items():
            ended, counts = _outcome(said), _outcome(theirs[job])
            must(ended == counts, f"post says {ended} of a job, and the owner {counts}")
        journal = (self._folder / "journal").read_text().splitlines()
        again = [job for job, count in Counter(line.split()[0] for line in journal).items() if count > 1]
        must(set(again) == self._twice, f"jobs ran twice: {again}")
        done = len({line.split()[0] for line in journal})
        must(done == len(theirs) - 1, f"{done} of {len(theirs)} jobs ran")
        self._say(f"{len(journal)} runs for {done} jobs: only the one whose worker was killed ran twice")
        for member in self._all:
            proof = member("log", "verify")
            must(not proof["findings"], f"the log of {member.name}: {proof['findings']}")
            self._say(
                f"log of {member.name} verified: {proof['ops']} ops, chain head {proof['head'].partition(':')[2]}"
            )
        self._say("owner and gpu end with the same roster, byte for byte; post knows how each of its jobs ended")

    def _runs(self, job_id: str) -> list[tuple[int, str]]:
        """Which claims on a job began to run, and on which node."""
        journal = self._folder / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [(int(fence), node) for job, fence, node in (line.split() for line in lines) if job == job_id]


def _offered(status: dict[str, Any], type_: str) -> list[dict[str, Any]]:
    return [op for op in status.get("ops", ()) if op["type"] == type_ and not op["counts"]]


class Story(AbstractContextManager["Story"], Protocol):
    """A part of the tour. Leaving it ends its processes."""

    def run(self) -> None: ...


def played(prefix: str, part: Callable[[Path, Callable[[str], None]], Story], base: Path, say: Any) -> list[str]:
    """The failed checks. Whatever happens, no process and no file outlives the story."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=base) as folder, part(Path(folder), say) as story:
        try:
            story.run()
        except (Wrong, hocket.HocketError, TimeoutError, subprocess.SubprocessError) as error:
            return [str(error) if isinstance(error, Wrong) else f"{type(error).__name__}: {error}"]
    return []


def tour(base: Path, say: Callable[[str], None]) -> list[str]:
    return played("mesh-", Tour, base, say)


def main(description: str, tour: Callable[[Path, Callable[[str], None]], list[str]]) -> int:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--base", type=Path, default=HERE.parent / ".run", help="directory to work in")
    base: Path = parser.parse_args().base.absolute()
    base.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        wrong = tour(base, print)
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python's own locks can fail on an interrupt, and then raise another error.
        if not isinstance(error.__context__ if isinstance(error, RuntimeError) else error, KeyboardInterrupt):
            raise
        print("interrupted; the nodes are stopped and their homes removed")
        return 130
    for line in wrong:
        print(f"check failed: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], tour))
