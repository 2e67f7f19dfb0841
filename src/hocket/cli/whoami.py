"""`hocket whoami`: this node in the eyes of the mesh."""

from hocket.cli.app import new_app
from hocket.cli.job import moment
from hocket.cli.nodes import member_shown
from hocket.cli.output import emit, fields
from hocket.cli.settings import HomeOption, JsonOption, open_desk
from hocket.errors import NotAuthorised

app = new_app()


@app.command()
def whoami(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show which node this is, whose it is, how it stands, and what it may do.

    \b
      hocket whoami
    """
    from hocket.mesh import membership

    with open_desk() as runtime, runtime.read() as session:
        here = next((each for each in membership.members(runtime.log, session) if each.is_here), None)
        if here is None:
            raise NotAuthorised("no delegation on the log lets this node in; `hocket doctor` says more")
        shown = member_shown(here) | {"user": runtime.log.user, "home": str(runtime.home.path)}
        shown["holds_user_key"] = runtime.home.has_user_key()
    emit(shown)
    fields(
        [
            ("node", shown["node"]),
            ("name", shown["name"] or "-"),
            ("user", shown["user"]),
            ("home", shown["home"]),
            ("standing", shown["standing"]),
            ("roles", ", ".join(shown["roles"])),
            ("may", "; ".join(shown["may"])),
            ("until", moment(shown["expires_ms"]) or "it is revoked"),
            ("invited by", shown["inviter"] or "the user"),
            ("user's key", "here" if shown["holds_user_key"] else "not here"),
        ]
    )
