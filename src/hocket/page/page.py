"""Answers the requests of browsers: who asks, which view or action it is, and the headers that keep foreign text and
foreign sites from doing anything. A reader gets no form, and a form made by hand is refused as the API would refuse it.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cached_property, partial
from typing import Any
from urllib.parse import parse_qsl, unquote

from hocket.api import Program, Service, page_access
from hocket.errors import HocketError, NotFound, Usage
from hocket.kernel import __version__
from hocket.kernel.ids import node_text
from hocket.kernel.texts import counted
from hocket.mesh.wire import BodyTooLong, NoRoom, Reply, Request
from hocket.node.node import Node
from hocket.page.actions import (
    ACTIONS,
    BACK,
    CONFIRMED,
    DOWNLOADS,
    PageDownload,
    action_named,
    arguments_of,
    can_only_count,
    named,
)
from hocket.page.entry import FORM_FIELD, ForeignRequest, PageEntry, form_key
from hocket.page.live_jobs import LiveJobs
from hocket.page.own_actions import INVITE, VERIFY, LogCheck, invited
from hocket.page.refreshing import News, Refreshing
from hocket.page.rendering import Rendering, assets
from hocket.page.throughput import SAMPLE_S, Throughput
from hocket.page.views import Action, PageFile, PageView, ViewCall, extension_views
from hocket.page.views.coordination import COORDINATION, MESH, THREAD
from hocket.page.views.job_list import JOBS
from hocket.page.views.log_view import LOG_VIEW
from hocket.page.views.now import NOW
from hocket.page.views.one_job import JOB_VIEW, watched_job
from hocket.server.api import Api
from hocket.server.problems import BadMethod, problem_of
from hocket.server.routes import ApiRoute

ASSETS, CHANGES, DO, LEAVE = "/assets/", "/changes", "/do/", "/leave"
# The header of requests that a script makes.
SCRIPTED = "x-scripted"
FORM_BYTES_MAX = 256 * 1024
FIELDS_MAX = 64
# What has been done is shown once. So many sentences wait for one browser.
NOTICES_MAX = 8

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Not `no-referrer`: with that, browsers hide where a form is from, and ours would look like another site's.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class NodePage:
    """`api` recognises tokens and runs operations. `address` tells where the server can be reached once it listens,
    `base` where a proxy has put it.
    """

    def __init__(self, node: Node, api: Api, address: Callable[[], str], base: str) -> None:
        self._node, self._api, self._base, self._address = node, api, base, address
        self._rendering = Rendering(base)
        self._views = (NOW, JOBS, JOB_VIEW, MESH, COORDINATION, THREAD, *extension_views(), LOG_VIEW)
        self._actions = {**ACTIONS, **{each.operation: each for view in self._views for each in view.actions}}
        self._throughput = Throughput(node.runtime.home.path / "throughput.json")
        self._live_jobs = LiveJobs(node)
        self._log_check = LogCheck()
        self._refreshing = Refreshing(node)
        # For each browser.
        self._notices: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=NOTICES_MAX))

    @cached_property
    def _name(self) -> str:
        """The name of this node, or else its id."""
        id = node_text(self._node.runtime.log.node)
        return self._api.service.names().get(id, id)

    @cached_property
    def _entry(self) -> PageEntry:
        return PageEntry(self._address(), self._base, node_text(self._node.runtime.log.node))

    def has(self, path: str) -> bool:
        return (
            path in (CHANGES, LEAVE)
            or path.startswith((ASSETS, DO, page_access.ENTER))
            or any(each.match(path) is not None for each in (*self._views, *DOWNLOADS))
        )

    async def keep_current(self) -> None:
        """Keeps the figures of the views, and follows jobs that browsers look at, for as long as the server runs."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_throughput())
                tasks.create_task(self._live_jobs.keep())
                for keep in (each.keep for each in self._views if each.keep is not None):
                    tasks.create_task(keep(self._node))
        finally:
            self._log_check.stop()

    async def _keep_throughput(self) -> None:
        environment = self._node.environment
        while True:
            await self._node.peek(lambda session: self._throughput.sample(session, environment.physical_ms()))
            await self._api.write(self._throughput.keep)
            await asyncio.sleep(SAMPLE_S)

    async def answer(self, request: Request) -> Reply:
        try:
            self._entry.check_host(request.headers)
            if request.path.startswith(ASSETS):
                return _asset(request.path.removeprefix(ASSETS))
            if request.path.startswith(page_access.ENTER):
                return await self._enter(request)
            token = self._entry.token(request.headers)
            hint = "this browser has not entered; run `hocket page` on the machine of this node"
            program = await self._api.recognise(token, request.address, hint)
        except (HocketError, BodyTooLong, NoRoom) as error:
            return self._failed(error, None)
        try:
            with self._api.counted(program.name):
                return await self._answer_to(request, program, token)
        except (HocketError, BodyTooLong, NoRoom) as error:
            return self._failed(error, program)

    def failed(self, error: Exception, path: str) -> Reply:
        """The reply to a request that met a bug."""
        self._api.failed(error, path)
        values = {"title": "This node failed", "sentence": "its log says why", "here": "", "is_stranger": False}
        return self._html(500, "error.html", values, None)

    async def _answer_to(self, request: Request, program: Program, token: str) -> Reply:
        if request.path == CHANGES:
            news = await self._news_of(self._api.call(program).service, _fields(request.query))
            return self._api.stream(self._refreshing.changes(news), token, program, _HEADERS)
        if request.path == LEAVE or request.path.startswith(DO):
            if request.method != "POST":
                raise BadMethod(["POST"])
            form = await self._form(request, token)
            if request.path == LEAVE:
                return await self._leave(request, program)
            return await self._do(unquote(request.path.removeprefix(DO)), form, program, token)
        view = next((each for each in self._views if each.match(request.path) is not None), None)
        methods = ["GET", "HEAD", "POST"] if view is not None and view.takes_form else ["GET", "HEAD"]
        if request.method not in methods:
            raise BadMethod(methods)
        if view is not None:
            form = await self._form(request, token) if request.method == "POST" else {}
            return await self._api.read(partial(self._shown, view, request, form, program, token))
        for download in DOWNLOADS:
            if (values := download.match(request.path)) is not None:
                return await self._download(download, values, request, program, token)
        raise NotFound("there is no such page")

    async def _form(self, request: Request, token: str) -> dict[str, str]:
        """The fields of a form of ours. Browsers end lines with CR and LF."""
        fields = _fields((await request.whole(FORM_BYTES_MAX)).body.decode(errors="replace"))
        form = {name: value.replace("\r\n", "\n") for name, value in fields.items()}
        self._entry.check_form(request.headers, form.pop(FORM_FIELD, ""), token)
        return form

    async def _download(
        self, download: PageDownload, values: Mapping[str, str], request: Request, program: Program, token: str
    ) -> Reply:
        """Never shown in the browser: whatever it is, it is saved as a file."""
        arguments = download.route.arguments(values, "")
        content = await self._api.perform(download.route, self._api.call(program), arguments)
        return named(
            download.file_name(content, values), self._api.download(content, request, token, program, _HEADERS)
        )

    def _shown(self, view: PageView, request: Request, form: Mapping[str, str], program: Program, token: str) -> Reply:
        service, kept = self._api.call(program).service, (self._throughput, self._live_jobs, self._log_check)
        call = ViewCall(service, program, _fields(request.query), *kept, form)
        with self._refreshing.spending():
            return self._rendered(view, call, request, token)

    def _rendered(self, view: PageView, call: ViewCall, request: Request, token: str) -> Reply:
        parameters = view.match(request.path) or {}
        shown = view.function(call, **{name: unquote(value) for name, value in parameters.items()})
        if isinstance(shown, PageFile):
            disposition = f'attachment; filename="{shown.name}"'
            headers = {**_HEADERS, "content-type": shown.content_type, "content-disposition": disposition}
            return Reply(200, headers, shown.content)
        here = f"{request.path}?{request.query}" if request.query else request.path
        values: dict[str, Any] = {**shown, "here": here}
        if SCRIPTED in request.headers:
            values["notices"] = ()  # they are for the page that the person opens
        return self._html(200, view.template, values, call.program, token)

    async def _enter(self, request: Request) -> Reply:
        if request.method != "GET":
            raise BadMethod(["GET"])
        self._api.count_stranger(request.address)
        service = self._api.service
        code = unquote(request.path.removeprefix(page_access.ENTER))
        entered = await self._api.write(lambda: page_access.enter(service, code))
        cookie = self._entry.cookie(entered.token, entered.lifetime_ms, request.headers)
        return _to(f"{self._base}/", {"set-cookie": cookie})

    async def _leave(self, request: Request, program: Program) -> Reply:
        if program.token is not None:
            service, id = self._api.service, program.token
            await self._api.write(lambda: page_access.leave(service, id))
        return _to(f"{self._base}/", {"set-cookie": self._entry.cookie("", 0, request.headers)})

    async def _do(self, name: str, form: dict[str, str], program: Program, token: str) -> Reply:
        back = form.get(BACK, "/")
        if not back.startswith("/") or back.startswith(("//", "/\\")):
            raise Usage("a form names a page of this server to go back to")
        service = self._api.call(program).service
        if name == INVITE:
            shown = await self._api.write(lambda: invited(service, program, form))
            return self._html(200, "invited.html", {**shown, "here": "", "changes": ""}, program, token)
        if name == VERIFY:
            self._log_check.begin(service)
            return _to(f"{self._base}{back}")
        action, route = action_named(name, self._actions)
        if action.question and CONFIRMED not in form:
            return await self._question(action, route, form, program, token)
        arguments = arguments_of(action, route, form, program.agent or program.name)
        answer = await self._api.perform(route, self._api.call(program), arguments)
        if isinstance(answer, AsyncIterator):
            async for each in answer:
                last = each
            answer = last
        told = {**form, **_members(answer)}
        self._notices[token].append(action.done.format_map(defaultdict(str, told)))
        return _to(f"{self._base}{action.then.format_map(defaultdict(str, told)) or back}")

    async def _question(
        self, action: Action, route: ApiRoute, form: dict[str, str], program: Program, token: str
    ) -> Reply:
        told: dict[str, Any] = dict(form)
        if can_only_count(route):
            arguments = arguments_of(action, route, {**form, "dry_run": "true"}, program.agent or program.name)
            async for found in await self._api.perform(route, self._api.call(program), arguments):
                at_least = "at least " if found.is_cut else ""
                told["matched"] = f"{at_least}{counted(found.matched, 'job')}"
        question = action.question.format_map(defaultdict(str, told))
        values = {
            "title": action.verb,
            "action": action,
            "question": question,
            "fields": form,
            "here": "",
            "changes": "",
        }
        return self._html(200, "confirm.html", values, program, token)

    async def _news_of(self, service: Service, query: Mapping[str, str]) -> News:
        """What an open page shows that is not on the log: its answer changes with it, and is None while nothing is
        under way.
        """
        wanted = query.get("job")
        job = None if wanted is None else await self._api.read(lambda: watched_job(service, wanted))

        async def news() -> tuple[int, ...] | None:
            if "check" in query:
                return self._log_check.news()
            return None if job is None else await self._api.read(partial(self._news_of_job, service, job))

        return news

    def _news_of_job(self, service: Service, job_id: bytes) -> tuple[int, ...] | None:
        """None if the job sends nothing more."""
        with service.read() as session:
            entry = session.job(job_id)
        return None if entry is None or entry.job.outcome is not None else self._live_jobs.news(service, entry.job)

    def _html(
        self, status: int, template: str, values: Mapping[str, Any], program: Program | None, token: str = ""
    ) -> Reply:
        if "notices" not in values:
            values = {**values, "notices": self._notices.pop(token, ())}
        common = {
            "program": program,
            "form_key": form_key(token),
            "form_field": FORM_FIELD,
            "views": [each for each in self._views if each.name],
            "actions": self._actions,
            "changes": CHANGES,
            "version": __version__,
            # A stranger learns nothing about this node.
            "node": "" if program is None else self._name,
        }
        return Reply(status, _HEADERS, self._rendering.html(template, {**common, **values}))

    def _failed(self, error: HocketError | BodyTooLong | NoRoom, program: Program | None) -> Reply:
        if isinstance(error, ForeignRequest):
            status, title = 403, "Not from this page"
        elif isinstance(error, page_access.UsedAddress):
            status, title = 401, "This address is used up"
        else:
            problem = problem_of(error)
            status, title = problem.status, problem.title
        values = {"title": title, "sentence": str(error), "here": "", "is_stranger": status == 401, "changes": ""}
        return self._html(status, "error.html", values, program)


def _members(answer: Any) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in getattr(answer, "__struct_fields__", ())}


def _fields(text: str) -> dict[str, str]:
    """The last value of each field of a query or a form."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        raise Usage(f"a form or an address has at most {FIELDS_MAX} fields") from None


def _asset(name: str) -> Reply:
    found = assets().get(name)
    if found is None:
        raise NotFound("there is no such file")
    content_type, content = found
    headers = {**_HEADERS, "content-type": content_type, "cache-control": "public, max-age=31536000, immutable"}
    return Reply(200, headers, content)


def _to(address: str, headers: Mapping[str, str] = {}) -> Reply:
    return Reply(303, {**_HEADERS, "location": address, **headers})
