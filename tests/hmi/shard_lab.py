"""A root with shards, for tests."""

from __future__ import annotations

from pathlib import Path

from hmi.model.root import Root, save_root
from hmi.stages.elastic_shards.making import make_shards


def folder_with_shards(parent: Path, root: Root, source: Path) -> Path:
    """Publish `root` below `parent`, with shards in the order of the weights. Returns its folder."""
    made = parent / "tiny" / "v1"
    save_root(made, root, source / "tokenizer.json")
    make_shards(made)
    return made
