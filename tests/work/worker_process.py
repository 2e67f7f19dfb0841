"""A worker process for the tests: `python -m tests.work.worker_process HOME [OPTIONS]`. The options are a JSON object
of `Node.work`, `modules` (files with handlers), and `constants` that replace those of the modules here. It says `up`
when its handlers are loaded, and each notice on a line of its own.
"""

import ctypes
import json
import signal
import sys
from pathlib import Path

import hocket
from hocket.families import liveness
from hocket.work import batch, handler_processes, held_jobs, runner, worker
from hocket.work import handler_threads as handler_watch
from hocket.work.handlers import Handlers, load

PR_SET_PDEATHSIG = 1
HANDLERS = str(Path(__file__).with_name("steps.py"))


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    home, options = sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    for name, value in options.pop("constants", {}).items():
        modules = [
            each
            for each in (worker, batch, held_jobs, handler_watch, liveness, handler_processes, runner)
            if hasattr(each, name)
        ]
        assert modules
        for each in modules:
            setattr(each, name, value)
    only = options.pop("only", ())
    handlers = Handlers(load(options.pop("modules", [HANDLERS])), only)
    with hocket.open(home) as node:
        say("up")
        done = node.work(handlers, notice=say, **options)
    say(f"ended {done.succeeded} {done.failed} {done.handed_back}")


if __name__ == "__main__":
    # A test run that is itself killed leaves nobody behind.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    main()
