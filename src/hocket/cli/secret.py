"""`hocket secret`: the secrets of projects and roles, which change on each downbeat."""

from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.output import emit, say
from hocket.cli.settings import open_runtime
from hocket.errors import NotAuthorised

if TYPE_CHECKING:
    from hocket.node.window_secret import ProjectSecret

app = new_app()

Project = Annotated[str, typer.Argument(metavar="PROJECT", help="Like acme/web.")]
Role = Annotated[str, typer.Argument(metavar="ROLE", help="Like deploy.")]
Message = Annotated[str, typer.Argument(metavar="MESSAGE", help="What the token is for.")]
BARS_DEFAULT = 4


@app.callback()
def secret_group() -> None:
    """Keys and tokens of a project and a role, which change on each downbeat. They are derived from window.secret in
    the home, so every node that has the same file has the same ones.

    \b
      hocket secret key acme/web deploy
      hocket secret token acme/web deploy 'release 7'
      hocket secret check acme/web deploy 'release 7' hwt1.1756865536000.…
    """


@app.command()
def key(project: Project, role: Role) -> None:
    """Print the key of a project and a role, which is in force until the next downbeat."""
    shown = _secret(project, role).key()
    emit(shown)
    say(shown.key)


@app.command()
def token(project: Project, role: Role, message: Message) -> None:
    """Print a token for a message, stamped with the window."""
    made = _secret(project, role).token(message)
    emit({"token": made})
    say(made)


@app.command()
def check(
    project: Project,
    role: Role,
    message: Message,
    given: Annotated[str, typer.Argument(metavar="TOKEN", help="The token that came with the message.")],
    bars: Annotated[
        int, typer.Option("--bars", metavar="N", help="A token is void so many bars after its own has begun.")
    ] = BARS_DEFAULT,
) -> None:
    """Check a token: exit code 4 if it is for something else, or void."""
    if not _secret(project, role, bars).is_valid(given, message):
        raise NotAuthorised("this token is void, or for another project, role or message")
    emit({"valid": True})
    say("valid")


def _secret(project: str, role: str, bars: int = BARS_DEFAULT) -> "ProjectSecret":
    from hocket.node.window_secret import project_secret

    with open_runtime() as runtime:
        return project_secret(runtime.home, project, role, runtime.log.physical, bars)
