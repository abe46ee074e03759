"""A timeline of batches, collected on request, in the trace format that Chrome and Perfetto show.

While no trace is collected, a span costs one look at a global name. Tracks are threads of the host and
streams of a device, so the timeline shows what overlaps.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

Span = AbstractContextManager[None]
_NOTHING = nullcontext()
_now: ChromeTrace | None = None


class ChromeTrace:
    """The spans of a stretch of time, by track. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = time.perf_counter()
        self._spans: list[tuple[str, str, float, float]] = []
        self._device: list[tuple[str, str, torch.cuda.Event, torch.cuda.Event]] = []
        self._anchor: tuple[torch.cuda.Event, float] | None = None

    def add(self, track: str, name: str, begin: float, end: float) -> None:
        """Add a span; begin and end in seconds of `time.perf_counter`."""
        with self._lock:
            self._spans.append((track, name, begin - self._begun, end - self._begun))

    def events(self) -> list[dict[str, Any]]:
        """The spans as Chrome's complete events, times in microseconds; waits for a device's spans."""
        with self._lock:
            spans = [*self._spans, *(self._resolved(*one) for one in self._device)]
        tracks = {track: i for i, track in enumerate(sorted({track for track, *_ in spans}))}
        named = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "args": {"name": track}}
            for track, i in tracks.items()
        ]
        return named + [
            {
                "ph": "X",
                "name": name,
                "pid": 1,
                "tid": tracks[track],
                "ts": round(1e6 * begin, 3),
                "dur": round(1e6 * (end - begin), 3),
            }
            for track, name, begin, end in spans
        ]

    def write(self, path: Path) -> None:
        """Write the trace for chrome://tracing or ui.perfetto.dev."""
        path.write_text(json.dumps({"traceEvents": self.events(), "displayTimeUnit": "ms"}), encoding="utf-8")

    @contextmanager
    def device_span(self, track: str, name: str, stream: torch.cuda.Stream) -> Iterator[None]:
        """A span of what is enqueued on `stream` while the context lasts."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with self._lock:
            if self._anchor is None:
                anchor = torch.cuda.Event(enable_timing=True)
                anchor.record(stream)
                anchor.synchronize()  # once a trace, to place the device's clock on the host's
                self._anchor = anchor, time.perf_counter() - self._begun
        begin.record(stream)
        try:
            yield
        finally:
            end.record(stream)
            with self._lock:
                self._device.append((track, name, begin, end))

    def _resolved(
        self, track: str, name: str, begin: torch.cuda.Event, end: torch.cuda.Event
    ) -> tuple[str, str, float, float]:
        assert self._anchor is not None
        end.synchronize()
        anchor, at = self._anchor
        return track, name, at + anchor.elapsed_time(begin) / 1e3, at + anchor.elapsed_time(end) / 1e3


@contextmanager
def collected() -> Iterator[ChromeTrace]:
    """Collect the spans of all threads. Raises RuntimeError if a trace is being collected already."""
    global _now
    if _now is not None:
        raise RuntimeError("a trace is being collected already: wait for its end")
    _now = trace = ChromeTrace()
    try:
        yield trace
    finally:
        _now = None


def span(name: str, track: str | None = None) -> Span:
    """A span of the calling thread, or of `track`, while the context lasts."""
    return _NOTHING if _now is None else _host_span(_now, name, track)


@contextmanager
def _host_span(trace: ChromeTrace, name: str, track: str | None) -> Iterator[None]:
    begin = time.perf_counter()
    try:
        yield
    finally:
        trace.add(track or threading.current_thread().name, name, begin, time.perf_counter())


def device_span(track: str, name: str, stream: torch.cuda.Stream) -> Span:
    """A span of work on a CUDA stream, timed by events."""
    return _NOTHING if _now is None else _now.device_span(track, name, stream)
