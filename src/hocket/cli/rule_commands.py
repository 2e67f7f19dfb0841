"""`hocket mesh rules`: the mesh rules of this node. Nodes sync only if their rules are the same.
`hocket retain`: how long ended jobs, messages and windows are kept.
"""

from typing import TYPE_CHECKING, Annotated, Any

from hocket.api.retention import keeping
from hocket.cli.declarations import App, Argument, Option
from hocket.cli.derived import perform
from hocket.cli.derived import show as show_answer
from hocket.cli.options import milliseconds, seconds
from hocket.cli.printing import emit, fields, progress, say
from hocket.cli.settings import open_service
from hocket.errors import Usage
from hocket.kernel.texts import span

if TYPE_CHECKING:
    from hocket.kernel.mesh_rules import Bounds, Rules

SKEW_MS_MAX = 86_400_000

app = App()


@app.callback()
def rules_group() -> None:
    """The rules that every node of the mesh must share. Nodes compare the hash of their rules, and do not sync if it
    differs.

    \b
      hocket mesh rules show
      hocket mesh rules set --skew 2m
    """


@app.command()
def show() -> None:
    """Show the rules and their hash.

    \b
      hocket mesh rules show
    """
    with open_service() as service:
        rules = service.runtime.log.rules
    emit(_shown(rules))
    fields(_fields(rules))


@app.command("set")
def set_rules(
    skew: Annotated[
        str | None, Option("--skew", "DURATION", "How far ahead of a receiver's clock an op may be.")
    ] = None,
    derivation_op: Annotated[
        list[str] | None, Option("--derivation-op", "TYPE", "Ops that only the coordinator may write; '' for none.")
    ] = None,
    derivation_kind: Annotated[
        list[str] | None, Option("--derivation-kind", "PREFIX", "Kinds that only the coordinator may run; '' for none.")
    ] = None,
    reader_quota: Annotated[
        str | None, Option("--reader-quota", "QUOTA", "The default quota of read-only nodes.")
    ] = None,
    writer_quota: Annotated[
        str | None, Option("--writer-quota", "QUOTA", "The default quota of others but the owner's.")
    ] = None,
    ranked_open: Annotated[
        bool | None,
        Option(
            "--ranked-open/--no-ranked-open",
            help="Whether jobs that workers claim by rank are open, so that they need no coordinator.",
            show_default=False,
        ),
    ] = None,
    bundles: Annotated[
        bool,
        Option(
            "--bundles",
            help="Let one signed entry of the log carry several ops. Meshes from before bundles turn them on so, once"
            " every node knows them; they stay on.",
        ),
    ] = False,
) -> None:
    """Change the rules of this node, and judge its whole log again by them. Make the same change on every other node;
    until then this node does not sync with it. Restart running servers and workers to apply the change.

    \b
      hocket mesh rules set --skew 2m
      hocket mesh rules set --derivation-op CreateEntity --derivation-op MergeEntities
      hocket mesh rules set --derivation-kind acme.derive.
      hocket mesh rules set --writer-quota ops=500/s,bytes=1G
      hocket mesh rules set --ranked-open
      hocket mesh rules set --bundles
    """
    from msgspec.structs import replace

    from hocket.api import ops

    with open_service() as service:
        rules = service.runtime.log.rules
        if rules.extensions is None:
            raise Usage("this is a strict mesh: Likewise v0.1 fixes its rules, so they cannot be changed")
        changes: dict[str, Any] = {}
        if skew is not None:
            changes["skew_ms"] = _skew(skew)
        if derivation_op is not None:
            changes["derivation_ops"] = _ops(derivation_op)
        if derivation_kind is not None:
            changes["derivation_kinds"] = _kinds(derivation_kind)
        bounds = _bounds(rules, readers=reader_quota, writers=writer_quota)
        has_quotas = reader_quota is not None or writer_quota is not None
        if not changes and not has_quotas and ranked_open is None and not bundles:
            raise Usage(
                "give at least one option: --skew, --derivation-op, --derivation-kind, --reader-quota, --writer-quota,"
                " --ranked-open or --bundles"
            )
        if (ranked_open or bundles) and bounds is None:
            option = "--ranked-open" if ranked_open else "--bundles"
            raise Usage(f"this mesh was created without bound ids, so it cannot have {option}; begin a new one")
        is_open = rules.ranked_open if ranked_open is None else ranked_open
        extensions = replace(rules.extensions, **changes)
        has_bundles = rules.bundles or bundles
        changed = replace(rules, extensions=extensions, bounds=bounds, ranked_open=is_open, bundles=has_bundles)
        if changed != rules:
            with progress("judging the log") as bar:
                ops.set_rules(service, changed, bar)
    emit(_shown(changed))
    say("changed" if changed != rules else "unchanged")
    fields(_fields(changed))
    say("every node needs the same rules; restart running servers and workers to apply them")


