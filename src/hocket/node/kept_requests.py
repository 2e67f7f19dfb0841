"""Jobs and messages while the database server of a home is away: they are kept in the home (`spool`), and written when
it answers, each once and under the id that it was given. Only what must be decided now is refused.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from hocket.errors import CommitUnknown, StoreAway
from hocket.families.blobs import beginning
from hocket.families.inbox import requests as inbox
from hocket.families.inbox.projector import messages_of
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Content, Draft, Submitted
from hocket.kernel.ids import parse_ulid
from hocket.log import Transaction
from hocket.node.inbox import Attached, Body, plain_draft, resolved
from hocket.node.runtime import Runtime
from hocket.node.spool import Cited, KeptMessage, KeptRequest, Spool, sentence
from hocket.work.run_outputs import contain

T = TypeVar("T")
_LOG = logging.getLogger("hocket")
# A message is kept with its attachments in one line of a file.
ATTACHED_BYTES_MAX = 16 * 1024 * 1024


def written_or_kept(runtime: Runtime, write: Callable[[], T], keep: Callable[[StoreAway], T]) -> T:
    """Writes, after all that was kept before. If the database is away, calls `keep` with the error."""
    try:
        send_kept(runtime)
        made = write()
    except StoreAway as error:
        return keep(error)
    runtime.kept = None
    return made


def keep_jobs(
    runtime: Runtime, error: StoreAway, drafts: Sequence[Draft], cited: Sequence[Cited] = ()
) -> list[Submitted]:
    """Keeps jobs because of this error of the database. Raises the error if they cannot be kept."""
    made = kept_jobs(_spool(runtime, error), error, drafts, cited)
    runtime.kept = sentence(error)
    return made


def kept_jobs(spool: Spool, error: StoreAway, drafts: Sequence[Draft], cited: Sequence[Cited] = ()) -> list[Submitted]:
    """Keeps jobs for a process that could not even open the database."""
    if any(each.policy.unique is not None for each in drafts):
        raise StoreAway(f"{error}; a job with a unique key is not kept meanwhile: only the log knows if there is one")
    return [Submitted(each, created=True) for each in spool.keep_jobs(drafts, cited)]


def keep_message(runtime: Runtime, error: StoreAway, to: str, body: Body, **options: Any) -> bytes:
    """Keeps a message because of this error of the database, and returns its id."""
    message_id = kept_message(_spool(runtime, error), error, to, body, **options)
    runtime.kept = sentence(error)
    return message_id


def kept_message(
    spool: Spool, error: StoreAway, to: str, body: Body, *, attachments: Iterable[Attached] = (), **options: Any
) -> bytes:
    """Keeps a message for a process that could not even open the database. Raises the error if only the log can tell
    which message it is about.
    """
    for name in ("thread", "reply_to"):
        try:
            parse_ulid(options.get(name) or "0" * 26)
        except ValueError:
            raise StoreAway(f"{error}; give the whole id of the message meanwhile") from error
    draft = plain_draft(to.partition("@")[0], body, **options)._replace(to=to)
    attached = [_attached(each) for each in attachments]
    if sum(len(data) for _, data in attached) > ATTACHED_BYTES_MAX:
        raise StoreAway(f"{error}; attachments of more than {ATTACHED_BYTES_MAX:,} bytes are not kept meanwhile")
    return spool.keep_message(draft, attached)


def send_kept(runtime: Runtime, warn: Callable[[str], None] = _LOG.warning) -> None:
    """Sends the requests that were kept, in order. Calls `warn` with a sentence about each that the log refuses. Raises
    StoreAway if the database is still away.
    """
    if runtime.spool is None or not runtime.spool.is_waiting:
        return
    for each in runtime.spool.send(lambda requests: _write(runtime, requests)):
        warn(f"{each.name} was kept while the database was away, and is refused now: {each.refused}")


def send_kept_if_in_touch(runtime: Runtime, warn: Callable[[str], None] = _LOG.warning) -> None:
    """Sends them if the database answers. A process that reads from a replica does not wait for it."""
    if runtime.spool is None or not runtime.spool.is_waiting:
        return
    with suppress(StoreAway):
        if runtime.replica is not None:
            runtime.replica.refresh()
        if runtime.replica is None or runtime.replica.state.error is None:
            send_kept(runtime, warn)


def _spool(runtime: Runtime, error: StoreAway) -> Spool:
    if runtime.spool is None or isinstance(error, CommitUnknown):
        raise error
    return runtime.spool


def _write(runtime: Runtime, requests: Sequence[KeptRequest]) -> None:
    """Writes all of them in one transaction, or none. Raises what a submit or a send would."""
    contents = {
        each.message.id: tuple((name, contain(runtime.blobs, data)) for name, data in each.message.attachments)
        for each in requests
        if each.message is not None
    }

    def write(tx: Transaction) -> None:
        for each in requests:
            jobs.submit(tx, [job.draft for job in each.jobs])
            if each.message is not None:
                _send(runtime, tx, each.message, contents[each.message.id])

    runtime.log.run(write)


def _send(runtime: Runtime, tx: Transaction, kept: KeptMessage, contents: tuple[tuple[str, Content], ...]) -> None:
    if messages_of(tx.projection).state(kept.id) is None:
        draft = kept.draft._replace(to=resolved(runtime.log, tx.session, kept.to), attachments=contents)
        inbox.send(tx, runtime.blobs, inbox.check_draft(draft), kept.id)


def _attached(each: Attached) -> tuple[str, bytes]:
    name, content = each if isinstance(each, tuple) else (Path(each).name, each)
    return name, content if isinstance(content, bytes) else beginning(Path(content), ATTACHED_BYTES_MAX + 1)
