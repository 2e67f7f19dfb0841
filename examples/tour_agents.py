"""The tour's third part: two agents write a story on one machine. They lock a file and write to each other; two workers
share its pages by rank; a job waits two beats for help that does not come; a command leaves a proof and a bill. Each
printed line was checked first, and the first failed check ends the tour.

    python examples/tour_agents.py [--base DIR]
"""

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import tour_agents_jobs as jobs
from tour_mesh import PATIENCE_S, Member, Wrong, main, must, played, wait_for

import hocket

HERE = Path(__file__).resolve().parent
PAGES = 24
FILE = "file:story.md"
POLICY = "{cluster_id: story, initial_bpm: 120, bar_len_beats: 4}"
RATES = """\
currency: EUR
beat_ms: 1000
role_rate_bu: {default: 0.001}
rate_cpu_sec: 0.01
rate_gpu_sec: {}
rate_mem_gbs: 0
rate_io_mb: 0
rate_egress_mb: 0
rate_storage_gbh: 0
"""


class Process(Member):
    """A further process on the home of another member."""

    def __init__(self, folder: Path, name: str, home: Path) -> None:
        super().__init__(folder, name)
        self.home = home


class Tour:
    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._desk = Member(folder, "desk")
        self._workers = [Process(folder, f"worker-{number}", self._desk.home) for number in (1, 2)]
        self._tempo = [Process(folder, name, self._desk.home) for name in ("pulse", "reverb")]
        self._story = folder / "story.md"

    def __enter__(self) -> "Tour":
        return self

    def __exit__(self, *_: object) -> None:
        for member in (*self._workers, *self._tempo, self._desk):
            member.close()

    def run(self) -> None:
        self._desk("init", "--name", "desk")
        self.lock()
        self.share()
        self.keep_time()
        self.prove()
        audit = self._desk("log", "verify")
        must(not audit["findings"], f"the log: {audit['findings']}")
        self._say(f"log of desk verified: {audit['ops']} ops, chain head {audit['head'].partition(':')[2]}")

    def lock(self) -> None:
        desk = self._desk
        ada = desk("lock", "acquire", FILE, "--agent", "ada", "--ttl", "30s")
        desk("lock", "acquire", FILE, "--agent", "bo", code=3)
        self._say(f"ada holds {FILE} under fence {ada['fence']}; bo asks for it and is told who holds it, until when")
        self._write("Once upon a time", ada["fence"])
        desk("lock", "release", FILE, "--agent", "ada", "--fence", str(ada["fence"]))
        sent = desk("send", "bo", "the draft is yours", "--agent", "ada")
        (got,) = desk("inbox", "--agent", "bo", "--claim", "1", "--lease", "30s")
        must(got["id"] == sent["id"] and got["from"] == "ada@desk", f"bo got {got}")
        desk("ack", got["id"], "--agent", "bo")
        self._say(f"ada writes, releases it and tells bo: {got['body']!r}; bo acknowledges the message")
        bo = desk("lock", "acquire", FILE, "--agent", "bo", "--ttl", "30s")
        must(bo["fence"] > ada["fence"], f"fence {bo['fence']} after {ada['fence']}")
        self._write("Once upon a time there was a mesh", bo["fence"])
        try:
            self._write("Once upon a midnight dreary", ada["fence"])
            raise Wrong("ada wrote under a fence that is over")
        except hocket.StaleFence:
            pass
        must(self._story.read_text().endswith("a mesh"), "the story is not bo's")
        desk("lock", "release", FILE, "--agent", "bo", "--fence", str(bo["fence"]))
        self._say(f"bo writes under fence {bo['fence']}; a late write of ada's, under fence {ada['fence']}, is refused")

    def _write(self, text: str, fence: int) -> None:
        with hocket.fenced_file(self._story, fence) as file:
            file.write(text)

    def share(self) -> None:
        desk = self._desk
        for worker in self._workers:
            worker.start("work", str(HERE / "tour_agents_jobs.py"))
        wait_for(self._are_ranked, "both workers to be in the ranking")
        handles = desk.node.submit_many([(jobs.page, {"number": n}) for n in range(PAGES)])
        ran = Counter(handle.result(PATIENCE_S)["pid"] for handle in handles)
        must(sum(ran.values()) == PAGES and len(ran) == len(self._workers), f"the workers ran {dict(ran)}")
        shares = " and ".join(str(count) for count in sorted(ran.values(), reverse=True))
        self._say(f"{PAGES} pages go by rank: each worker knew its own without a message, {shares} of them")
        for worker in self._workers:
            worker.stop()

    def _are_ranked(self) -> bool:
        """Whether both workers were in the ranking of a page that is submitted now."""
        page = self._desk.node.submit(jobs.page, number=PAGES)
        page.result(PATIENCE_S)
        return len(self._desk("claims", "explain", page.job_id)["ranking"]) == len(self._workers)

    def keep_time(self) -> None:
        desk, worker = self._desk, self._workers[0]
        (desk.home / "tempo.yaml").write_text(POLICY)
        for process in self._tempo:
            process.start(process.name)
        worker.start("work", str(HERE / "tour_agents_jobs.py"))
        asked = desk.node.submit(jobs.ending)
        ended = asked.result(PATIENCE_S)
        (degraded,) = desk("show", asked.job_id)["degraded"]
        must(
            ended == "and they synced happily ever after" and degraded["event"] == "wait exhausted",
            f"it said {degraded}",
        )
        self._say(
            "a pulse beats 120 times a minute; a job asks cleo for help, waits two beats, and ends with its fallback:"
        )
        self._say(f"  {ended!r}, and the log says so")
        report = wait_for(self._reported, "a bar with the job in its report")
        self._say(
            f"reverb reports the bar of {report['window'][11:19]}: {report['tasks']} task, {report['agents']} agent"
        )
        for process in (worker, *self._tempo):
            process.stop()

    def _reported(self) -> dict[str, Any] | None:
        """The newest report of a window with a task."""
        with suppress(Wrong):  # there is no report yet
            return next((each for each in self._desk("report")["windows"] if each["tasks"]), None)
        return None

    def prove(self) -> None:
        desk = self._desk
        (desk.home / "rates.yaml").write_text(RATES)
        done = desk("run", "--charge-to", "story", "--input", f"story.md={self._story}", "--", "wc", "-w", "story.md")
        must(done["exit_code"] == 0 and done["stdout"].split()[0] == "8", f"wc said {done}")
        must(desk("proof", "verify", done["job_id"])["good"], "the proof is not good")
        bill = desk("cost", "--by", "account")
        (row,) = (row for row in bill["rows"] if row["name"] == "story")
        must(row["cost"] > 0, f"the bill says {row}")
        self._say(f"a command counts 8 words; its proof is good, and the account `story` owes {row['cost']:.4f} EUR")


def tour(base: Path, say: Callable[[str], None]) -> list[str]:
    return played("agents-", Tour, base, say)


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], tour))
