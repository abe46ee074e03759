"""The ways of computing tenants' changes on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmi_kernels.modules import ops

from hmi.execution.cuda.batched import BatchedProducts
from hmi.execution.cuda.changes import Loop, Way, WayName
from hmi.execution.cuda.segmented import Changed, Segmented
from hmi.execution.cuda.slots import Entry, Slots
from hmi.execution.cuda.upload import ArrayUpload
from hmi.execution.segments import Segment


@dataclass(frozen=True)
class Ways:
    """One way for all batches."""

    name: WayName
    launcher: ops.Launcher | None = None
    """The kernels; needed for `kernel`."""

    def of(self, segments: Sequence[Segment[Entry]], slots: Slots, upload: ArrayUpload) -> Way:
        """Return the way for a batch's segments; what it needs on the device is added to `upload`."""
        if self.name == "kernel":
            assert self.launcher is not None
            return Segmented(segments, Changed(segments, slots, upload), upload, self.launcher)
        return BatchedProducts(segments, slots, upload) if self.name == "groups" else Loop(segments)
