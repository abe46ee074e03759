"""The times at which texts arrive: Poisson's, and those of a trace of real traffic, scaled to a load."""

from __future__ import annotations

import csv
import gzip
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hmi.errors import InvalidInput

Seconds = NDArray[np.float64]
COLUMN = "TIMESTAMP"


def poisson(count: int, rate: float, seed: int) -> Seconds:
    """[count] ascending seconds from the start, with independent gaps of 1 / `rate` in the mean."""
    times: Seconds = np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, count))
    return times


def traced(stamps: Seconds, count: int, rate: float, seed: int) -> Seconds:
    """[count] ascending seconds: consecutive arrivals of a trace from a random one on.

    The gaps are scaled to 1 / `rate` in the mean, so that bursts and pauses keep their proportions. Behind
    the trace's last arrival its first follows.
    """
    gaps = np.diff(stamps)
    at = (np.random.default_rng(seed).integers(len(gaps)) + np.arange(count)) % len(gaps)
    times: Seconds = np.cumsum(gaps[at]) / (gaps[at].mean() * rate)
    return times


def piecewise(rates: Seconds, interval_s: float, seed: int) -> Seconds:
    """Ascending seconds of a Poisson process whose rate is `rates[i]` in the i-th interval."""
    draw = np.random.default_rng(seed)
    counts = draw.poisson(rates * interval_s)
    times: Seconds = np.sort(np.repeat(np.arange(len(rates)), counts) + draw.random(counts.sum()))
    return times * interval_s


def per_second(stamps: Seconds) -> Seconds:
    """The number of arrivals in each second from the first one on, but not in the last, which the trace may
    end within."""
    return np.bincount((stamps - stamps[0]).astype(np.int64))[:-1].astype(np.float64)


def read_trace(folder: Path | None) -> Seconds | None:
    """The arrivals in the first file of `folder` named *.csv.gz, in ascending seconds; None without a folder.

    Raises InvalidInput if there is no such file, or if it has no column TIMESTAMP.
    """
    if folder is None:
        return None
    files = sorted(folder.glob("*.csv.gz"))
    if not files:
        raise InvalidInput(f"{folder} holds no file *.csv.gz: name the folder of the traces", field="traces")
    with gzip.open(files[0], "rt") as file:
        rows = csv.DictReader(file)
        if COLUMN not in (rows.fieldnames or ()):
            raise InvalidInput(f"{files[0]} has no column {COLUMN}: name another folder", field="traces")
        stamps = sorted(datetime.fromisoformat(row[COLUMN][:26]).timestamp() for row in rows)
    return np.array(stamps)
