"""`hocket keys`: shows the public side of a home's keys, backs up, restores and locks the user's key, and uses it to
issue a new root delegation. A node's key is never shown or copied: it stays where it was made.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hocket.cli.declarations import Argument, Option, new_app
from hocket.cli.output import emit, fields, say
from hocket.cli.passphrases import PassphraseFile, known, new
from hocket.cli.settings import open_service, settings
from hocket.errors import Conflict, StoreError

if TYPE_CHECKING:
    from hocket.node.home import Home

app = new_app()

BackupArgument = Annotated[Path, Argument(metavar="FILE", help="The backup.")]
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
        Path | None, Option("--new-passphrase-file", metavar="FILE", help="The new passphrase; default: a prompt.")
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
    name: Annotated[str | None, Option("--name", metavar="NAME", help="The node's new name.")] = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Issue this node a new root delegation with the user's key: after its own was revoked, to rename it, or when the
    owner's machine is lost and the user's key was restored here.

    \b
      hocket keys reissue
      hocket keys reissue --name rack-2
    """
    from hocket.api import nodes

    with open_service() as service:
        user_key = service.runtime.home.user_key(known(passphrase_file))
        made = nodes.reissue(service, user_key, name)
        current = nodes.coordinator(service).node
        after = nodes.listing(service)
    emit(made)
    say(f"this node, {made.node}, is the owner's, by delegation {made.delegation}")
    if not any(each.node == current and each.standing in ("active", "pending") for each in after):
        say("the mesh has no coordinator in force; designate one with `hocket coordinator NODE`", "warn")


def _home() -> "Home":
    from hocket.node.home import Home, default_home

    return Home(settings.home or default_home())


def _fingerprint(public: bytes) -> bytes:
    from hocket.kernel.ids import content_hash

    return content_hash(public)
