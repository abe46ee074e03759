"""Compressed uploads: what comes out, and that the limit holds for what comes out."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import threading
from pathlib import Path

import pytest
import zstandard

from hmi.api.expand import expand_into
from hmi.api.uploads import Uploads
from hmi.errors import InvalidData, InvalidInput, NotFound, TooLarge

TEXT = b"a line of text\n" * 5000


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize(
    "sent",
    [TEXT, gzip.compress(TEXT), zstd(TEXT), gzip.compress(TEXT[:300]) + gzip.compress(TEXT[300:]),
     zstd(TEXT[:300]) + zstd(TEXT[300:]), gzip.compress(TEXT[:300]) + bytes(1 << 17) + gzip.compress(TEXT[300:])],
    ids=["plain", "gzip", "zstd", "two gzip members", "two zstd frames", "two gzip members with padding"],
)  # fmt: skip
def test_expands(sent: bytes, tmp_path: Path) -> None:
    assert expand_into(io.BytesIO(sent), tmp_path / "out", "data", len(TEXT)) == len(TEXT)
    assert (tmp_path / "out").read_bytes() == TEXT


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd], ids=["plain", "gzip", "zstd"])
def test_limit_holds_for_the_expanded_size(pack: object, tmp_path: Path) -> None:
    bomb = pack(b"\0" * (8 << 20))  # type: ignore[operator]
    with pytest.raises(TooLarge) as caught:
        expand_into(io.BytesIO(bomb), tmp_path / "out", "data", 1 << 20)
    assert caught.value.details["field"] == "data"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
@pytest.mark.parametrize("spoil", ["cut", "flipped"])
def test_damaged_archive(pack: object, spoil: str, tmp_path: Path) -> None:
    sent = bytearray(pack(os.urandom(5000)))  # type: ignore[operator]
    if spoil == "cut":
        del sent[-20:]
    else:
        sent[4:12] = b"\xff" * 8
    with pytest.raises(InvalidData):
        expand_into(io.BytesIO(bytes(sent)), tmp_path / "out", "data", 1 << 20)
    assert not (tmp_path / "out").exists()


def test_paths_stay_below_uploads(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "data", 1 << 20)
    uploads.clear()
    below = tmp_path / "data" / "uploads"
    (below / "acme").mkdir()
    (below / "acme" / "rows.jsonl").write_bytes(gzip.compress(TEXT))
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (below / "link").symlink_to(secret)
    (below / "up").symlink_to(tmp_path)
    folder = uploads.new_folder()
    assert uploads.copy_below(None, "acme/rows.jsonl", "data", folder).read_bytes() == TEXT
    for bad in ("../../secret", "acme/../../../secret", str(secret), "link", "up/secret", "acme", "a\0b"):
        with pytest.raises(InvalidInput) as caught:
            uploads.copy_below(None, bad, "data", folder)
        assert caught.value.details["field"] == "data.path"
    with pytest.raises(NotFound):
        uploads.copy_below(None, "acme/other.jsonl", "data", folder)


async def test_uploads_hold_up_no_other_work(tmp_path: Path) -> None:
    uploads, go_on = Uploads(tmp_path, 1 << 20), threading.Event()
    held = [asyncio.create_task(uploads.apart(go_on.wait)) for _ in range(64)]
    try:
        await asyncio.sleep(0)
        assert await asyncio.to_thread(lambda: "answered") == "answered"
    finally:
        go_on.set()
    assert all(await asyncio.gather(*held))
    uploads.close()
