"""The calls for the page at /: its document, its files, and the redirect from its earlier address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hmi.api.http.call import RouteCall
from hmi.api.views.page_files import HEADERS, INDEX, page_files
from hmi.errors import NotFound

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web


async def index(call: RouteCall) -> web.StreamResponse:
    """Answer with the page."""
    return _answer(call, INDEX)


async def file(call: RouteCall) -> web.StreamResponse:
    """Answer with a file of the page."""
    return _answer(call, call.path["file"])


async def dashboard(call: RouteCall) -> web.StreamResponse:
    """Redirect to the page."""
    return web.Response(text="the page is at ./\n", status=308, headers={"Location": "./"})


def _answer(call: RouteCall, name: str) -> web.StreamResponse:
    """A file, or 304 if the client has the current one. Raises NotFound."""
    assert call.request is not None
    found = page_files().get(name)
    if found is None:
        raise NotFound(f"the page has no file {name[:80]!r}")
    known = any(given.value in (found.etag, "*") for given in call.request.if_none_match or ())
    answer = (
        web.Response(status=304, headers=HEADERS)
        if known
        else web.Response(body=found.body, content_type=found.type, charset="utf-8", headers=HEADERS)
    )
    answer.etag = found.etag
    return answer
