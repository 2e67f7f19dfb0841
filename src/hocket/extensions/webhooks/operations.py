"""The operations on webhooks: add, list, remove and test them. Only the user of the home allows addresses."""

import os
import re
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from hocket.api import Service, ServiceAnswer
from hocket.api.jobs import JobText
from hocket.api.operation import InShell, OperationGroup, TokenNeed, operation
from hocket.api.ops import EventKind, EventSubmitter, EventTypes, filter_of
from hocket.api.views import Line, Pairs, View, table
from hocket.bus.hints import about
from hocket.errors import Conflict, HocketError, NotFound, Usage
from hocket.extensions.file_tasks import WEBHOOKS
from hocket.extensions.webhooks.addresses import URL_CHARS_MAX, AllowList, read_entry, read_url
from hocket.extensions.webhooks.delivery import deliver, new_secret
from hocket.extensions.webhooks.sending import NOT_DONE, file_of, kind_of
from hocket.extensions.webhooks.webhook_file import ALLOWED_MAX, WEBHOOKS_MAX, Webhook, Webhooks
from hocket.families.jobs.rules import Outcome
from hocket.kernel.clock import wall_text
from hocket.kernel.ids import node_text, ulid_text
from hocket.node.log_events import LogEvent
from hocket.store import JobFilter

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_WRITE, _READ = TokenNeed("Mesh", "Write"), TokenNeed("Mesh", "Read")

HookName = Annotated[str, Meta(min_length=1, max_length=64, description="The webhook's name."), InShell(metavar="NAME")]


class WebhookShown(ServiceAnswer, frozen=True):
    """`place` is how far it has come in the log, `pending` how many deliveries wait and `failed` how many were given
    up; `kind` of the jobs that deliver is `deliveries`.
    """

    name: str
    url: str
    job: str | None
    kind: str | None
    type: str | None
    submitter: str | None
    by_token: bool
    place: int
    pending: int
    failed: int
    deliveries: str


class WebhookAdded(WebhookShown, frozen=True):
    """`secret` signs the deliveries. Nothing shows it again."""

    secret: str


class WebhookTested(ServiceAnswer, frozen=True):
    """Whether the receiver took a test event, what it answered, and else why not."""

    delivered: bool
    status: int | None
    detail: str


class AllowedAddresses(ServiceAnswer, frozen=True):
    allowed: list[str]


def _shown(service: Service, hook: Webhook) -> WebhookShown:
    deliveries = kind_of(service.runtime.log.node, hook.name)
    place = file_of(service.runtime).places().get(hook.id, hook.after)
    with service.read() as session:
        pending = session.job_count(JobFilter(NOT_DONE, kind=deliveries))
        failed = session.job_count(JobFilter(outcome=Outcome.FAILED, kind=deliveries))
    types = ",".join(hook.types) or None
    return WebhookShown(
        *(hook.name, hook.url, hook.job, hook.kind, types, hook.submitter, hook.token is not None),
        *(place, pending, failed, deliveries),
    )


def _show_added(added: WebhookAdded) -> Iterator[View]:
    yield Line(added.secret)
    yield Pairs([("name", added.name), ("url", added.url), ("deliveries", added.deliveries)])


@operation("add_webhook", "POST /v1/webhooks", _WRITE, command="webhook add", creates=True, show=_show_added)
def add(
    service: Service,
    name: HookName,
    url: Annotated[
        str,
        Meta(min_length=1, max_length=URL_CHARS_MAX, description="Where events are sent to, with http or https."),
        InShell(metavar="URL"),
    ],
    *,
    job: Annotated[JobText, InShell("--job", metavar="JOB")] | None = None,
    kind: EventKind | None = None,
    type: EventTypes | None = None,
    submitter: EventSubmitter | None = None,
) -> WebhookAdded:
    """Add a webhook: every event from now on that the filter lets through is sent to the URL. Prints the secret that
    signs the deliveries; nothing prints it again.

    `hocket mesh serve` or `hocket work` sends. A delivery is a job, so it is retried, and shown by `hocket jobs`. A
    webhook that a program adds sends what the token of the program may read, as long as the token is in force. The
    owner must have allowed the address.

    \b
      hocket webhook allow hooks.example.com
      hocket webhook add ci https://hooks.example.com/hocket --kind acme. --type job.failed
    """
    service.check_writer()
    if _NAME.fullmatch(name) is None:
        raise Usage(f"bad name {name!r}: 1 to 64 letters, digits, dashes and underscores, beginning with no dash")
    wanted, target = filter_of(service, job, kind, type, submitter), read_url(url)
    runtime = service.runtime
    with service.runtime.store.read() as session:
        after = session.head().seq
    with file_of(runtime).changing() as webhooks:
        AllowList(webhooks[0].allowed).check(target)
        if webhooks[0].named(name) is not None:
            raise Conflict(f"there is a webhook {name}; remove it first, or choose another name")
        if len(webhooks[0].hooks) >= WEBHOOKS_MAX:
            raise Conflict(f"this node has {WEBHOOKS_MAX} webhooks, and no more fit")
        hook = Webhook(
            *(os.urandom(8).hex(), name, url, new_secret(), after, runtime.log.physical(), service.token),
            *(wanted.job, wanted.kind, wanted.types, wanted.submitter),
        )
        webhooks.append(Webhooks(webhooks[0].allowed, (*webhooks[0].hooks, hook)))
    runtime.bus.publish(about(WEBHOOKS))
    return WebhookAdded(**msgspec.structs.asdict(_shown(service, hook)), secret=hook.secret)


