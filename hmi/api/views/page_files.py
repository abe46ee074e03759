"""The files of the page at /, which are part of the package. They are read once. A request can only choose
one of them: none of its bytes becomes a part of a path."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
INDEX = "index.html"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""The page runs its own files only, talks to its own server only, and cannot be framed. With trusted types,
no code can turn a text into markup, not even by mistake."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # a browser asks whether its copy is current; the answer is a 304
}


@dataclass(frozen=True)
class PageFile:
    """One file of the page, as it is sent."""

    body: bytes
    type: str
    etag: str
    """The strong ETag: the hash of the body."""


@cache
def page_files() -> Mapping[str, PageFile]:
    """The files by name."""
    found = {}
    for file in (files("hmi.api") / "page").iterdir():
        if (kind := TYPES.get(PurePath(file.name).suffix)) is not None:
            body = file.read_bytes()
            found[file.name] = PageFile(body, kind, hashlib.sha256(body).hexdigest()[:32])
    return found
