"""The page in a real browser: Chromium, if it is installed. Its scripts are on, and everything that it complains about
is an error.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

import hocket
from hocket.node.runtime import Runtime
from hocket.page.actions import ACTIONS
from tests.page.test_views import HIDDEN, MARKUP, fill
from tests.ports import free_port
from tests.server.served import Served, serving
from tests.server.served import hocket as command
from tests.waiting import wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 60_000
OTHERS = ("/", "/jobs", "/mesh", "/coordination", "/log")
SIZES = {"wide": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 800}}
# Contrast depends on the scheme and width on the size, so that each once shows them.
OTHER_LOOKS = [pytest.param(*each, marks=pytest.mark.soak) for each in (("wide", "dark"), ("phone", "light"))]
LOOKS = [("wide", "light"), ("phone", "dark"), *OTHER_LOOKS]

# What the policy of the page refuses is a complaint, whether the console shows it or not.
REPORTS = "addEventListener('securitypolicyviolation', each => console.error(`refused: ${each.violatedDirective}`))"

expect.set_options(timeout=PATIENCE_MS)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install Debian's package `chromium`")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium's sandbox refuses to run as root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield running
        running.close()


@contextmanager
def entered(browser: Browser, served: Served, *options: str, **context: Any) -> Iterator[tuple[Page, list[str]]]:
    """A page of a browser that has entered, and what the browser complained about."""
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        complaints.append(message.text)

    opened: BrowserContext = browser.new_context(**({"viewport": SIZES["wide"]} | context))
    with closing(opened):
        opened.set_default_timeout(PATIENCE_MS)
        page = opened.new_page()
        page.on("console", heard)
        page.add_init_script(REPORTS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(command(served.home, "page", "--no-open", *options).stdout.strip())
        yield page, complaints


@pytest.fixture(scope="module")
def jobs(served: Served) -> dict[str, str]:
    def run(ctx: hocket.Context, fails: bool = False, **values: Any) -> Any:
        if fails:
            raise RuntimeError(f"{MARKUP}{HIDDEN}")
        return values

    fill(served.home)
    job_type = hocket.job("acme.shown", retries=0)(run)
    with closing(hocket.open_sync(served.home)) as node:
        done, failed = node.submit(job_type, note=MARKUP), node.submit(job_type, fails=True)
        work(node, job_type)
        waits = node.submit(hocket.kind("acme.later", after=[done.job_id]))
    return {"succeeded": done.job_id, "failed": failed.job_id, "ready": waits.job_id}


def work(node: hocket.SyncNode, job_type: hocket.JobType) -> None:
    """Runs the jobs that are there. Playwright has an event loop in this thread."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: node.work([job_type], until_idle=True, signals=False)).result()


def is_live(page: Page) -> None:
    expect(page.locator("#live")).to_have_text("live")


def test_every_view_is_quiet_and_its_foreign_text_does_nothing(browser: Browser, served: Served, jobs: dict[str, str]):
    with entered(browser, served) as (page, complaints):
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        for path in (*OTHERS, "/jobs?error=%3Cscript%3E", *(f"/jobs/{each}" for each in jobs.values())):
            page.goto(f"{served.address}{path}")
            is_live(page)
        assert complaints == []


@pytest.mark.slow
@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_axe_finds_nothing_to_mend(browser: Browser, served: Served, jobs: dict[str, str], scheme: str, size: str):
    # axe puts its own script into the page, which the policy refuses.
    look = {"color_scheme": scheme, "viewport": SIZES[size], "bypass_csp": True}
    with entered(browser, served, **look) as (page, _):
        for path in (*OTHERS, *(f"/jobs/{each}" for each in jobs.values()), "/jobs?state=sleeping"):
            page.goto(f"{served.address}{path}")
            found = Axe().run(page)
            assert found.violations_count == 0, f"{path}: {found.generate_report()}"
            width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert width <= 0, f"{path} is wider than the screen by {width} pixels"
        page.context.clear_cookies()
        page.goto(f"{served.address}/")
        assert Axe().run(page).violations_count == 0


