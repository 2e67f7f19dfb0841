"""A worker that runs one command and is killed meanwhile. Says the number of its runner's process first."""

import sys
import threading
from pathlib import Path

from tests.extensions.command.bench import bench_in, wait_for

root, mark, script = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
with bench_in(root) as bench:
    bench.mark = mark
    running = threading.Thread(target=bench.python, args=(script,))
    running.start()
    print(wait_for(lambda: bench.runner.process, "a runner"), flush=True)
    running.join()