def _bounds(rules: "Rules", **texts: str | None) -> "Bounds | None":
    """The bounds with new quotas. A limit that a quota does not name stays as it is."""
    from msgspec.structs import replace

    from hocket.kernel.ucan import filled
    from hocket.mesh.grants import parse_quota

    given = {name: parse_quota(text) for name, text in texts.items() if text is not None}
    if not given:
        return rules.bounds
    if rules.bounds is None:
        raise Usage("this mesh was created without bound ids, so its rules carry no quotas; set quotas in invitations")
    return replace(rules.bounds, **{name: filled(quota, getattr(rules.bounds, name)) for name, quota in given.items()})


def _skew(text: str) -> int:
    skew_ms = round((seconds(text, "--skew") or 0) * 1000)
    if not 0 < skew_ms <= SKEW_MS_MAX:
        raise Usage(f"bad --skew {text!r}: it must be more than 0 and at most {SKEW_MS_MAX // 3_600_000}h")
    return skew_ms


def _ops(names: list[str]) -> tuple[str, ...]:
    from hocket.kernel.vocabulary import NAMES

    chosen = tuple(sorted({name for name in names if name}))
    for name in chosen:
        if name not in NAMES.values():
            raise Usage(f"unknown op {name!r}; known are {', '.join(sorted(NAMES.values()))}")
    return chosen


def _kinds(prefixes: list[str]) -> tuple[str, ...]:
    from hocket.families.jobs.rules import KIND_LENGTH_MAX

    chosen = tuple(sorted({prefix for prefix in prefixes if prefix}))
    for prefix in chosen:
        if len(prefix) > KIND_LENGTH_MAX or not prefix.isprintable():
            raise Usage(f"bad --derivation-kind: a kind prefix has at most {KIND_LENGTH_MAX} printable characters")
    return chosen


def _shown(rules: "Rules") -> dict[str, Any]:
    import msgspec

    from hocket.kernel.ids import hash_text
    from hocket.kernel.mesh_rules import rules_hash

    shown = msgspec.to_builtins(rules)
    if rules.extensions is not None:
        shown["extensions"]["coordinator"] = shown["extensions"].pop("arbiter")
    return {"hash": hash_text(rules_hash(rules)), "strict": rules.is_strict, **shown}


def _fields(rules: "Rules") -> list[tuple[str, object]]:
    shown = _shown(rules)
    pairs: list[tuple[str, object]] = [
        ("hash", shown["hash"]),
        ("version", rules.version),
        ("caveats", ", ".join(rules.caveats)),
        ("sanitisation", ", ".join(rules.sanitize)),
    ]
    extensions = rules.extensions
    if extensions is None:
        return [*pairs, ("extensions", "none: a strict Likewise v0.1 mesh")]
    bounds: list[tuple[str, object]] = []
    if rules.bounds is not None:
        from hocket.mesh.grants import quota_words

        bounds = [
            ("late bound", span(rules.bounds.late_ms)),
            ("quota of readers", quota_words(rules.bounds.readers)),
            ("quota of writers", quota_words(rules.bounds.writers)),
            ("idle ops", f"{rules.bounds.idle_ops:,} of one author on one job"),
        ]
    return [
        *pairs,
        ("extensions", ", ".join(name for _, name in extensions.variants)),
        ("claims", "the coordinator decides" if extensions.arbiter else "the time of a claim alone decides"),
        ("ranked jobs", "open unless said otherwise" if rules.ranked_open else "like all others"),
        ("bundles", "yes" if rules.bundles else "no"),
        ("skew bound", span(extensions.skew_ms)),
        ("derivation ops", ", ".join(extensions.derivation_ops) or "none"),
        ("derivation kinds", ", ".join(extensions.derivation_kinds) or "none"),
        *bounds,
    ]


def retain(
    words: Annotated[
        list[str] | None,
        Argument("[KINDS] [DURATION]", "A kind or all below a prefix, like acme.*; and how long, like 30d."),
    ] = None,
    keep: Annotated[int | None, Option("--keep", "N", "Keep the newest N of each kind in any case.", min=0)] = None,
    messages: Annotated[bool, Option("--messages", help="The rule is about messages.")] = False,
    windows: Annotated[bool, Option("--windows", help="The rule is about the windows of the tempo.")] = False,
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

    \b
      hocket retain 30d
      hocket retain acme.* 90d --keep 1000
      hocket retain acme.render 7d --no-archive --dry-run
      hocket retain --messages 14d
      hocket retain --windows 2d
      hocket retain acme.render --clear
    """
    kinds, duration = _words(words or [], needs_time=keep is None and not clear)
    if not words and keep is None and not clear:
        if dry_run:
            perform(keeping.forecast)
        else:
            perform(keeping.listing)
        return
    if clear and (duration is not None or keep is not None):
        raise Usage("--clear removes a rule; give it without a duration and without --keep")
    if messages and windows:
        raise Usage("a rule is about messages or about windows, not both")
    things = keeping.RetainedThing
    what = things.messages if messages else things.windows if windows else things.jobs
    keep_ms = None if duration is None else milliseconds(duration, "duration")
    if dry_run:
        rule = keeping.checked_rule(what, kinds, keep_ms, keep, without_archive=no_archive, witnesses=witnesses)
        with open_service() as service:
            found = keeping.forecast_with(service, rule)
        show_answer(keeping.forecast, found)
        return
    perform(
        keeping.retain,
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