def test_the_keyboard_finds_and_opens_jobs(browser: Browser, served: Served, jobs: dict[str, str]):
    with entered(browser, served) as (page, complaints):
        page.goto(f"{served.address}/jobs?kind=acme.")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        first = page.locator("#jobs tbody tr").first
        expect(first).to_have_class("current")
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs/*")
        page.keyboard.press("/")
        page.keyboard.type("state:failed")
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs?q=*")
        expect(page.locator("#jobs tbody tr")).to_have_count(1)
        page.keyboard.press("?")
        expect(page.locator("#keys")).to_be_visible()
        assert complaints == []


def test_a_job_is_cancelled_by_mouse_after_a_question(browser: Browser, served: Served):
    job = command(served.home, "submit", "acme.once", "{}").stdout.split()[-1]
    with entered(browser, served) as (page, complaints):
        page.goto(f"{served.address}/jobs/{job}")
        page.get_by_role("button", name="Cancel…").click()
        expect(page.get_by_role("heading", name=f"Cancel the job {job}?")).to_be_visible()
        page.get_by_label("Reason").fill("not needed")
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#news")).to_have_text(f"Cancelled the job {job}.")
        expect(page.locator("#state")).to_contain_text("cancelled")
        assert complaints == []


def test_the_page_works_without_scripts(browser: Browser, served: Served, jobs: dict[str, str]):
    with entered(browser, served, java_script_enabled=False) as (page, _):
        page.goto(f"{served.address}/jobs")
        page.locator("select[name=state]").select_option("failed")
        page.get_by_role("button", name="Find").click()
        page.locator("#jobs tbody a").first.click()
        expect(page.locator("h1")).to_contain_text(jobs["failed"])
        expect(page.locator("footer")).to_contain_text("not live")
        assert page.locator("#pause").is_hidden()


def shown_jobs(page: Page) -> dict[str, str]:
    rows = page.locator("#jobs tbody tr").evaluate_all(
        "rows => rows.map(row => [row.id.slice(4), row.querySelector('.state').textContent.trim().split(/\\s+/).pop()])"
    )
    return dict(rows)


def test_what_a_watching_browser_shows_is_what_the_shell_shows(browser: Browser, served: Served, tmp_path: Path):
    """A hundred jobs come: some end, some fail, some run and some wait."""

    def run(ctx: hocket.Context, number: int = 0) -> None:
        if number % 3 == 0:
            raise RuntimeError("every third one fails")

    def rest(ctx: hocket.Context) -> None:
        wait_for((tmp_path / "gate").exists, "the gate")

    ends, rests = hocket.job("watched.one", retries=0)(run), hocket.job("watched.two", retries=0)(rest)
    with (
        entered(browser, served) as (page, complaints),
        closing(hocket.open_sync(served.home)) as node,
        closing(hocket.open_sync(served.home)) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        first = command(served.home, "submit", "watched.one", "{}").stdout.split()[-1]
        page.goto(f"{served.address}/jobs?kind=watched.")
        is_live(page)
        for number in range(60):
            node.submit(ends, number=number)
        work(node, ends)
        resting = other.submit(rests)
        working = thread.submit(lambda: other.work([rests], until_idle=True, signals=False))
        wait_for(lambda: resting.status()["state"] == "running", "a job that runs")
        node.submit_many([(ends, {})] * 38)
        button = page.get_by_role("button", name="show")
        expect(button).to_contain_text("99 new")
        # The line that was there has changed in its place, and no other has come under the reader's eyes.
        assert shown_jobs(page) == {first: "failed"}
        button.click()
        listed = json.loads(command(served.home, "jobs", "--kind", "watched.", "--limit", "100", "--json").stdout)
        told = {each["job_id"]: each["stage"] for each in listed}
        assert shown_jobs(page) == told and set(told.values()) == {"failed", "succeeded", "ready", "running"}
        assert complaints == []
        (tmp_path / "gate").touch()
        working.result()


def test_what_a_job_sends_grows_before_the_reader(browser: Browser, served: Served, tmp_path: Path):
    gates = [tmp_path / "one", tmp_path / "two"]

    def run(ctx: hocket.Context) -> None:
        for number, gate in enumerate(gates):
            ctx.part(f"{MARKUP} {number}\n" * 200)
            print(f"{MARKUP}{HIDDEN} {number}", flush=True)
            wait_for(gate.exists, "the gate")

    job_type = hocket.job("sent.one", retries=0)(run)
    with closing(hocket.open_sync(served.home)) as node, ThreadPoolExecutor(1) as thread:
        job = node.submit(job_type).job_id
        working = thread.submit(lambda: node.work([job_type], until_idle=True, signals=False))
        with entered(browser, served) as (page, complaints):
            page.goto(f"{served.address}/jobs/{job}")
            parts = page.locator("#parts")
            expect(parts).to_contain_text(f"{MARKUP} 0")
            expect(page.locator("#output-handler")).to_contain_text("\\u202e")
            page.locator("summary", has_text="Options").click()
            # A reader who has gone up stays there; the end of the text is for one who has not.
            parts.evaluate("text => { text.scrollTop = 100 }")
            gates[0].touch()
            expect(parts).to_contain_text(f"{MARKUP} 1")
            assert parts.evaluate("text => text.scrollTop") == 100
            assert page.locator("details", has_text="Options").evaluate("each => each.open")
            assert complaints == []
            gates[1].touch()
            expect(page.locator("#state")).to_contain_text("succeeded")
            expect(parts).to_have_count(0)
        working.result()


def test_a_machine_is_invited_and_the_log_verified_by_mouse(browser: Browser, served: Served, jobs: dict[str, str]):
    with entered(browser, served) as (page, complaints):
        page.goto(f"{served.address}/log")
        is_live(page)
        page.get_by_role("button", name="Verify").click()
        # The page that was open hears of the end by itself.
        expect(page.locator("#check")).to_contain_text("ops, to")
        page.goto(f"{served.address}/mesh")
        page.locator("input[name=name]").fill(f"box-{len(jobs)}")
        page.locator("input[name=may]").fill("job:read")
        page.get_by_role("button", name="Invite").click()
        expect(page.locator("svg.qr")).to_be_visible()
        expect(page.locator("main pre")).to_contain_text("hocket mesh join ")
        assert complaints == []
    with entered(browser, served, bypass_csp=True) as (page, _):
        page.goto(f"{served.address}/coordination")
        page.locator("#dead tbody a").first.click()
        expect(page.get_by_role("heading", name="Thread")).to_be_visible()
        assert Axe().run(page).violations_count == 0
        page.goto(f"{served.address}/mesh")
        page.locator("input[name=name]").fill("another")
        page.locator("input[name=may]").fill("job:read")
        page.get_by_role("button", name="Invite").click()
        expect(page.locator("svg.qr")).to_be_visible()
        assert Axe().run(page).violations_count == 0


def test_a_paused_page_stays_as_it_is_until_it_goes_on(browser: Browser, served: Served):
    job = command(served.home, "submit", "paused.one", "{}").stdout.split()[-1]
    with entered(browser, served) as (page, _):
        page.goto(f"{served.address}/jobs/{job}")
        is_live(page)
        page.get_by_role("button", name="Pause").click()
        with entered(browser, served) as (other, _):
            other.goto(f"{served.address}/jobs/{job}")
            is_live(other)
            command(served.home, "cancel", job)
            # By then, the paused page would have heard of it, too.
            expect(other.locator("#state")).to_contain_text("cancelled")
        expect(page.locator("#state")).to_contain_text("ready")
        page.get_by_role("button", name="Go on").click()
        expect(page.locator("#state")).to_contain_text("cancelled")


def test_a_page_that_nobody_sees_catches_up_when_it_is_seen(browser: Browser, served: Served):
    job = command(served.home, "submit", "hidden.one", "{}").stdout.split()[-1]
    turn = """isHidden => {
        Object.defineProperty(document, 'hidden', {value: isHidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    with entered(browser, served) as (page, complaints), entered(browser, served) as (other, _):
        page.goto(f"{served.address}/jobs/{job}")
        is_live(page)
        with page.expect_event("requestfailed", lambda each: urlsplit(each.url).path == "/changes"):
            page.evaluate(turn, True)  # and its stream ends
        other.goto(f"{served.address}/jobs/{job}")
        is_live(other)
        command(served.home, "cancel", job)
        expect(other.locator("#state")).to_contain_text("cancelled")
        expect(page.locator("#state")).to_contain_text("ready")
        page.evaluate(turn, False)
        expect(page.locator("#state")).to_contain_text("cancelled")
        assert complaints == []


def test_an_open_page_survives_a_restart_of_the_server(browser: Browser, tmp_path: Path):
    home, port = tmp_path / "home", str(free_port())
    Runtime.init(home, name="box").close()
    job = command(home, "submit", "acme.once", "{}").stdout.split()[-1]
    with serving(home, "--port", port) as served:
        opened = entered(browser, served)
        page, _ = opened.__enter__()
        page.goto(f"{served.address}/jobs/{job}")
        is_live(page)
    expect(page.locator("#live")).to_contain_text("lost")
    command(home, "cancel", job)
    with serving(home, "--port", port):
        is_live(page)
        expect(page.locator("#state")).to_contain_text("cancelled")
        opened.__exit__(None, None, None)


class FramingSite(BaseHTTPRequestHandler):
    """Another server of this machine, so that browsers send it the page's cookie."""

    framed = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(f'<iframe src="{self.framed}"></iframe>'.encode())

    def log_message(self, format: str, *args: Any) -> None: ...


def test_no_site_can_put_the_page_into_a_frame(browser: Browser, served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FramingSite, "framed", f"{served.address}/jobs")
    with entered(browser, served) as (page, complaints), HTTPServer(("127.0.0.1", 0), FramingSite) as site:
        Thread(target=site.serve_forever, daemon=True).start()
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.all_headers().get("cookie", "")))
        page.goto(f"http://127.0.0.1:{site.server_port}/")
        wait_for(lambda: page.wait_for_timeout(50) or complaints, "the browser to refuse the frame")
        assert "frame" in complaints[0] and any(each.startswith("hocket_") for each in sent)
        assert not page.frame_locator("iframe").locator(".brand").count()
        site.shutdown()


def test_every_action_is_done_by_mouse(browser: Browser, tmp_path: Path):
    home = tmp_path / "home"
    Runtime.init(home, name="box").close()
    fill(home)

    def submitted(kind: str, *words: str) -> str:
        return command(home, "submit", kind, "{}", *words).stdout.split()[-1]

    def ask(ctx: hocket.Context) -> Any:
        return ctx.ask("Which one?", wait="10m")

    asking = hocket.job("walk.answers")(ask)
    with serving(home) as served, entered(browser, served, "--agent", "ada") as (page, complaints):
        done: set[str] = set()
        page.on("request", lambda each: done.add(urlsplit(each.url).path) if each.method == "POST" else None)

        def act(place: str, verb: str, notice: str) -> None:
            """Presses a button, and that of the question, if there is one."""
            page.goto(f"{served.address}{place}")
            page.get_by_role("button", name=verb, exact=True).first.click()
            if verb.endswith("…"):
                expect(page.locator("form.confirm")).to_be_visible()
                page.locator("form.confirm button.primary").click()
            expect(page.locator("#news")).to_contain_text(notice)

        one = f"/jobs/{submitted('walk.one')}"
        act(one, "Postpone…", "Moved the start of the job")
        act(one, "Cancel…", "Cancelled the job")
        act(one, "Retry", "Retried the job")
        for _ in range(2):
            submitted("walk.many")
        many = "/jobs?kind=walk.many"
        act(many, "Postpone all…", "Moved the start of 2 of 2 jobs")
        act(many, "Cancel all…", "Cancelled 2 of 2 jobs")
        act(f"{many}&state=cancelled", "Retry all…", "Retried 2 of 2 jobs")
        act(f"/jobs/{submitted('walk.asks', '--approval-by', 'ada')}", "Approve…", "Approved the job")
        act(f"/jobs/{submitted('walk.asks', '--approval-by', 'ada')}", "Refuse…", "Refused the job")
        asks = submitted("walk.answers", "--questions-to", "ada")
        with closing(hocket.open_sync(home)) as node, ThreadPoolExecutor(1) as thread:
            working = thread.submit(lambda: node.work([asking], until_idle=True, signals=False))
            page.goto(f"{served.address}/jobs/{asks}")
            page.locator("#answer").fill("this one")
            page.get_by_role("button", name="Answer", exact=True).click()
            expect(page.locator("#news")).to_contain_text("Answered what the job")
            working.result()
        act("/mesh", "Drain…", "takes no new jobs")
        act("/mesh", "Resume", "takes jobs again")
        act("/mesh", "Quarantine…", "gets no jobs")
        act("/coordination", "Break…", "Broke the lock")
        act("/coordination", "Deliver again", "is delivered again")
        act("/coordination", "Merge…", "The conflict is resolved")
        assert done == {f"/do/{name}" for name in ACTIONS}
        assert complaints == []


def test_an_id_is_copied_without_the_clipboard_of_secure_pages(browser: Browser, served: Served, jobs: dict[str, str]):
    with entered(browser, served) as (page, complaints):
        page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        page.goto(f"{served.address}/jobs/{jobs['failed']}")
        page.get_by_role("button", name="Copy").click()
        expect(page.locator("#news")).to_have_text("Copied.")
        page.locator("#search").focus()
        page.keyboard.press("Control+V")
        expect(page.locator("#search")).to_have_value(jobs["failed"])
        assert complaints == []


def test_times_go_on_in_the_words_of_the_server(browser: Browser, served: Served, jobs: dict[str, str]):
    with entered(browser, served) as (page, complaints):
        page.clock.install()
        page.goto(f"{served.address}/jobs/{jobs['ready']}")
        is_live(page)
        submitted = page.locator("#facts time").first
        for hours, words in ((1, r"^\d+ min ago$"), (2, r"^\d h ago$"), (72, r"^3 d ago$")):
            page.clock.fast_forward(hours * 3_600_000)
            expect(submitted).to_have_text(re.compile(words))
        assert complaints == []


def test_an_old_session_tells_the_reader_to_enter_again(browser: Browser, served: Served):
    with entered(browser, served, "--agent", "zoe") as (page, _):
        page.goto(f"{served.address}/")
        is_live(page)
        tokens = json.loads(command(served.home, "token", "list", "--json").stdout)
        own = next(each["name"] for each in tokens if each["name"].startswith("zoe~browser"))
        command(served.home, "token", "revoke", own)
        expect(page.locator("#live")).to_contain_text("enter again")
