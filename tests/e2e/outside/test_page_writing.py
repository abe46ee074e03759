"""The page with models that write, in a real browser: a text as it comes, stopped, refused, and from rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hmi.config import Settings
from hmi.manager import Manager
from tests.e2e.outside.page_lab import FAULTS, KEYS, Place, Sight, browser, looking
from tests.hmi.labs.server_lab import ready, serving
from tests.hmi.labs.writing_lab import PROMPT

__all__ = ["browser"]  # a fixture

HOSTILE = "<img src=x onerror=document.title='broken'>"
ONE = "acme.one"


@pytest.fixture(scope="module")
def place(browser: Any, written_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server with the model acme.one, which writes, and its keys."""
    data = Path(shutil.copytree(written_folder, tmp_path_factory.mktemp("page") / "data"))
    manager = Manager(Settings(data=data, job_workers=0))
    keys = [manager.create_key(tenant, scopes)[1] for tenant, scopes in KEYS]
    manager.close()
    with serving(data, "--precision", "fp32") as (url, _):
        ready(url)
        yield Place(url, *keys)


def fulfil(answer: dict[str, Any], route: Any) -> None:
    route.fulfill(**answer)


def body(request: Any) -> dict[str, Any]:
    return dict(json.loads(request.post_data))


def held_stream(sight: Sight) -> None:
    """Answer the page with a stream that is under way: its first piece, and no end."""
    sight.page.evaluate(
        """() => {
        const real = window.fetch;
        window.fetch = (address, options) => {
          if (!address.includes('/generate/')) return real(address, options);
          const bytes = new TextEncoder().encode('event: text\\ndata: {"text": " begun"}\\n\\n');
          return Promise.resolve(new Response(new ReadableStream({
            start(to) {
              to.enqueue(bytes);
              options.signal.addEventListener('abort', () => {
                window.left = true;
                to.error(new DOMException('', 'AbortError'));
              });
            },
          }), { headers: { 'Content-Type': 'text/event-stream' } }));
        }; }"""
    )


def test_a_text_is_shown_as_it_is_written(browser: Any, place: Place) -> None:
    for scheme, width in (("light", 1280), ("dark", 360)):
        with looking(
            browser, place.url, place.admin, color_scheme=scheme, viewport={"width": width, "height": 740}
        ) as sight:
            page = sight.page
            sight.go(f"model/{ONE}")
            assert page.evaluate(FAULTS) == []
            assert page.get_by_text("Early exits").count() == 0
            sight.tab_to("Let it write")
            page.keyboard.press("Enter")
            page.wait_for_selector("text=As a message of a chat")
            assert page.evaluate(FAULTS) == []
            sight.tab_to("Prompt")
            page.keyboard.type(f"{HOSTILE} {PROMPT}")
            page.get_by_label("Most tokens").fill("12")
            with page.expect_request("**/generate/*") as sent:
                page.get_by_label("Prompt", exact=True).press("Control+Enter")
            asked = {"prompt": f"{HOSTILE} {PROMPT}", "temperature": 0, "max_tokens": 12, "stream": True}
            assert body(sent.value) == asked
            page.wait_for_selector("text=as much as was allowed: 12 tokens")
            want = page.evaluate(WHOLE, [place.admin, ONE, {**asked, "stream": False}])
            assert page.locator(".written").text_content() == asked["prompt"] + want["text"]
            counts = want["plot"]
            whole = sum(counts.values())
            for name, count in counts.items():
                share = f"{name} {100 * count / whole:.0f}%"
                assert share in page.locator(".legend").inner_text(), (share, counts)
            assert page.evaluate(f"{FOCUS}.tagName") == "TEXTAREA"
            assert page.get_by_role("button", name="Stop").count() == 0
            assert "broken" not in page.title()
            assert page.evaluate(FAULTS) == []
            assert sight.quiet(), (sight.messages, sight.hosts)


FOCUS = "document.activeElement"
WHOLE = """async ([key, model, body]) => (await fetch(`generate/${model}`, {
  method: 'POST', body: JSON.stringify(body),
  headers: { Authorization: `Bearer ${key}`, 'Content-Type': 'application/json' } })).json()"""