_list = table(
    WebhookShown,
    "no webhooks",
    {
        "name": "name",
        "url": "url",
        "kind": lambda each: each.kind or "",
        "type": lambda each: each.type or "",
        "place": "place",
        "pending": "pending",
        "failed": "failed",
    },
)


@operation("list_webhooks", "GET /v1/webhooks", _READ, command="webhook list", key=lambda each: each.name, show=_list)
def listing(service: Service) -> list[WebhookShown]:
    """List the webhooks, how far each has come, and how many deliveries wait or were given up.

    \b
      hocket webhook list
      hocket jobs --kind hocket.webhook. --state failed
    """
    return [_shown(service, each) for each in file_of(service.runtime).read().hooks]


@operation("remove_webhook", "DELETE /v1/webhooks/{name}", _WRITE, command="webhook remove")
def remove(service: Service, name: HookName) -> None:
    """Remove a webhook. Deliveries that wait are not sent.

    \b
      hocket webhook remove ci
    """
    service.check_writer()
    with file_of(service.runtime).changing() as webhooks:
        hook = _found(webhooks[0], name)
        webhooks.append(Webhooks(webhooks[0].allowed, tuple(each for each in webhooks[0].hooks if each != hook)))
    service.runtime.bus.publish(about(WEBHOOKS))


def _show_test(tested: WebhookTested) -> Iterator[View]:
    yield Line("delivered") if tested.delivered else Line(f"not delivered: {tested.detail}", "red")


@operation("test_webhook", "POST /v1/webhooks/{name}/test", _WRITE, command="webhook test", show=_show_test)
def test(service: Service, name: HookName) -> WebhookTested:
    """Send an event of the type `webhook.test` now, once, and say what the receiver answered.

    \b
      hocket webhook test ci
    """
    service.check_writer()
    runtime = service.runtime
    webhooks, log = file_of(runtime).read(), runtime.log
    hook, now_ms = _found(webhooks, name), log.physical()
    id, node = ulid_text(log.new_id(now_ms)), node_text(log.node)
    event = LogEvent(
        *("1.0", id, f"/v1/nodes/{node}", "webhook.test", hook.name, wall_text(now_ms), now_ms, 0, node),
        *(None, None, None, None, "a test"),
    )
    try:
        sent = deliver(hook.url, hook.secret, AllowList(webhooks.allowed), id, event, now_ms // 1000)
    except HocketError as error:
        return WebhookTested(False, None, str(error))
    return WebhookTested(True, sent.status, sent.text)


def _show_allowed(shown: AllowedAddresses) -> Iterator[View]:
    for each in shown.allowed:
        yield Line(each)


AllowedEntry = Annotated[
    str,
    Meta(description="A host, like hooks.example.com or *.example.com, or a range, like 10.1.0.0/16."),
    InShell(metavar="HOST|RANGE"),
]


@operation("allow_webhooks", "POST", command="webhook allow", show=_show_allowed)
def allow(service: Service, entry: AllowedEntry) -> AllowedAddresses:
    """Allow webhooks to go to a host or to a range of addresses. A host is reached at public addresses only, unless a
    range has its address: private ones and those of this machine are in no host's name. Prints what is allowed.

    \b
      hocket webhook allow hooks.example.com
      hocket webhook allow 127.0.0.1
    """
    with file_of(service.runtime).changing() as webhooks:
        allowed = tuple(dict.fromkeys((*webhooks[0].allowed, read_entry(entry))))
        if len(allowed) > ALLOWED_MAX:
            raise Conflict(f"{ALLOWED_MAX} entries are allowed, and no more fit; allow a range instead")
        webhooks.append(Webhooks(allowed, webhooks[0].hooks))
    return AllowedAddresses(list(allowed))


@operation("forbid_webhooks", "POST", command="webhook forbid", show=_show_allowed)
def forbid(service: Service, entry: AllowedEntry) -> AllowedAddresses:
    """Take back what `allow` has allowed, at once and for all webhooks. Prints what is still allowed.

    \b
      hocket webhook forbid hooks.example.com
    """
    with file_of(service.runtime).changing() as webhooks:
        spelled = read_entry(entry)
        if spelled not in webhooks[0].allowed:
            raise NotFound(f"{spelled} is not allowed; `hocket webhook allowed` lists what is")
        allowed = tuple(each for each in webhooks[0].allowed if each != spelled)
        webhooks.append(Webhooks(allowed, webhooks[0].hooks))
    return AllowedAddresses(list(allowed))


@operation("list_allowed_webhooks", "GET", command="webhook allowed", show=_show_allowed)
def allowed(service: Service) -> AllowedAddresses:
    """List where webhooks may go.

    \b
      hocket webhook allowed
    """
    return AllowedAddresses(list(file_of(service.runtime).read().allowed))


def _found(webhooks: Webhooks, name: str) -> Webhook:
    hook = webhooks.named(name)
    if hook is None:
        raise NotFound(f"no webhook {name!r}; `hocket webhook list` lists them")
    return hook


commands = OperationGroup(
    """Send events to other programs: each is a signed POST, repeated until it is taken.

    \b
      hocket webhook allow hooks.example.com
      hocket webhook add ci https://hooks.example.com/hocket --type job.failed
      hocket webhook test ci
    """,
    *(add, listing, remove, test, allow, forbid, allowed),
)
