"""The choice of an executor for a root on this machine."""

from __future__ import annotations

import logging

from hmi.execution.base import Executor
from hmi.execution.packed import PackedExecutor, pack_upper
from hmi.model.prepacked import described
from hmi.model.root import Root

log = logging.getLogger("hmi.execution")


def executor_for(root: Root) -> Executor:
    """Return an executor that owns the root's upper layers. Prepares the layers in place."""
    pack_upper(root.upper)
    executor = PackedExecutor(root.upper, root.info.shape)
    log.info(
        "root %s: reordered linear maps against plain ones on this machine: %s", root.info.name, described()
    )
    return executor
