"""Which root a depth means: the domain's, or the one of the same source that computes all layers."""

from __future__ import annotations

from hmi.core import Depth, DomainId
from hmi.errors import InvalidInput
from hmi.stores.records.registry import Registry


def root_for(registry: Registry, depth: Depth, branch: DomainId, now: str, field: str) -> str:
    """The root of a training's version. now: that of the weights that it starts from, or else the domain's.

    Raises InvalidInput, which names `field`, if no root has the depth.
    """
    own = registry.root(branch.root)
    if depth == "fast" and not own.split:
        raise InvalidInput(
            f"root {own.name} computes all layers: give full or auto, or name a domain of a root that looks "
            "up its lower layers",
            field=field,
        )
    if depth != "full":
        return now if depth == "auto" else own.name
    if not registry.root(now).split:
        return now
    found = registry.full_root(own.name)
    if found is None:
        source = own.source.get("name")
        raise InvalidInput(
            f"no root computes all layers of {source}: an administrator imports one "
            f"(hmi root import {own.name}-full {source} --split 0)",
            field=field,
        )
    return found.name
