"""What can be done on the page and is no operation of the API: inviting a machine, and verifying the log."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from hocket.api import Program, Service, ops, peers
from hocket.errors import HocketError, NotAuthorised, Usage
from hocket.kernel.capabilities import grant_of
from hocket.kernel.texts import duration_ms
from hocket.kernel.ucan import NO_QUOTA, ROOT
from hocket.log.audit import Audit
from hocket.mesh.grants import parse_grants, words

INVITE, VERIFY = "invite", "verify"
VALID = "1h"
# How often a run shows its progress.
PROGRESS_S = 0.5


def may_invite(program: Program) -> bool:
    """An invitation gives rights away, so it takes all of them."""
    everything = grant_of(ROOT[0])
    return everything is not None and any(everything.within(grant) for grant in program.grants)


def invited(service: Service, program: Program, form: Mapping[str, str]) -> dict[str, Any]:
    """Makes an invitation, and what the page shows of it, once."""
    if not may_invite(program):
        raise NotAuthorised("only a browser that may do all that this node may can invite another machine")
    name, lifetime = form.get("name", "").strip(), form.get("expires", "").strip()
    if not name:
        raise Usage("name the new node")
    try:
        valid_ms = duration_ms(form.get("valid", "").strip() or VALID)
        lifetime_s = round(duration_ms(lifetime) / 1000) if lifetime else None
    except ValueError as error:
        raise Usage(str(error)) from None
    capabilities = parse_grants(
        form.get("may", "").split(),
        worker=form.get("worker", "").split(),
        is_strict=service.runtime.log.rules.is_strict,
    )
    made = peers.invite(service, peers.NewInvitation(name, capabilities, [], valid_ms, lifetime_s, NO_QUOTA))
    return {
        "title": f"Invitation of {name}",
        "name": name,
        "invitation": made.token,
        "drawing": qr_code(made.token),
        "may": words(capabilities),
        "good_until_ms": made.ticket.expires * 1000,
    }


def qr_code(text: str) -> Markup | None:
    """A text as a drawing that a phone reads; None without segno."""
    try:
        import segno
    except ImportError:
        return None
    rows = list(segno.make(text, error="l").matrix_iter(border=4))
    squares = " ".join(f"M{x} {y}h1v1h-1z" for y, row in enumerate(rows) for x, is_dark in enumerate(row) if is_dark)
    return Markup(
        '<svg class="qr" viewBox="0 0 {0} {0}" role="img" aria-label="The invitation as a QR code"'
        ' shape-rendering="crispEdges"><rect width="{0}" height="{0}" fill="#fff"/><path fill="#000" d="{1}"/></svg>'
    ).format(len(rows), squares)


class CheckState(NamedTuple):
    """How far a run is, or what it has found. `error` is why it could not end."""

    began_ms: int
    done: int = 0
    total: int = 0
    audit: Audit | None = None
    error: str | None = None

    @property
    def is_running(self) -> bool:
        return self.audit is None and self.error is None


class _Stopped(Exception):
    """The server stops."""


class LogCheck:
    """Verifies the log, one run at a time for all browsers, on a thread of its own."""

    def __init__(self) -> None:
        self.state: CheckState | None = None
        self._is_stopping = False
        self._shown_at = 0.0
        self._run: asyncio.Task[None] | None = None

    def begin(self, service: Service) -> None:
        service.check("Mesh", "Write")
        if self.state is None or not self.state.is_running:
            self.state = CheckState(int(time.time() * 1000))
            self._run = asyncio.create_task(asyncio.to_thread(self._verify, service, self.state))

    def stop(self) -> None:
        self._is_stopping = True

    def news(self) -> tuple[int, ...] | None:
        """Differs from what it was before while a run goes on; None if there is none."""
        return None if self.state is None or not self.state.is_running else (self.state.done,)

    def _verify(self, service: Service, began: CheckState) -> None:
        def progress(done: int, total: int) -> None:
            if self._is_stopping:
                raise _Stopped
            if time.monotonic() - self._shown_at > PROGRESS_S:
                self._shown_at = time.monotonic()
                self.state = began._replace(done=done, total=total)

        try:
            self.state = began._replace(audit=ops.verify(service, None, progress))
        except HocketError as error:
            self.state = began._replace(error=str(error))
        except Exception as error:
            self.state = began._replace(error=f"it was interrupted: {type(error).__name__}")
