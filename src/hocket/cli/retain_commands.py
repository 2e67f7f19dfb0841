"""`hocket retain`: how long ended jobs and messages are kept."""

from typing import Annotated

from hocket.api import retention
from hocket.cli.declarations import Argument, Option
from hocket.cli.derived import perform, show
from hocket.cli.options import milliseconds
from hocket.cli.settings import open_service
from hocket.errors import Usage


def retain(
    words: Annotated[
        list[str] | None,
        Argument("[KINDS] [DURATION]", "A kind or all below a prefix, like acme.*; and how long, like 30d."),
    ] = None,
    keep: Annotated[int | None, Option("--keep", "N", "Keep the newest N of each kind in any case.", min=0)] = None,
    messages: Annotated[bool, Option("--messages", help="The rule is about messages.")] = False,
    windows: Annotated[bool, Option("--windows", help="The rule is about windows of the tempo.", hidden=True)] = False,
    no_archive: Annotated[bool, Option("--no-archive", help="Delete what goes, although it is in no archive.")] = False,
    witnesses: Annotated[
        int, Option("--witnesses", "N", "Delete only when so many other nodes have cosigned what remains.", min=0)
    ] = 0,
    clear: Annotated[bool, Option("--clear", help="Keep everything of these kinds again.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only say what would go with this rule.")] = False,
) -> None:
    """Say how long ended jobs are kept: all, or those of some kinds. The most specific rule decides. What is open, and
    what anything that remains refers to, is always kept. Without a rule everything is kept. Without words, list the
    rules, and with --dry-run say what they would let go now.

    \\b
      hocket retain 30d
      hocket retain acme.* 90d --keep 1000
      hocket retain acme.render 7d --no-archive --dry-run
      hocket retain --messages 14d
      hocket retain acme.render --clear
    """
    kinds, duration = _words(words or [], needs_time=keep is None and not clear)
    if not words and keep is None and not clear:
        if dry_run:
            perform(retention.forecast)
        else:
            perform(retention.listing)
        return
    if clear and (duration is not None or keep is not None):
        raise Usage("--clear removes a rule; give it without a duration and without --keep")
    if messages and windows:
        raise Usage("a rule is about messages or about windows, not both")
    things = retention.RetainedThing
    what = things.messages if messages else things.windows if windows else things.jobs
    keep_ms = None if duration is None else milliseconds(duration, "duration")
    if dry_run:
        rule = retention.checked_rule(what, kinds, keep_ms, keep, without_archive=no_archive, witnesses=witnesses)
        with open_service() as service:
            found = retention.forecast_with(service, rule)
        show(retention.forecast, found)
        return
    perform(
        retention.retain,
        what=what,
        match=kinds,
        keep_ms=keep_ms,
        keep_count=keep,
        without_archive=no_archive,
        witnesses=witnesses,
    )


def _words(words: list[str], *, needs_time: bool) -> tuple[str, str | None]:
    """The kinds, and the duration."""
    if len(words) > 2:
        raise Usage(f"{words[2]!r} is too much: give kinds and a duration, like `hocket retain acme.* 30d`")
    if len(words) == 2:
        return words[0], words[1]
    if not words:
        return "", None
    if needs_time or words[0][:1].isdigit():
        return "", words[0]
    return words[0], None
