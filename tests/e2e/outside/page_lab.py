"""A real browser for the tests of the page, and checks of what it shows: names, headings, contrast."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from hmi.config import Settings
from hmi.manager import Manager
from tests.e2e.conftest import Home
from tests.hmi.labs.server_lab import ready, serving

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_MS = 300_000
"""A bound for a machine that is busy; nothing takes this long."""


def found_browser() -> str:
    """The path of a browser; the test is skipped where there is none."""
    path = next((p for name in NAMES if (p := shutil.which(name))), None)
    if path is None or not os.access(path, os.X_OK):
        pytest.skip(f"the machine has no browser: one of {', '.join(NAMES)}")
    return path


@dataclass
class Sight:
    """The record of what a page did: its messages, and the addresses of its requests."""

    page: Any
    url: str
    messages: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def go(self, place: str) -> None:
        """Go to a view of the page, and wait until it is drawn."""
        self.page.goto(f"{self.url}/#/{place}")
        self.page.wait_for_function(SHOWN, arg=place)

    def quiet(self) -> bool:
        """Return whether nothing was reported as an error, and every request went to the server."""
        return self.messages == [] and self.hosts <= {urlsplit(self.url).netloc}

    def tab_to(self, name: str, most: int = 60) -> None:
        """Press Tab until the element with this accessible name, or a beginning of it, has the focus.

        Each element on the way must show its focus.
        """
        for _ in range(most):
            self.page.keyboard.press("Tab")
            here = self.page.evaluate(FOCUSED)
            assert here["visible"], f"nothing shows that {here['name']!r} has the focus"
            if here["name"].startswith(name):
                return
        raise AssertionError(f"{name!r} cannot be reached by Tab")


@contextmanager
def looking(browser: Any, url: str, key: str | None = None, **context: Any) -> Iterator[Sight]:
    """A page in a browser session of its own, with a key in its storage if one is given."""
    session = browser.new_context(**context)
    session.set_default_timeout(WAIT_MS)
    page = session.new_page()
    sight = Sight(page, url)
    page.on("console", lambda m: sight.messages.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: sight.messages.append(str(error)))
    session.on("request", lambda request: sight.hosts.add(urlsplit(request.url).netloc))
    if key is not None:
        page.add_init_script(f"sessionStorage.setItem('hmi-key', {key!r})")
    try:
        yield sight
    finally:
        session.close()


SHOWN = """(place) => {
  const main = document.querySelector('main');
  return main.dataset.shown === place && !main.hasAttribute('aria-busy');
}"""
NAME_OF = """
const nameOf = (e) => (e.getAttribute('aria-label')
  ?? (e.labels?.length ? [...e.labels].map((l) => l.textContent).join(' ') : null)
  ?? document.getElementById(e.getAttribute('aria-labelledby') ?? '-')?.textContent
  ?? (e.alt !== undefined ? e.alt : null) ?? e.textContent ?? '').trim();
"""
FOCUSED = f"""() => {{
  {NAME_OF}
  const e = document.activeElement, shown = e.closest('.switch label') ?? e;
  const style = getComputedStyle(shown);
  return {{ name: nameOf(e), visible: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 }};
}}"""
FAULTS = f"""() => {{
  {NAME_OF}
  const faults = [], all = (s) => [...document.querySelectorAll(s)];
  const seen = (e) => e.checkVisibility({{ visibilityProperty: true }}) && e.getClientRects().length > 0;
  const say = (what, e) => faults.push(`${{what}}: ${{e.outerHTML.slice(0, 120)}}`);
  for (const e of all('a[href], button, input, select, textarea, summary, [role=img], [role=progressbar]'))
    if (seen(e) && !nameOf(e)) say('no name', e);
  for (const e of all('img')) if (!e.hasAttribute('alt')) say('no alt', e);
  for (const e of all('table')) {{
    if (!e.caption?.textContent) say('no caption', e);
    for (const th of e.querySelectorAll('th')) if (!th.scope) say('no scope', th);
  }}
  const ids = all('[id]').map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) faults.push(`id ${{id}} is there twice`);
  for (const e of all('[aria-describedby], [aria-labelledby]'))
    for (const id of (e.getAttribute('aria-describedby') ?? e.getAttribute('aria-labelledby')).split(' '))
      if (!ids.includes(id)) say('describes nothing', e);
  for (const landmark of ['header', 'nav', 'main', 'footer'])
    if (all(landmark).length !== 1) faults.push(`not one ${{landmark}}`);
  let level = 0;
  for (const e of all('h1, h2, h3, h4').filter(seen)) {{
    const now = Number(e.tagName[1]);
    if (now > level + 1) say(`a heading of level ${{now}} after one of level ${{level}}`, e);
    level = now;
  }}
  if (all('h1').filter(seen).length !== 1) faults.push('not one h1');
  if (document.scrollingElement.scrollWidth > innerWidth) faults.push('the page is wider than the window');
  const channels = (c) => c.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = (c) => [.2126, .7152, .0722].reduce((sum, share, i) => sum + share * linear(c[i] / 255), 0);
  const behind = (e) => {{
    for (let at = e; at; at = at.parentElement) {{
      const c = channels(getComputedStyle(at).backgroundColor);
      if ((c[3] ?? 1) > 0) return c;
    }}
    return [255, 255, 255];
  }};
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {{
    const e = texts.currentNode.parentElement, style = getComputedStyle(e);
    if (!texts.currentNode.data.trim() || !seen(e)) continue;
    if (e.closest('.sr, .skip, noscript, svg, option')) continue;
    const [a, b] = [light(channels(style.color)), light(behind(e))].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const contrast = (a + .05) / (b + .05);
    if (contrast < (large ? 3 : 4.5)) say(`contrast ${{contrast.toFixed(2)}}`, e);
  }}
  return [...new Set(faults)];
}}"""
"""Returns the faults of what is shown, one sentence each: of names, tables, headings, contrast, width."""


KEYS: tuple[tuple[str | None, Any], ...] = (
    (None, ("admin",)),
    ("acme", ("infer", "manage")),
    ("acme", ("infer",)),
)


@dataclass(frozen=True)
class Place:
    """A server with keys: an administrator's, a tenant's, and one that may only infer."""

    url: str
    admin: str
    acme: str
    infer: str


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = found_browser()
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def place(browser: Any, home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    data = Path(shutil.copytree(home.settings.data, tmp_path_factory.mktemp("page") / "data"))
    manager = Manager(Settings(data=data, job_workers=0))
    keys = [manager.create_key(tenant, scopes)[1] for tenant, scopes in KEYS]
    manager.close()
    with serving(data) as (url, _):
        ready(url)
        yield Place(url, *keys)
