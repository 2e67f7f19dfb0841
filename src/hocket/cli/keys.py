"""`hocket keys`: shows the public side of a home's keys, backs up, restores and locks the user's key, and uses it to
issue a new root delegation. A node's key is never shown or copied: it stays where it was made. `hocket init` creates a
home with its keys.

A passphrase comes from a file, from the environment, or from a person at the terminal. It is never an argument, because
every user of the machine can read arguments.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hocket.cli.declarations import App, Argument, Option
from hocket.cli.printing import emit, fields, notice, on_terminal, say
from hocket.cli.settings import open_service, settings
from hocket.errors import Conflict, StoreError, Usage
from hocket.node.home import Ask
from hocket.store.artifact_rows import BlobPlace

if TYPE_CHECKING:
    from hocket.node.home import Home


ENVIRONMENT = "HOCKET_PASSPHRASE"
PASSPHRASE_CHARS_MAX = 1024

PassphraseFile = Annotated[
    Path | None,
    Option(
        "--passphrase-file",
        "FILE",
        f"A file with the passphrase on its first line; default ${ENVIRONMENT}, else a prompt.",
    ),
]


def known(file: Path | None) -> Ask:
    """Asks for the passphrase of a locked key."""
    return lambda: _given(file) or _prompted("passphrase of the user's key: ")


def new(file: Path | None, *, environment: bool = True) -> str:
    """Asks for the passphrase of a key to lock. A person types it twice."""
    given = _given(file, environment=environment)
    if given is None:
        given = _prompted("new passphrase: ")
        if given != _prompted("once more: "):
            raise Usage("the two passphrases differ; nothing was changed")
    return given


def _given(file: Path | None, *, environment: bool = True) -> str | None:
    if file is not None:
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise Usage(f"cannot read a passphrase from {file}: {reason}") from None
        return _checked(lines[0] if lines else "")
    if environment and ENVIRONMENT in os.environ:
        return _checked(os.environ[ENVIRONMENT])
    return None


def _prompted(prompt: str) -> str:
    if not on_terminal(sys.stdin):
        raise Usage(f"a passphrase is needed; give --passphrase-file or set {ENVIRONMENT}")
    from getpass import getpass

    return _checked(getpass(prompt))


def _checked(passphrase: str) -> str:
    if not 0 < len(passphrase) <= PASSPHRASE_CHARS_MAX:
        raise Usage(f"a passphrase must have 1 to {PASSPHRASE_CHARS_MAX} characters")
    return passphrase


app = App()

BackupArgument = Annotated[Path, Argument("FILE", "The backup.")]
STAYS = "a node's key never leaves its machine, so no backup has it; invite a lost node again"


@app.callback()
def keys_group() -> None:
    """The keys of this home. The user's key acts for you and admits the owner's nodes; you can back it up and lock it.
    The node's key acts for this machine and never leaves it.

    \b
      hocket keys show
      hocket keys backup /media/stick/user.key
    """


@app.command()
def show() -> None:
    """Show ids and fingerprints of the keys, never a secret.

    \b
      hocket keys show
    """
    from hocket.kernel.ids import hash_text, node_id, node_text
    from hocket.kernel.keys import did_key, parse_did_key

    there = _home()
    there.check()
    node = there.node_key().public
    user = there.user_did()
    locked = there.has_user_key() and there.is_locked()
    shown: dict[str, Any] = {
        "node": node_text(node_id(node)),
        "node_did": did_key(node),
        "node_fingerprint": hash_text(_fingerprint(node)),
        "user_did": user,
        "user_fingerprint": hash_text(_fingerprint(parse_did_key(user))),
        "user_key": "locked" if locked else "here" if there.has_user_key() else "elsewhere",
    }
    emit(shown)
    said = {
        "locked": "in this home, locked with a passphrase",
        "here": "in this home, not locked",
        "elsewhere": "not in this home: the node was invited",
    }
    fields([(name.replace("_", " "), said.get(value, value)) for name, value in shown.items()])
    say(STAYS, "dim")


@app.command()
def backup(
    file: BackupArgument,
    plain: Annotated[bool, Option("--plain", help="Do not lock it with a passphrase.")] = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Copy the user's key to a file, locked with a passphrase. A key that is already locked is copied unchanged.

    \b
      hocket keys backup /media/stick/user.key
      hocket keys backup user.key.locked --passphrase-file secret
    """
    from hocket.node.home import write_user_key

    there = _home()
    there.check()
    if file.exists():
        raise Conflict(f"{file} already exists; nothing was changed")
    if not plain and there.has_user_key() and there.is_locked():
        there.copy_user_key(file)
    else:
        key = there.user_key(known(passphrase_file))
        write_user_key(file, key, None if plain else new(passphrase_file))
    emit({"file": str(file), "user": there.user_did(), "locked": not plain})
    say(f"the user's key is in {file}" + (", unlocked: anyone who reads it can act as you" if plain else ", locked"))
    say(STAYS, "dim")


@app.command()
def restore(file: BackupArgument, passphrase_file: PassphraseFile = None) -> None:
    """Restore the user's key into this home from a backup. In an invited node's home, run `hocket keys reissue` next to
    make it a node of the owner.

    \b
      hocket keys restore /media/stick/user.key
    """
    from hocket.api.checks import user_of
    from hocket.kernel.keys import did_key
    from hocket.node.home import Remembered, key_owner, read_user_key

    there = _home()
    if not there.is_complete():
        there.check()
    asked = Remembered(known(passphrase_file))
    key = read_user_key(file, asked)
    if did_key(key.public) != user_of(there):
        raise Conflict(f"{file} holds another user's key; nothing was changed")
    if there.has_user_key():
        try:
            key_owner(there.path / "user.key")
        except StoreError:
            pass  # not a key: overwrite it
        else:
            raise Conflict(f"the home {there.path} already has its user's key; nothing was changed")
    there.put_user_key(key, asked.passphrase)
    emit({"user": did_key(key.public), "locked": asked.passphrase is not None})
    say("the user's key is restored" + (", locked as in the backup" if asked.passphrase else ", not locked"))
    say("`hocket keys reissue` gives this node a root delegation, if it has none", "dim")


