"""A model's state in one small file, written when it is put away and read at the model's next text.

A file is deleted when it is read. So after a crash there is none, and the model begins anew: what was counted
since the last file is lost, and with it the account that the guarantee rests on. Then the guarantee holds for
the stream since the crash, with an error of its own. Audits under way are written as if they had disagreed.
Texts that have no answer yet are not counted: they run to the end. Files are not synced, since compute
threads write them: after a power cut one may be damaged, and then its model begins anew, too.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors.numpy import load, save

from hmi.stages.early_exit.account import Account, Count
from hmi.stages.early_exit.control import Control, ExitBounds, Policy
from hmi.stages.early_exit.drift import Alarm
from hmi.stages.early_exit.evidence import Audits
from hmi.stages.early_exit.ladder import PolicyTests
from hmi.stores.failures import log_failure

log = logging.getLogger("hmi.stages")
KEPT = 1024
"""The newest records that are written."""
ACCOUNT = ("texts", "phase", "used")
PLAIN = ("wait", "windows", "due", "policies", "alarms", "fruitless", "off", "skipped", "asleep")
"""The control's fields that are numbers."""


def write(path: Path, control: Control, besides: dict[str, Any]) -> None:
    """Write the control's state, and what JSON can hold besides.

    A failure is logged: the model begins anew.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        body = packed(control, besides)
        path.write_bytes(xxhash.xxh3_64_digest(body) + body)
    except Exception as error:
        log_failure(log, "the state of a model's early exits could not be written", error)


def take(path: Path, control: Control) -> dict[str, Any] | None:
    """Put the state in this file into a new control, and delete the file. Returns what it held besides; None
    if there is no file.

    A damaged file, or one of other ramps, is deleted too, and the control stays new.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log_failure(log, "the state of a model's early exits could not be read", error)
        return None
    try:
        path.unlink()  # first, so that no two streams ever spend from one account
        if xxhash.xxh3_64_digest(data[8:]) != data[:8]:
            raise ValueError("the checksum is wrong")
        return unpack(data[8:], control)
    except Exception as error:
        log_failure(log, "the state of a model's early exits is damaged and begins anew", error)
        return None


def packed(control: Control, besides: dict[str, Any]) -> bytes:
    """The control's state as bytes, with what JSON can hold besides."""
    account = control.account
    state = {
        "besides": besides,
        "terms": asdict(control.terms),
        "ramps": control.ramps,
        **{name: getattr(account, name) for name in ACCOUNT},
        "texts": account.texts - account.waiting,
        "phases": [asdict(phase) for phase in account.phases],
        "counts": [(c.wrong + len(c.pending), c.free) for c in account.counts],
        "audits": asdict(control.audits),
        "left_at": sorted(control.left_at.items()),
        "checked_at": sorted(control.checked_at.items()),
        "present": None if control.present is None else asdict(control.present),
        "tested": [asdict(ladder) for ladder in control.tested],
        **{name: getattr(control, name) for name in PLAIN},
    }
    u, agrees = control.records.newest(KEPT)
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return save({"uncertainty": u, "agrees": agrees, "state": text})


def unpack(data: bytes, control: Control) -> dict[str, Any] | None:
    """Put a state into a new control, unless it is one of other ramps. Returns what it held besides.

    If it is one of other terms, the control obeys its own (`Control.obey`).
    """
    tensors = load(data)
    state: dict[str, Any] = json.loads(tensors["state"].tobytes())
    if state["ramps"] != control.ramps:
        return None
    present = None if state["present"] is None else _policy(state["present"])
    tested = tuple(_ladder(each) for each in state["tested"])
    counts = [Count(wrong, free) for wrong, free in state["counts"]]
    wanted, terms = control.terms, ExitBounds(**state["terms"])
    numbers = {name: state[name] for name in ACCOUNT}
    account = Account(terms.loss, terms.error, **numbers, counts=counts)
    besides: dict[str, Any] = state["besides"]
    if state["phases"] != [asdict(phase) for phase in account.phases] or terms.error != wanted.error:
        return None
    control.terms, control.account, control.audits = terms, account, Audits(**state["audits"])
    control.left_at = Counter(dict(state["left_at"]))
    control.checked_at = Counter(dict(state["checked_at"]))
    control.present, control.tested = present, tested
    for name in PLAIN:
        setattr(control, name, state.get(name, getattr(control, name)))
    control.records.fill(tensors["uncertainty"], tensors["agrees"])
    if terms != wanted:
        control.obey(wanted)
    return besides


def _policy(state: dict[str, Any]) -> Policy:
    alarm = state["alarm"]
    return Policy(tuple(state["thresholds"]), Alarm(**{**alarm, "score": tuple(alarm["score"])}))


def _ladder(state: dict[str, Any]) -> PolicyTests:
    return PolicyTests(**{**state, "rungs": tuple(map(tuple, state["rungs"]))})
