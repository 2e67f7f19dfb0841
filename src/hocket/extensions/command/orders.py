"""From a manifest to an order: the command line, with a sandbox around it if needed, the environment, and the limits. A
command sees nothing of the worker's environment except the few variables named here.
"""

import os
import re
from collections.abc import Mapping
from fnmatch import translate
from functools import cache
from typing import NamedTuple

from hocket.extensions.command import sandbox
from hocket.extensions.command.manifest import Manifest, Sandbox
from hocket.extensions.command.running import CommandOrder, ResourceLimits
from hocket.extensions.command.workdir import Workdir

# The worker's variables that commands get; a star matches anything.
PASSED_ON = ("PATH", "LANG", "LC_*", "TZ")


class CommandLimits(NamedTuple):
    """What a worker allows a command. `run_s_max` applies if the manifest has no timeout, or a longer one."""

    run_s_max: float
    grace_s: float
    output_bytes_max: int
    free_bytes_min: int
    file_bytes_max: int


class RunTerms(NamedTuple):
    """How a worker runs a command. `passed_on` are names of the worker's own variables, `paths` what a sandbox shows
    besides the system, `hidden` what it never shows, `secrets` variables that are not in the manifest. The command of
    another node cannot choose its HOME and TMPDIR.
    """

    is_own: bool
    sandbox: Sandbox
    passed_on: tuple[str, ...] = PASSED_ON
    paths: tuple[str, ...] = ()
    secrets: Mapping[str, str] = {}
    hidden: tuple[str, ...] = ()
    limits: ResourceLimits = ResourceLimits()


def order_for(
    manifest: Manifest, workdir: Workdir, told: Mapping[str, str], bounds: CommandLimits, terms: RunTerms
) -> CommandOrder:
    """`told` are variables that identify the job. Raises Usage if a sandbox is required and cannot be made."""
    directory = workdir.begin_in(manifest)
    env = environment(manifest, workdir, told, os.environ, terms)
    order = CommandOrder(
        argv=manifest.argv,
        env=env,
        directory=directory,
        streams=workdir.streams,
        timeout_s=min(manifest.timeout or bounds.run_s_max, bounds.run_s_max),
        grace_s=bounds.grace_s,
        output_bytes_max=bounds.output_bytes_max,
        free_bytes_min=bounds.free_bytes_min,
        file_bytes_max=bounds.file_bytes_max,
        limits=terms.limits,
    )
    return order if terms.sandbox == "off" else _sandboxed(order, workdir, terms)


def _sandboxed(order: CommandOrder, workdir: Workdir, terms: RunTerms) -> CommandOrder:
    """The variables are for the command alone: bubblewrap would load a library that they name before there is a
    sandbox.
    """
    has_network, bubblewrap = terms.sandbox == "network", sandbox.check()
    view = sandbox.View(workdir, order.directory, has_network, terms.paths, terms.hidden)
    is_gated = order.limits.processes_max > 0
    boxed = sandbox.wrapped(bubblewrap, order.argv, view, order.env, is_gated=is_gated)
    return order._replace(
        argv=boxed.argv,
        env={},
        files=boxed.files,
        sandboxed=True,
        network=has_network,
        is_scoped=has_network and not bubblewrap.is_privileged,
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