def test_a_text_can_be_stopped(browser: Any, place: Place) -> None:
    with looking(browser, place.url, place.admin) as sight:
        page = sight.page
        sight.go(f"try/{ONE}")
        held_stream(sight)
        page.get_by_label("Prompt", exact=True).fill("It has")
        sight.tab_to("Write")
        page.keyboard.press("Enter")
        page.wait_for_selector(".written >> text=begun")
        assert page.evaluate(FAULTS) == []
        sight.tab_to("Stop")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=You stopped it")
        assert page.locator(".written").text_content() == "It has begun"
        assert page.evaluate("window.left"), "the connection is still open, so the server writes on"
        assert page.evaluate(f"{FOCUS}.textContent") == "Write"
        assert sight.messages == []


def test_leaving_the_view_ends_its_text(browser: Any, place: Place) -> None:
    with looking(browser, place.url, place.admin) as sight:
        page = sight.page
        sight.go(f"try/{ONE}")
        held_stream(sight)
        page.get_by_label("Prompt", exact=True).fill("It has")
        page.get_by_role("button", name="Write").click()
        page.wait_for_selector(".written >> text=begun")
        page.evaluate("location.hash = '#/models'")
        page.wait_for_function(
            "() => window.left && document.querySelector('main').dataset.shown === 'models'"
        )
        assert sight.messages == []


def test_what_goes_wrong_is_said_in_plain_words(browser: Any, place: Place) -> None:
    with looking(browser, place.url, place.admin) as sight:
        page = sight.page
        sight.go(f"try/{ONE}")
        page.get_by_label("Prompt", exact=True).fill(PROMPT)
        page.get_by_label("Most tokens").fill("6000")
        page.get_by_role("button", name="Write").click()
        page.wait_for_selector("[role=alert] >> text=do not fit into the 512")
        assert page.evaluate(FAULTS) == []
        error = '{"error": {"kind": "damaged", "message": "the PLOT is damaged"}}'
        for rest, said in (
            (f"event: error\ndata: {error}\n\n", "The PLOT is damaged."),
            ("", "The connection to the server broke off"),
        ):
            stream = f'event: text\ndata: {{"text": " half"}}\n\n: alive\n\n{rest}'
            answer = {"status": 200, "content_type": "text/event-stream", "body": stream}
            page.route("**/generate/*", partial(fulfil, answer))
            page.get_by_role("button", name="Write").click()
            page.wait_for_selector(f"[role=alert] >> text={said}")
            assert page.locator(".written").text_content() == f"{PROMPT} half", "what came stays"
            page.unroute("**/generate/*")


def test_a_key_that_may_only_infer_lets_a_model_write(browser: Any, place: Place) -> None:
    """It may not ask for a model's task, so the server's answer tells which form it needs."""
    with looking(browser, place.url, place.infer) as sight:
        page = sight.page
        sight.go("try")
        page.get_by_label("Model", exact=True).fill(ONE)
        page.get_by_label("Text", exact=True).fill(PROMPT)
        page.get_by_role("button", name="Ask").click()
        page.wait_for_selector("text=What the PLOT answered")
        assert (page.locator(".written").text_content() or "").startswith(PROMPT)
        assert page.get_by_label("Prompt", exact=True).input_value() == PROMPT


def test_from_prompts_to_a_text(browser: Any, place: Place, tmp_path: Path) -> None:
    rows = [{"prompt": f"film {i} {HOSTILE}", "completion": " rises"} for i in range(20)]
    (tmp_path / "letters.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labelled = [{"text": f"film {i}", "label": "ab"[i % 2]} for i in range(20)]
    (tmp_path / "moods.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labelled))
    with looking(browser, place.url, place.acme) as sight:
        page = sight.page
        sight.go("teach")
        page.get_by_label("Choose a file").set_input_files(tmp_path / "moods.jsonl")
        page.wait_for_selector("text=Such rows need an encoder as a root")
        assert page.get_by_role("button", name="Start training").is_disabled()
        page.get_by_label("Choose a file").set_input_files(tmp_path / "letters.jsonl")
        page.wait_for_selector("button:enabled:text('Start training')")
        assert page.get_by_text("Such rows need").count() == 0
        assert page.locator("td").all_inner_texts()[:2] == [f"film 0 {HOSTILE}", "rises"]
        assert page.evaluate(FAULTS) == []
        page.get_by_role("button", name="Start training").click()
        page.wait_for_selector("text=a held-out perplexity of")
        assert page.evaluate(FAULTS) == []
        page.get_by_label("Prompt", exact=True).fill("film 3")
        page.get_by_role("button", name="Write").click()
        page.wait_for_selector("text=What the PLOT answered")
        assert "broken" not in page.title()
        sight.go("model/acme.letters")
        assert page.evaluate(FAULTS) == []
        assert sight.quiet(), (sight.messages, sight.hosts)
