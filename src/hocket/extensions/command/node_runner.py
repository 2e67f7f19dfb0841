"""The runner of commands of a node, and the files that no command of another node may read: the home, and what the
configuration and the environment name outside it. A sandbox covers them wherever they would be visible.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hocket.events import Emit, ignore
from hocket.extensions.command.allowance import configured
from hocket.extensions.command.job import Commands, Premises
from hocket.extensions.command.secrets import secrets_of
from hocket.extensions.cost.node_costs import rates_of
from hocket.node import variables
from hocket.node.home import DATABASE_ENDS, Home
from hocket.node.local_node import fetch_for
from hocket.node.message_bus import credentials_path
from hocket.node.runtime import Runtime

# What the drivers of databases, git and ssh read by themselves.
_IN_HOME = (
    ".pgpass",
    ".pg_service.conf",
    ".postgresql",
    ".ssh",
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
)
_NAMED = ("PGPASSFILE", "PGSERVICEFILE", "PGSSLKEY")


def secret_paths(home: Home, also: Iterable[str] = ()) -> tuple[str, ...]:
    """Without symbolic links, and without what is below another one. `also` are paths that the owner named."""
    named = [home.path, *(Path(os.path.expanduser("~"), name) for name in _IN_HOME), *map(Path, also)]
    named += [Path(value).expanduser() for name in _NAMED if (value := variables.given(name))]
    databases = [home.database, *filter(None, [variables.replica_path(home.server, home.replica)])]
    named += [database.with_name(database.name + end) for database in databases for end in DATABASE_ENDS]
    named += filter(None, [credentials_path(home), home.tls_key()])
    whole = {Path(os.path.realpath(path)) for path in named}
    return tuple(sorted(str(path) for path in whole if whole.isdisjoint(path.parents)))


@contextmanager
def command_runner(
    runtime: Runtime,
    emit: Emit = ignore,
    allow: Iterable[str] | None = None,
    allow_any: bool = False,
    allow_env: Iterable[str] | None = None,
) -> Iterator[Commands]:
    """The runner of commands on this node: its own, and those of other nodes that the home's configuration or these
    patterns allow, with variables of these names. Warns of what it may not do here.
    """
    allowance = configured(runtime.home.configuration).extended(allow or (), allow_any, allow_env or ())
    key, runs = runtime.home.node_key(), runtime.home.runs
    premises = Premises(
        key,
        runtime.log.node,
        runs,
        secrets_of(runtime.home),
        runtime.blobs,
        runtime.read,
        fetch_for(runtime),
        runtime.log.physical,
        runtime.output,
        rates_of(runtime.home),
        secret_paths(runtime.home, allowance.hide),
    )
    with closing(Commands(premises, allowance)) as commands:
        for warning in commands.warnings():
            emit(warning)
        yield commands
