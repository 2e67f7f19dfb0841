"""The runner of commands of a node."""

from collections.abc import Iterable

from hocket.node.rates import rates_of
from hocket.node.runtime import Runtime
from hocket.node.secret_paths import secret_paths
from hocket.work.artifacts import Fetch
from hocket.work.command.allowance import configured
from hocket.work.command.job import Commands, Premises


def command_runner(
    runtime: Runtime, fetch: Fetch, allow: Iterable[str] = (), allow_any: bool = False, allow_env: Iterable[str] = ()
) -> Commands:
    """The runner of commands on this node: its own, and those of other nodes that the home's configuration or these
    patterns allow, with variables of these names. `fetch` gets content from other nodes.
    """
    allowance = configured(runtime.home.configuration).extended(allow, allow_any, allow_env)
    key, runs = runtime.home.node_key(), runtime.home.runs
    premises = Premises(
        key,
        runtime.log.node,
        runs,
        runtime.secrets,
        runtime.blobs,
        runtime.read,
        fetch,
        runtime.log.physical,
        runtime.output,
        rates_of(runtime.home),
        secret_paths(runtime.home, allowance.hide),
    )
    return Commands(premises, allowance)
