"""`hocket git trust`: the keys of workers outside the mesh whose results in git are trusted here."""

from typing import Annotated

import typer

from hocket.cli.app import new_app
from hocket.cli.output import emit, say, table
from hocket.cli.settings import HomeOption, JsonOption, open_service
from hocket.errors import Usage

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
    from hocket.service import git_keys

    with open_service() as service:
        text, added = git_keys.add(service, key, name)
    emit({"key": text, "added": added})
    say(f"{'trusted' if added else 'already trusted'}: {text}")


@app.command("list")
def list_keys(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the keys that are trusted, and why each is.

    \b
      hocket git trust list
    """
    from hocket.service import git_keys

    with open_service() as service:
        keys = git_keys.listing(service)
    emit(keys)
    table(("key", "because", "name"), [(each.key, each.because, each.name or "-") for each in keys], "no keys")


@app.command()
def remove(key: Key, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Trust a key no longer. A node of the mesh is trusted for as long as it may complete jobs: `hocket revoke`.

    \b
      hocket git trust remove ed25519:5d0f…
    """
    from hocket.service import git_keys

    with open_service() as service:
        text, removed = git_keys.remove(service, key)
    if not removed:
        raise Usage(f"{text} is not on the list; `hocket git trust list` shows it")
    emit({"key": text, "removed": True})
    say(f"no longer trusted: {text}")
