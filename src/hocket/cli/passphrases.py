"""Reads a passphrase from a file, from the environment, or from a person at the terminal. It is never an argument,
because every user of the machine can read arguments.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

from hocket.cli.declarations import Option
from hocket.cli.output import on_terminal
from hocket.errors import Usage
from hocket.node.home import Ask

ENVIRONMENT = "HOCKET_PASSPHRASE"
PASSPHRASE_CHARS_MAX = 1024

PassphraseFile = Annotated[
    Path | None,
    Option(
        "--passphrase-file",
        metavar="FILE",
        help=f"A file with the passphrase on its first line; default ${ENVIRONMENT}, else a prompt.",
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