@app.command()
def passphrase(
    remove: Annotated[bool, Option("--remove", help="Keep the key unlocked from now on.")] = False,
    passphrase_file: PassphraseFile = None,
    new_passphrase_file: Annotated[
        Path | None, Option("--new-passphrase-file", "FILE", "The new passphrase; default: a prompt.")
    ] = None,
) -> None:
    """Lock the user's key, change its passphrase, or remove the passphrase.

    \b
      hocket keys passphrase
      hocket keys passphrase --remove
    """
    there = _home()
    there.check()
    if remove and there.has_user_key() and not there.is_locked():
        raise Conflict("the user's key is not locked; nothing was changed")
    key = there.user_key(known(passphrase_file))
    chosen = None if remove else new(new_passphrase_file, environment=not there.is_locked())
    there.put_user_key(key, chosen)
    emit({"locked": chosen is not None})
    say("the user's key is no longer locked" if remove else "the user's key is locked with the new passphrase")


@app.command()
def reissue(
    name: Annotated[str | None, Option("--name", "NAME", "The node's new name.")] = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Issue this node a new root delegation with the user's key: after its own was revoked, to rename it, or when the
    owner's machine is lost and the user's key was restored here.

    \b
      hocket keys reissue
      hocket keys reissue --name rack-2
    """
    from hocket.api import nodes, rights

    with open_service() as service:
        user_key = service.runtime.home.user_key(known(passphrase_file))
        made = rights.reissue(service, user_key, name)
        current = rights.coordinator(service).node
        after = nodes.listing(service)
    emit(made)
    say(f"this node, {made.node}, is the owner's, by delegation {made.delegation}")
    if not any(each.node == current and each.standing in ("active", "pending") for each in after):
        say("the mesh has no coordinator in force; designate one with `hocket mesh coordinator NODE`", "warn")


def _home() -> "Home":
    from hocket.node.home import Home, default_home

    return Home(settings.home or default_home())


def _fingerprint(public: bytes) -> bytes:
    from hocket.kernel.ids import content_hash

    return content_hash(public)


def init(
    user_key: Annotated[
        Path | None, Option("--user-key", "FILE", "The user.key of another home; adds a node for that user.")
    ] = None,
    name: Annotated[
        str | None, Option("--name", "NAME", "The node's name; default: $HOCKET_MESH_NODE_ID, else the machine's.")
    ] = None,
    passphrase: Annotated[bool, Option("--passphrase", help="Lock the user's key; the node runs without it.")] = False,
    passphrase_file: PassphraseFile = None,
    strict: Annotated[
        bool, Option("--strict", help="Keep to Likewise v0.1: no Hocket extension ops in this mesh.")
    ] = False,
    ranked_open: Annotated[
        bool, Option("--ranked-open", help="Jobs that workers claim by rank are open: they need no coordinator.")
    ] = False,
    store: Annotated[
        str | None, Option("--store", "ADDRESS", "Keep the log in a database server; default: $HOCKET_STORE.")
    ] = None,
    blobs: Annotated[
        BlobPlace | None,
        Option("--blobs", help="Where all nodes of a new store keep large content; default: each in its home."),
    ] = None,
) -> None:
    """Create a home: the user's key, the node's key, the database, and the root delegation as the first op.

    The user's first node is also the coordinator until you designate another. This command finishes a half-created
    home. It does not touch a complete one (exit code 3).

    A strict mesh works with other Likewise v0.1 software. No coordinator decides claims there, a failure is a yield,
    and jobs cannot be cancelled, retried or scheduled by cron. Every node of the mesh must be strict; `join` takes
    care of that.

    In a mesh with --ranked-open, a job of claim "rendezvous" or "sticky" is open unless its submitter or its kind says
    otherwise (--no-open). Like every rule of the mesh, `join` hands it on, and `hocket mesh rules set` changes it.

    \b
      hocket init
      hocket --home /srv/render init --passphrase
      hocket --home /srv/second init --user-key /srv/render/user.key --name second
      hocket --home /srv/plain init --strict
      hocket --home /srv/grid init --ranked-open
      hocket --home /srv/large init --store postgresql://hocket@db.example/hocket --blobs store
    """
    from hocket.api import Service, nodes
    from hocket.node.runtime import Runtime
    from hocket.node.variables import checked_server

    chosen = new(passphrase_file) if passphrase else None
    ask = known(passphrase_file)
    with Runtime.init(
        settings.home,
        user_key,
        passphrase=chosen,
        ask=ask,
        strict=strict,
        ranked_open=ranked_open,
        name=name,
        server=None if store is None else checked_server(store),
        blobs=blobs,
    ) as runtime:
        here = nodes.identity(Service(runtime))
    emit({"node": here.node, "name": here.name, "user": here.user, "home": here.home})
    say("created")
    fields([("node", here.node), ("name", here.name or "-"), ("user", here.user), ("home", here.home)])
    if user_key is not None and name is None and here.name is not None:
        notice(
            f"this node is called {here.name}, as its machine; if another node is called so too, rename this one with"
            " `hocket keys reissue --name NAME`"
        )
