"""A whole mesh in one process: real nodes with real logs, stores and workers, on virtual time, over a network and disks
that fail as the seed dictates. The same seed gives the same run, byte for byte. At the end of a run it checks that
nothing was lost, that all nodes agree, and that no job was held twice.

    report = hocket.extensions.sim.run(7, nodes=5, minutes=2, faults=("partition", "crash"))
    assert not report.violations, report
"""

from hocket.extensions.sim.checks import Violation
from hocket.extensions.sim.faults import FAULTS, HONEST_FAULTS
from hocket.extensions.sim.world import Report, run

__all__ = ["FAULTS", "HONEST_FAULTS", "Report", "Violation", "run"]
