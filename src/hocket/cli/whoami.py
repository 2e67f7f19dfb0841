"""`hocket whoami`: this node as the mesh sees it."""

from hocket.cli.declarations import new_app
from hocket.cli.output import emit, fields
from hocket.cli.settings import open_service
from hocket.service.views import moment

app = new_app()


@app.command()
def whoami() -> None:
    """Show this node, its user, its standing, and what it may do.

    \b
      hocket whoami
    """
    from hocket.service import nodes

    with open_service() as service:
        shown = nodes.identity(service)
    emit(shown)
    fields(
        [
            ("node", shown.node),
            ("name", shown.name or "-"),
            ("user", shown.user),
            ("home", shown.home),
            ("standing", shown.standing),
            ("roles", ", ".join(shown.roles)),
            ("may", "; ".join(shown.may)),
            ("until", moment(shown.expires_ms) or "it is revoked"),
            ("invited by", shown.inviter or "the user"),
            ("user's key", "here" if shown.holds_user_key else "not here"),
        ]
    )
