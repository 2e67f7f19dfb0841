"""`hocket doctor`: checks everything that a node depends on."""

from hocket.cli.declarations import new_app
from hocket.cli.output import emit, table
from hocket.cli.settings import settings
from hocket.errors import Failed
from hocket.node.home import Home, default_home
from hocket.service.checks import examine

app = new_app()


@app.command()
def doctor() -> None:
    """Check this node for problems and suggest fixes. Exit code 1 if a check fails.

    \b
      hocket doctor
      hocket --home /srv/render doctor --json
    """
    findings = list(examine(Home(settings.home or default_home())))
    emit(findings)
    table(("", "check", "finding"), [(each.verdict, each.check, each.says) for each in findings], "")
    bad = sum(each.verdict == "bad" for each in findings)
    if bad:
        raise Failed(f"{bad} of {len(findings)} checks {'is' if bad == 1 else 'are'} bad")
