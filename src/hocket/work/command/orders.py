"""From a manifest to an order: the command line, with a sandbox around it if it asks for one, the environment, and the
bounds. A command sees nothing of the worker's environment but the few variables that are named here.
"""

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from functools import cache
from typing import NamedTuple

from hocket.kernel.manifest import Manifest
from hocket.work.command import sandbox
from hocket.work.command.execute import Order
from hocket.work.command.workshop import Room

# Variables of the worker's that commands get; a star stands for anything.
PASSED_ON = ("PATH", "LANG", "LC_*", "TZ")


class Bounds(NamedTuple):
    """What a worker allows a command. `run_s_max` holds where the manifest asks for no timeout, or a longer one."""

    run_s_max: float
    grace_s: float
    output_bytes_max: int
    free_bytes_min: int
    file_bytes_max: int


def order_for(
    manifest: Manifest,
    room: Room,
    told: Mapping[str, str],
    bounds: Bounds,
    passed_on: Iterable[str] = PASSED_ON,
) -> Order:
    """`told` are variables that say which job this is, `passed_on` names of the worker's own. Raises Usage when the
    command asks for a sandbox and there can be none.
    """
    argv, directory = manifest.argv, room.begin_in(manifest)
    is_sandboxed, has_network = manifest.sandbox != "off", manifest.sandbox != "on"
    if is_sandboxed:
        argv = sandbox.wrapped(sandbox.check(), argv, room, directory, has_network)
    return Order(
        argv=argv,
        env=environment(manifest, room, told, os.environ, passed_on),
        directory=directory,
        streams=room.streams,
        timeout_s=min(manifest.timeout or bounds.run_s_max, bounds.run_s_max),
        grace_s=bounds.grace_s,
        output_bytes_max=bounds.output_bytes_max,
        free_bytes_min=bounds.free_bytes_min,
        file_bytes_max=bounds.file_bytes_max,
        sandboxed=is_sandboxed,
        network=has_network,
    )


def environment(
    manifest: Manifest,
    room: Room,
    told: Mapping[str, str],
    own: Mapping[str, str],
    passed_on: Iterable[str] = PASSED_ON,
) -> dict[str, str]:
    """What is passed on of our own, then a home and a place for temporary files, then what the manifest says, then what
    is told: the later counts.
    """
    is_passed_on = _fitting(tuple(passed_on)).match
    return {
        "PATH": os.defpath,
        **{name: value for name, value in own.items() if is_passed_on(name)},
        "HOME": str(room.home),
        "TMPDIR": str(room.temporary),
        **(manifest.env or {}),
        **told,
    }


@cache
def _fitting(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or r"(?!)")
