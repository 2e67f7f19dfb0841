"""The view of tempo and the sheet of scores in a real browser: Chromium, if it is installed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Download, Locator, Page, expect

import hocket
from hocket.extensions.tempo.score import read_score
from hocket.node.runtime import Runtime
from tests.page.tempo_home import fill_tempo
from tests.page.test_browser import CHROMIUM, LOOKS, SIZES, browser, entered, is_live
from tests.server.served import Served, serving

__all__ = ["browser"]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install Debian's package `chromium`")


@pytest.fixture(scope="module")
def tempo_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    home: Path = tmp_path_factory.mktemp("tempo") / "home"
    Runtime.init(home, name="box").close()
    # Playwright has an event loop in this thread.
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(fill_tempo, home).result()
    with serving(home) as running:
        yield running, job


@pytest.fixture
def served(tempo_job: tuple[Served, str]) -> Served:
    return tempo_job[0]


def open_sheet(page: Page, served: Served) -> None:
    page.goto(f"{served.address}/tempo/score")
    # The script has taken over when a cue is a button.
    expect(cue(page, "work")).to_have_attribute("role", "button")


def cue(page: Page, name: str) -> Locator:
    return page.locator(f".phrase >> nth=0 >> [data-cue={name}]")


def phases(page: Page) -> dict[str, int]:
    return read_score(page.input_value("#score").encode()).phases


def becomes(page: Page, name: str, sentence: str) -> None:
    expect(cue(page, name)).to_have_attribute("aria-label", sentence)


@pytest.mark.req("BB-19")
def test_tempo_and_sheet_are_quiet_and_axe_finds_nothing(browser: Browser, tempo_job: tuple[Served, str]):
    served, job = tempo_job
    with entered(browser, served) as (page, complaints):
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        for path in ("/tempo", "/tempo/score", f"/tempo/score?job={job}"):
            page.goto(f"{served.address}{path}")
            is_live(page)
        assert complaints == []


@pytest.mark.slow
@pytest.mark.req("BB-19")
@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_axe_finds_nothing_to_mend(browser: Browser, served: Served, scheme: str, size: str):
    look = {"color_scheme": scheme, "viewport": SIZES[size], "bypass_csp": True}
    with entered(browser, served, **look) as (page, _):
        for path in ("/tempo", "/tempo/score", "long", "bad"):
            if path == "long":
                page.locator("#score").fill(
                    "score: {bar_len: 256, phases: {plan: 1, work: 250}, retry: {max_phrases: 9}}"
                )
                expect(page.locator("#verdict")).to_contain_text("251 of 256 beats")
                expect(page.locator(".phrase")).to_have_count(4)
            elif path == "bad":
                page.locator("#score").fill("score: {phases: {plan: 9}}")
                expect(page.locator("#verdict")).to_contain_text("line 1")
            else:
                page.goto(f"{served.address}{path}")
                is_live(page)
            found = Axe().run(page)
            assert found.violations_count == 0, f"{path}: {found.generate_report()}"
            width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert width <= 0, f"{path} is wider than the screen by {width} pixels"


@pytest.mark.req("BB-19")
def test_the_keyboard_moves_and_stretches_cues(browser: Browser, served: Served):
    with entered(browser, served) as (page, complaints):
        open_sheet(page, served)
        page.locator("#said").evaluate("said => { window.heard = said; }")
        cue(page, "review").focus()
        page.keyboard.press("Shift+ArrowLeft")
        becomes(page, "review", "review: beat 7")
        expect(cue(page, "review")).to_be_focused()
        page.keyboard.press("z")
        becomes(page, "review", "review: beats 7 to 8")
        cue(page, "plan").focus()
        page.keyboard.press("ArrowDown")
        expect(cue(page, "work")).to_be_focused()
        page.keyboard.press("ArrowRight")
        becomes(page, "work", "work: beats 4 to 7")
        expect(page.locator("#said")).to_have_text("Work: beats 4 to 7.")
        expect(cue(page, "work")).to_be_focused()
        page.keyboard.press("Shift+ArrowLeft")
        becomes(page, "work", "work: beats 4 to 6")
        # Changes that come faster than answers are done one after the other.
        page.keyboard.press("Shift+ArrowLeft")
        page.keyboard.press("Shift+ArrowLeft")
        becomes(page, "work", "work: beat 4")
        assert phases(page) == {"plan": 3, "work": 1, "review": 1}
        page.keyboard.press("z")
        becomes(page, "work", "work: beats 4 to 5")
        page.keyboard.press("Enter")
        page.keyboard.type("3")
        page.keyboard.press("Enter")
        becomes(page, "work", "work: beats 4 to 6")
        expect(cue(page, "work")).to_be_focused()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#said")).to_contain_text("Plan begins the bar.")
        # What is read aloud is still the element of the beginning.
        assert page.locator("#said").evaluate("said => said === window.heard")
        assert page.input_value("#score").startswith("# How many beats"), "the comment is still there"
        assert complaints == []


@pytest.mark.req("BB-19")
def test_the_mouse_moves_and_stretches_cues(browser: Browser, served: Served):
    with entered(browser, served) as (page, complaints):
        open_sheet(page, served)
        drag(page, "work", 0.5, 1)
        becomes(page, "work", "work: beats 4 to 7")
        drag(page, "plan", 0.98, -2)
        becomes(page, "plan", "plan: beat 1")
        assert phases(page) == {"plan": 1, "work": 4, "review": 1}
        # What can be dragged has buttons, too.
        page.get_by_role("button", name="later: review").click()
        becomes(page, "review", "review: beat 7")
        assert complaints == []


def drag(page: Page, name: str, part: float, beats: int) -> None:
    box = cue(page, name).locator(".body").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * part, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + beats * 32, y, steps=4)
    page.mouse.up()


@pytest.mark.req("BB-19")
def test_the_text_is_checked_as_one_types(browser: Browser, served: Served):
    with entered(browser, served) as (page, complaints):
        open_sheet(page, served)
        area = page.locator("#score")
        good = area.input_value()
        area.fill(good.replace("work: 4", "work: 5"))
        expect(page.locator("#verdict")).to_contain_text("line 4: score.phases: they have 9 beats")
        expect(area).to_have_attribute("aria-invalid", "true")
        expect(page.locator("#submit-job button")).to_be_disabled()
        becomes(page, "work", "work: beats 3 to 6")
        area.press("Control+End")
        area.fill(good.replace("work: 4", "work: 3"))
        becomes(page, "work", "work: beats 3 to 5")
        expect(page.locator("#verdict")).to_contain_text("good: 7 of 8 beats")
        expect(area).to_be_focused()
        expect(page.locator("#submit-job button")).to_be_enabled()
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Download").click()
        saved: Download = waiting.value
        assert saved.suggested_filename == "score.yaml"
        assert Path(saved.path()).read_text() == good.replace("work: 4", "work: 3")
        page.get_by_label("Kind").fill("acme.typed")
        page.locator("#submit-job button").click()
        page.wait_for_url("**/jobs/*")
        expect(page.locator("#news")).to_contain_text("Submitted the job")
        assert complaints == []


@pytest.mark.req("BB-19")
def test_the_sheet_works_without_scripts(browser: Browser, served: Served):
    with entered(browser, served, java_script_enabled=False) as (page, _):
        page.goto(f"{served.address}/tempo/score")
        expect(cue(page, "work")).to_have_attribute("role", "img")
        page.get_by_role("button", name="shorter: work").click()
        becomes(page, "work", "work: beats 3 to 5")
        page.get_by_label("beats of plan").fill("1")
        page.get_by_role("button", name="Apply the fields").click()
        becomes(page, "work", "work: beats 2 to 4")
        page.locator("#score").fill("score: {phases: {plan: 9}}")
        page.get_by_role("button", name="Check").click()
        expect(page.locator("#verdict")).to_contain_text("score.phases.plan")


def test_an_open_page_follows_the_beat_and_new_promises(browser: Browser, served: Served):
    with entered(browser, served) as (page, complaints):
        page.goto(f"{served.address}/tempo")
        is_live(page)
        beat = page.locator("#beat .large strong")
        window = page.locator("#beat p.quiet")
        began = window.inner_text()
        expect(beat).not_to_have_text(beat.inner_text())
        expect(window).not_to_have_text(began)
        rows = page.locator("#budgets tbody tr")
        assert rows.count() == 1
        with closing(hocket.open_sync(served.home)) as node:
            node.submit(hocket.kind("acme.capped", budget={"max_bu": 3}))
        button = page.get_by_role("button", name="show")
        expect(button).to_contain_text("1 new")
        button.click()
        expect(rows).to_have_count(2)
        assert complaints == []
