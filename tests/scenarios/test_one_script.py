"""One script of commands about locks, messages, rows, presence and drains: it passes on one home without a server, on
the coordinator of a mesh and on its other node.
"""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cli.fork_server import fork_server, forked_program
from tests.scenarios.machines import HANDLERS, MORTAL, Machine, agree, machines, verify

pytestmark = pytest.mark.timeout(600)

SCRIPT = Path(__file__).with_name("coordination.sh")


def run_script(machine: Machine) -> None:
    told = machine.environment | {"HOCKET": shlex.join(forked_program(fork_server())), "TASKS": HANDLERS}
    done = subprocess.run(
        [*MORTAL, "sh", "-x", str(SCRIPT)], cwd=machine.root, env=told, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.req("VX-01")
@pytest.mark.touches("VX-03", "VX-04", "VX-10", "VX-11", "VX-12")
@pytest.mark.parametrize("place", ["alone", "coordinator", "member"])
def test_one_script_of_commands_passes_everywhere(place: str, tmp_path: Path) -> None:
    with machines(tmp_path, "hub", "leaf") as (hub, leaf):
        hub("init")
        if place == "alone":
            run_script(hub)
            return
        hub.serve()
        leaf("join", hub.invite("leaf", "ops:all"))
        run_script(hub if place == "coordinator" else leaf)
        leaf("sync")
        agree(hub, leaf)
        verify(hub, leaf)
