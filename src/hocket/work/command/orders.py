"""From a manifest to an order: the command line, with a sandbox around it if needed, the environment, and the limits. A
command sees nothing of the worker's environment except the few variables named here.
"""

import os
import re
from collections.abc import Mapping
from fnmatch import translate
from functools import cache
from typing import NamedTuple

from hocket.kernel.manifest import Manifest, Sandbox
from hocket.work.command import sandbox
from hocket.work.command.running import CommandOrder
from hocket.work.command.workdir import Workdir

# The worker's variables that commands get; a star matches anything.
PASSED_ON = ("PATH", "LANG", "LC_*", "TZ")
# Variables that the dynamic linker obeys. Outside a sandbox they would affect the program that makes it.
_LINKING = ("LD_", "GLIBC_TUNABLES")


class CommandLimits(NamedTuple):
    """What a worker allows a command. `run_s_max` applies if the manifest has no timeout, or a longer one."""

    run_s_max: float
    grace_s: float
    output_bytes_max: int
    free_bytes_min: int
    file_bytes_max: int


class RunTerms(NamedTuple):
    """How a worker runs a command. `passed_on` are names of the worker's own variables, `paths` what a sandbox shows
    besides the system, `secrets` variables that are not in the manifest. The command of another node cannot choose its
    HOME and TMPDIR.
    """

    is_own: bool
    sandbox: Sandbox
    passed_on: tuple[str, ...] = PASSED_ON
    paths: tuple[str, ...] = ()
    secrets: Mapping[str, str] = {}


def order_for(
    manifest: Manifest, workdir: Workdir, told: Mapping[str, str], bounds: CommandLimits, terms: RunTerms
) -> CommandOrder:
    """`told` are variables that identify the job. Raises Usage if a sandbox is required and cannot be made."""
    argv, directory = manifest.argv, workdir.begin_in(manifest)
    env = environment(manifest, workdir, told, os.environ, terms)
    is_sandboxed, has_network = terms.sandbox != "off", terms.sandbox != "on"
    if is_sandboxed:
        inside = {name: env.pop(name) for name in [*env] if name.startswith(_LINKING)}
        view = sandbox.View(workdir, directory, has_network, terms.paths)
        argv = sandbox.wrapped(sandbox.check(), argv, view, inside)
    return CommandOrder(
        argv=argv,
        env=env,
        directory=directory,
        streams=workdir.streams,
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
    workdir: Workdir,
    told: Mapping[str, str],
    own: Mapping[str, str],
    terms: RunTerms,
) -> dict[str, str]:
    """The worker's passed-on variables, then a home and a temporary directory, then the manifest's variables, then
    `told`: the later ones win.
    """
    is_passed_on = _fitting(terms.passed_on).match
    places = {"HOME": str(workdir.home), "TMPDIR": str(workdir.temporary)}
    return {
        "PATH": os.defpath,
        **{name: value for name, value in own.items() if is_passed_on(name)},
        **places,
        **(manifest.env or {}),
        **terms.secrets,
        **({} if terms.is_own else places),
        **told,
    }


@cache
def _fitting(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or r"(?!)")
