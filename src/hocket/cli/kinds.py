"""`hocket kinds`: the options of kinds that workers have defined."""

from typing import Any

from hocket.cli.declarations import new_app
from hocket.cli.output import emit, table
from hocket.cli.settings import open_service
from hocket.service.views import moment

app = new_app()


@app.command()
def kinds() -> None:
    """List the kinds whose handlers have options: which, and which node defined them. A job of the kind has these
    options wherever it is submitted, unless its submitter says otherwise.

    A worker that starts defines the kinds that it serves, if their options have changed and its node may: the owner's
    nodes may, others with a grant like `--may job:define:acme.`. A kind that ends with a dot stands for every kind
    below it that is not listed.

    \b
      hocket kinds
      hocket kinds --json | jq '.[] | select(.kind == "acme.render").options'
    """
    from hocket.service.kinds import listing

    with open_service() as service:
        shown = listing(service)
    emit(shown)
    rows = [
        (each.kind, _text(each.options), each.author_name or each.author, moment(each.defined_ms)) for each in shown
    ]
    table(("kind", "options", "defined by", "since"), rows, "no kind has options")


def _text(options: dict[str, Any]) -> str:
    import msgspec

    return msgspec.json.encode(options).decode() if options else "-"
