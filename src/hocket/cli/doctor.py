"""`hocket doctor`: looks at everything that a node stands on."""

from hocket.cli.app import new_app
from hocket.cli.output import emit, table
from hocket.cli.settings import HomeOption, JsonOption, settings
from hocket.errors import Failed
from hocket.node.home import Home, default_home
from hocket.service.checks import examine

app = new_app()


@app.command()
def doctor(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Look for whatever could be wrong with this node, and say what to do. Exit code 1 when something is bad.

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
