"""The page on the way from an annotation tool's export to a model and back, in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.outside.page_lab import FAULTS, Place, Sight, browser, looking, place

__all__ = ["browser", "place"]  # fixtures

EXPORT = "project-3-at-2026-11-20-10-12-abc123.json"
NARROW = {"width": 400, "height": 740}
FOCUS = "document.activeElement"
CUT = """() => [...document.querySelectorAll('#nav a')].filter((a) => {
  const { left, right } = a.getBoundingClientRect(), nav = a.closest('nav').getBoundingClientRect();
  return left < nav.left || right > nav.right || right > innerWidth;
}).map((a) => a.textContent)"""
"""The links of the navigation that cannot be seen whole."""


def exported(path: Path, texts: int = 20) -> Path:
    """An export of Label Studio whose tasks have two texts, and entities in one of them."""
    tasks = []
    for i in range(texts):
        place = ("Oslo", "New York")[i % 2]
        text = f"gene cell {place} no. {i}"
        span = {"start": 10, "end": 10 + len(place), "labels": ["LOC"]}  # its text would tell
        result = [{"type": "labels", "from_name": "ner", "to_name": "note", "value": span}]
        tasks.append(
            {"id": i, "data": {"title": "a title", "note": text}, "annotations": [{"result": result}]}
        )
    path.write_text(json.dumps(tasks))
    return path


def spec(request: Any) -> dict[str, Any]:
    """The JSON of a multipart request."""
    body = (request.post_data_buffer or b"").decode()
    return dict(json.loads(body.split("\r\n\r\n", 1)[1].split("\r\n--", 1)[0]))


def started(sight: Sight, path: str, button: str) -> dict[str, Any]:
    """What the page sends to start a job, which the server does not get."""
    page = sight.page
    page.route(
        f"**{path}", lambda route: route.abort() if route.request.method == "POST" else route.continue_()
    )
    with page.expect_request(lambda r: r.method == "POST" and r.url.endswith(path)) as sent:
        page.get_by_role("button", name=button).click()
    return spec(sent.value)


def test_the_text_among_several_is_chosen_and_entities_are_shown(
    browser: Any, place: Place, tmp_path: Path
) -> None:
    with looking(browser, place.url, place.admin, viewport=NARROW) as sight:
        page = sight.page
        sight.go("teach")
        page.get_by_label("Choose a file").set_input_files(exported(tmp_path / EXPORT))
        column = page.get_by_label("Column of the text")
        assert column.evaluate("(e) => [...e.options].map((o) => o.value)") == ["", "title", "note"]
        assert page.get_by_role("button", name="Start training").is_disabled()
        column.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")  # past the title, which the entities are not in
        page.wait_for_selector("button:enabled:text('Start training')")
        assert page.evaluate(f"{FOCUS}.name") == "text-column"
        assert page.get_by_label("Column of the text").input_value() == "note"
        assert page.get_by_role("heading", name="1 type of entity").is_visible()
        assert page.locator("td mark").all_inner_texts() == ["OsloLOC", "New YorkLOC", "OsloLOC"]
        assert "B-LOC" not in page.inner_text("main")
        assert page.get_by_label("Name of the model").input_value() == "project-3"
        assert page.evaluate(FAULTS) == []
        sent = started(sight, "/manage/models", "Start training")
        assert (sent["task"], sent["options"]) == ("tagging", {"text_column": "note"})
        assert sent["model"].endswith(".project-3")


def test_the_suggested_name_follows_the_file_and_the_tenant(
    browser: Any, place: Place, tmp_path: Path
) -> None:
    (tmp_path / "Mood.csv").write_text("not,usable\n" * 8)
    with looking(browser, place.url, place.admin) as sight:
        page = sight.page
        sight.go("teach")
        name, file = page.get_by_label("Name of the model"), page.get_by_label("Choose a file")
        tenant = page.get_by_label("Tenant", exact=True)
        file.set_input_files(exported(tmp_path / EXPORT))
        page.get_by_label("Column of the text").wait_for()
        assert name.input_value() == "project-3"
        tenant.fill("acme")
        file.set_input_files(tmp_path / "Mood.csv")
        page.wait_for_selector(".badge >> text=not usable")
        assert name.input_value() == "mood-2", "acme.mood is there"
        tenant.fill("nova")
        assert name.input_value() == "mood"
        name.fill("mine")
        file.set_input_files(exported(tmp_path / EXPORT))
        page.get_by_label("Column of the text").wait_for()
        assert name.input_value() == "mine"
        for field in (tenant, name):
            rule = page.locator(f"#{field.get_attribute('aria-describedby')}").inner_text()
            assert "Lower-case letters (a-z), digits and hyphens" in rule


def test_an_encoding_is_asked_for_where_it_is_in_doubt(browser: Any, place: Place, tmp_path: Path) -> None:
    rows, corpus = tmp_path / "rows.csv", tmp_path / "corpus.txt"
    lines = [f"çok güzel şey {i},{'ab'[i % 2]}" for i in range(20)]
    rows.write_text("\n".join(["text,label", *lines]), encoding="windows-1254")
    corpus.write_text("\n".join(line[:-2] for line in lines), encoding="windows-1254")
    with looking(browser, place.url, place.admin) as sight:
        page = sight.page
        for view, label, file, path, button in (
            ("teach", "Choose a file", rows, "/manage/models", "Start training"),
            ("domains", "File of texts", corpus, "/manage/domains", "Make the domain"),
        ):
            sight.go(view)
            encoding = page.get_by_label("Encoding of the file")
            assert page.get_by_text("More options").is_hidden()
            page.get_by_label(label).set_input_files(file)
            encoding.wait_for()  # the message names it, so it is unfolded
            encoding.fill("windows-1254")
            page.keyboard.press("Enter")
            page.wait_for_selector(f"button:enabled:text('{button}')")
            assert "windows-1254, as told" in page.inner_text("main")
            if view == "teach":
                assert page.get_by_text("çok güzel şey 0").is_visible()
            else:
                page.get_by_label("Name of the domain").fill("new")
            assert page.evaluate(FAULTS) == []
            assert started(sight, path, button)["options"] == {"encoding": "windows-1254"}


def test_the_focus_stays_on_what_was_pressed(browser: Any, place: Place) -> None:
    with looking(browser, place.url, place.admin) as sight:
        page = sight.page
        sight.go("try/acme.pairs")
        assert page.get_by_text("Ctrl and Enter").is_visible()
        page.get_by_label("Text", exact=True).fill("cell gene")
        page.get_by_label("Second text", exact=True).fill("gene, protein")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(".answer-label")
        assert page.evaluate(f"{FOCUS}.tagName") == "TEXTAREA"
        held: list[Any] = []
        page.route("**/infer/**", lambda route: held.append(route))
        sight.tab_to("Ask")
        page.keyboard.press("Enter")
        page.wait_for_selector("button[aria-disabled=true]:text('Ask')")
        page.keyboard.press("Enter")  # at it already
        while not held:
            page.wait_for_timeout(10)
        assert page.evaluate(f"{FOCUS}.textContent") == "Ask"
        held[0].continue_()
        page.wait_for_selector(".answer-label")
        assert (page.evaluate(f"{FOCUS}.textContent"), len(held)) == ("Ask", 1)
        sight.go("")
        page.get_by_label("6 hours").press("Space")
        page.wait_for_function("document.querySelector('[name=span][value=\"360\"]').checked")
        assert page.evaluate(f"{FOCUS}.value") == "360"


@pytest.mark.parametrize("width", [360, 400, 700, 880])
def test_every_link_of_the_navigation_is_seen(browser: Any, place: Place, width: int) -> None:
    with looking(browser, place.url, place.admin, viewport={"width": width, "height": 740}) as sight:
        sight.go("domains")
        assert sight.page.locator("#nav a").count() == 7
        assert sight.page.evaluate(CUT) == []


def test_the_way_back_and_the_scores_are_explained(browser: Any, place: Place) -> None:
    with looking(browser, place.url, place.acme) as sight:
        page = sight.page
        sight.go("try/acme.mood")
        page.get_by_text("Answer a whole file").click()
        commands = page.locator(".command code").all_inner_texts()
        assert "hmi infer acme.mood --batch texts.jsonl --form label-studio > tasks.json" in commands
        assert "hmi infer acme.mood --batch texts.jsonl --form doccano > rows.jsonl" in commands
        assert page.get_by_text("import the answers as pre-annotations").is_visible()
        assert page.get_by_text("‘hmi infer’ get plain scores").is_visible()
        assert page.evaluate(FAULTS) == []
        sight.go("try/acme.pairs")  # doccano has no pairs
        page.get_by_text("Answer a whole file").click()
        assert not any("doccano" in said for said in page.locator(".command code").all_inner_texts())
        sight.go("teach")
        page.get_by_text("What rows look like").click()
        assert page.get_by_text("docs/your-data.md").is_visible()
