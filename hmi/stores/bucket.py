"""The place in object storage that nodes share: a folder, or a URL such as s3://bucket/prefix."""

from __future__ import annotations

from pathlib import Path


def place_in(bucket: str, part: str) -> str:
    """The place of one part of the bucket: `registry`, `plots` or `files`."""
    return f"{bucket.rstrip('/')}/{part}" if "://" in bucket else str(Path(bucket).expanduser() / part)
