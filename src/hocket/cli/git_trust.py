"""`hocket git trust`: the keys of workers outside the mesh whose results in git are trusted here."""

from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.app import new_app
from hocket.cli.output import emit, say, table
from hocket.cli.settings import HomeOption, JsonOption, open_desk
from hocket.errors import Usage

if TYPE_CHECKING:
    from hocket.gitplane.trust import TrustedKeys
    from hocket.node.runtime import Runtime

app = new_app()

Key = Annotated[str, typer.Argument(metavar="KEY", help="A worker's key, as `hocket git show` has it.")]


@app.callback()
def trust_group(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Keys whose results `hocket git verify` trusts, beside this node's own and those of the mesh's nodes that may
    complete jobs.

    \b
      hocket git trust add ed25519:5d0f… --name 'the build server'
      hocket git trust list
    """


@app.command()
def add(
    key: Key,
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="Whose key it is, for people.")] = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Trust a key. Ask its owner for it: a repository says which key signed, not whose it is.

    \b
      hocket git trust add ed25519:5d0f… --name 'the build server'
    """
    from hocket.gitplane.trust import parse_worker
    from hocket.kernel.keys import key_text

    public = parse_worker(key)
    with open_desk() as runtime:
        added = _keys(runtime).add(public, name)
    emit({"key": key_text(public), "added": added})
    say(f"{'trusted' if added else 'already trusted'}: {key_text(public)}")


@app.command("list")
def list_keys(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the keys that are trusted, and why each is.

    \b
      hocket git trust list
    """
    from hocket.gitplane.trust import keys_of_mesh
    from hocket.kernel.keys import key_text

    with open_desk() as runtime, runtime.read() as session:
        written = _keys(runtime).read()
        mesh = keys_of_mesh(runtime.log, session)
        own = runtime.home.node_key().public
    rows = [(own, "this node", mesh.get(own, ""))]
    rows += [(key, "mesh", name) for key, name in mesh.items() if key != own]
    rows += [(key, "added", name) for key, name in written.items()]
    emit([{"key": key_text(key), "because": why, "name": name or None} for key, why, name in rows])
    table(("key", "because", "name"), [(key_text(key), why, name or "-") for key, why, name in rows], "no keys")


@app.command()
def remove(key: Key, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Trust a key no longer. A node of the mesh is trusted for as long as it may complete jobs: `hocket revoke`.

    \b
      hocket git trust remove ed25519:5d0f…
    """
    from hocket.gitplane.trust import parse_worker
    from hocket.kernel.keys import key_text

    public = parse_worker(key)
    with open_desk() as runtime:
        if not _keys(runtime).remove(public):
            raise Usage(f"{key_text(public)} is not on the list; `hocket git trust list` shows it")
    emit({"key": key_text(public), "removed": True})
    say(f"no longer trusted: {key_text(public)}")


def _keys(runtime: "Runtime") -> "TrustedKeys":
    from hocket.gitplane.trust import TrustedKeys

    return TrustedKeys(runtime.home.git_trusted)
