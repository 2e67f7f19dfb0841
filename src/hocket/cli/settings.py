"""What the options of commands choose: the home, whether to answer in JSON, and an archive. And that home's runtime."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.api import Service
    from hocket.errors import StoreAway
    from hocket.node.runtime import Runtime
    from hocket.node.spool import Spool


class Settings:
    def __init__(self) -> None:
        self.home: Path | None = None
        self.as_json = False
        self.archive: str | None = None


settings = Settings()


def open_runtime() -> "Runtime":
    """Opens the runtime of the chosen home."""
    import gc

    from hocket.node.runtime import Runtime

    # `main` disabled the collector while modules were loading; from here on a command may run long. What was loaded
    # stays, so no collection need look at it.
    gc.freeze()
    gc.enable()
    runtime = Runtime.open(settings.home)
    if (written := runtime.log.written) is not None:
        written.report = lambda lost: warn(str(lost))
        if written.latest is not None:
            warn(str(written.latest))
    if runtime.spool is not None and runtime.spool.is_waiting:
        from hocket.node.kept_requests import send_kept_if_in_touch

        send_kept_if_in_touch(runtime, warn)
    if runtime.machine_clock is not None and runtime.machine_clock.off_ms:
        from hocket.events.workers import ClockDisagrees

        print(f"hocket: {ClockDisagrees(runtime.machine_clock.off_ms)}", file=sys.stderr)
    return runtime


def open_service() -> "Service":
    """Opens the service of the chosen home."""
    from hocket.api import Service

    return Service(open_runtime(), warn=warn, archive=settings.archive)


def spool_for(error: "StoreAway") -> "Spool":
    """Where the chosen home keeps requests while its database is away. Raises the error if it keeps none."""
    from hocket.node.home import Home, default_home
    from hocket.node.runtime import spool_of
    from hocket.node.spool import sentence
    from hocket.node.variables import check_scope

    home = Home(settings.home or default_home())
    if not home.keeps_requests:
        raise error
    check_scope(home.user_did())
    warn(sentence(error))
    return spool_of(home)


def deliver(runtime: "Runtime") -> None:
    """Sends what a command wrote to the other nodes, or says that it waits here."""
    from hocket.api import Service

    service = Service(runtime, warn=warn)
    service.wrote()
    service.end_delivery()


def warn(sentence: str) -> None:
    import sys

    from hocket.kernel.texts import clean

    print(f"hocket: {clean(sentence)}", file=sys.stderr, flush=True)
