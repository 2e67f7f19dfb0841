"""`hocket tempo top`: one frame in a pipe, 80 columns on a terminal, and Ctrl-C leaves cleanly."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

from hocket.api import Service, locks
from hocket.node.runtime import Runtime
from tests.cli.conftest import PATIENCE_S, Program
from tests.cli.fork_server import PROGRAM
from tests.cli.test_cost import price
from tests.cli.test_reverb import LONG, keep_window

COLUMNS, LINES = 80, 24


def used(hocket: Program) -> None:
    """A home with a queue, many locks with long names, an ended job and a reported window."""
    (hocket.home / "tempo.yaml").write_text(json.dumps(LONG))
    price(hocket.home)
    hocket("run", "true", code=0)
    hocket.submit("test.echo", "{}")
    with Service(Runtime.open(hocket.home)) as service:
        for number in range(30):
            agent = "an-agent-with-quite-a-long-name" if number == 0 else "a"
            locks.acquire(service, [f"src/{'deep/' * 12}file{number}.py"], agent, 600_000)
    keep_window(hocket.home)


def test_one_frame_in_a_pipe(hocket: Program) -> None:
    used(hocket)
    shown = hocket("top", "--once", code=0).out
    lines = shown.splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert lines[0].startswith("one  ") and "beat " in lines[0] and "1 bpm" in lines[0]
    assert "ready 1" in shown and "none in window" in shown and "EUR in the last hour" in shown
    assert shown.count("\nlock ") == 30, "without a terminal nothing is left out"
    found = hocket("top", "--json", code=0).json
    assert found["queue"]["ready"] == 1 and found["cost"] > 0 and found["alarms"] == []
    (node,) = found["nodes"]
    assert node["grade"] == "live" and node["running"] == 0
    assert {each["type"] for each in found["holds"]} == {"lock"}
    assert all(each["until_ms"] > found["now_ms"] for each in found["holds"])
    assert "hocket tempo top --once" in hocket("top", code=2).sentence


def test_on_a_terminal_it_fits_and_ctrl_c_ends_it(hocket: Program) -> None:
    used(hocket)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = hocket.environment() | {"TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    process = subprocess.Popen([*PROGRAM, "top"], env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        deadline = time.monotonic() + PATIENCE_S
        while b"holds more" not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 1.0)[0]:
                seen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        while select.select([ours], [], [], 0.2)[0]:
            try:
                seen += os.read(ours, 65536)
            except OSError:
                break
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    text = seen.decode()
    assert text.startswith("\x1b[?1049h") or "\x1b[?1049h" in text
    assert "\x1b[?1049l" in text, "the screen is given back"
    assert "Traceback" not in text
    first = text.split("\x1b[?1049h", 1)[1].split("holds more", 1)[0]
    assert first.count("\n") < LINES
