"""`hocket page`: lets a browser enter the page of this node."""

import os
import webbrowser
from typing import Annotated

from hocket.cli.declarations import Option
from hocket.cli.printing import emit, notice, on_terminal, say
from hocket.cli.settings import open_service, settings
from hocket.errors import Usage
from hocket.kernel.texts import duration_ms, span

_LIFETIME = "12h"


def page(
    may: Annotated[
        list[str] | None,
        Option("--may", "GRANT", "resource:action[:prefix], or `all`; may be repeated. Default: all."),
    ] = None,
    read_only: Annotated[bool, Option("--read-only", help="The browser may look, and change nothing.")] = False,
    agent: Annotated[
        str | None, Option("--agent", "NAME", "For whom the browser acts. Default: $HOCKET_AGENT, else your user.")
    ] = None,
    expires: Annotated[str, Option("--expires", "DURATION", "How long the browser may stay.")] = _LIFETIME,
    open: Annotated[bool, Option("--open/--no-open", help="Open the address in a browser, if there is one.")] = True,
) -> None:
    """Open the page of this node in a browser: what runs, why a job waits, and what happened, with buttons.

    Prints an address that one browser can use once, within ten minutes. The browser then has a token, which
    `hocket token list` shows and `hocket token revoke` ends at once. Everything that is done on the page is signed by
    this node, for the agent. `hocket serve` must run.

    \b
      hocket page
      hocket page --read-only --agent ada --expires 7d
      hocket page --may job:read:acme. --no-open
    """
    if read_only and may:
        raise Usage("--read-only and --may exclude each other")
    from hocket.api.page_access import READER, make_address
    from hocket.families.inbox.requests import default_agent

    try:
        lifetime_ms = duration_ms(expires)
    except ValueError as error:
        raise Usage(f"--expires: {error}") from None
    with open_service() as service:
        made = make_address(service, agent or default_agent(), READER if read_only else may or ["all"], lifetime_ms)
    emit(made)
    if settings.as_json:
        return
    say(made.address)
    notice(f"for {made.agent}, once, within 10 minutes; the browser may stay {span(made.lifetime_ms)}")
    if open and on_terminal() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(made.address)
