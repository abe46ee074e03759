"""Compressed uploads are expanded, and the limit holds for the expanded size."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

import pytest
import zstandard

from hmi.api.body.expand import decompress_to
from hmi.errors import InvalidData, TooLarge

TEXT = b"a line of text\n" * 5000


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize(
    "sent",
    [
        TEXT,
        gzip.compress(TEXT),
        zstd(TEXT),
        gzip.compress(TEXT[:300]) + gzip.compress(TEXT[300:]),
        zstd(TEXT[:300]) + zstd(TEXT[300:]),
        gzip.compress(TEXT[:300]) + bytes(1 << 17) + gzip.compress(TEXT[300:]),
    ],
    ids=["plain", "gzip", "zstd", "two gzip members", "two zstd frames", "two gzip members with padding"],
)
def test_expands(sent: bytes, tmp_path: Path) -> None:
    assert decompress_to(io.BytesIO(sent), tmp_path / "out", "data", len(TEXT)) == len(TEXT)
    assert (tmp_path / "out").read_bytes() == TEXT


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd], ids=["plain", "gzip", "zstd"])
def test_limit_holds_for_the_expanded_size(pack: object, tmp_path: Path) -> None:
    bomb = pack(b"\0" * (8 << 20))  # type: ignore[operator]
    with pytest.raises(TooLarge) as caught:
        decompress_to(io.BytesIO(bomb), tmp_path / "out", "data", 1 << 20)
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
        decompress_to(io.BytesIO(bytes(sent)), tmp_path / "out", "data", 1 << 20)
    assert not (tmp_path / "out").exists()
