"""Profiles: kept, read back, ignored where they are damaged or foreign, dropped with their root; and the
choice made of them."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hmi.cli.machine.profile import changes_of
from hmi.execution import choose
from hmi.execution.choose import executor_for
from hmi.execution.fastest import fastest
from hmi.execution.machine import fingerprint
from hmi.manager import Manager
from hmi.model.sources.root import Root
from hmi.stores import profiles as of_profiles
from hmi.stores.layout import Layout
from hmi.stores.profiles import MOST_MACHINES, Measured, Profile, Profiles, _hash_of
from tests.hmi.execution.test_fused import BERT, upper
from tests.hmi.labs.manager_lab import add_root, root_record

BATCHES = {"short": (16,), "long": (128,)}


def measured(name: str, short: float, long: float, cosine: float = 1.0) -> Measured:
    return Measured(name=name, us_per_token={"short": short, "long": long}, cosine=cosine)


def profile(*found: Measured, machine: dict[str, str] | None = None) -> Profile:
    here = fingerprint() if machine is None else machine
    found = found or (measured("packed fp32", 100, 50),)
    return Profile(machine=here, measured_at="2026-01-01T00:00:00Z", batches=BATCHES, measured=found)


def path_of(layout: Layout, root: str = "tiny", machine: dict[str, str] | None = None) -> Path:
    """The file of a profile."""
    return Profiles(layout)._path(root, "r1", fingerprint() if machine is None else machine)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    made.root("tiny", "r1").mkdir(parents=True)
    return made


@pytest.fixture
def root(tiny_root: Root) -> Root:
    """A root whose sizes fit the compiled kernels."""
    info = replace(tiny_root.info, shape=BERT, name="tiny", version="r1")
    return replace(tiny_root, info=info, upper=upper(BERT))


def test_a_profile_comes_back_on_its_machine_only(layout: Layout) -> None:
    here, there = profile(), profile(machine={"processor": "another"})
    Profiles(layout).put("tiny", "r1", there)
    Profiles(layout).put("tiny", "r1", here)
    profiles = Profiles(layout)
    assert profiles.get("tiny", "r1", fingerprint()) == here
    assert profiles.get("tiny", "r1", there.machine) == there
    assert profiles.get("tiny", "r1", {"processor": "a third"}) is None
    assert profiles.get("tiny", "r2", fingerprint()) is None


def test_a_new_profile_replaces_the_machine_s_own_and_old_machines_leave(layout: Layout) -> None:
    profiles = Profiles(layout)
    for i in range(MOST_MACHINES + 2):
        machine = {"processor": str(i)}
        profiles.put("tiny", "r1", profile(machine=machine))
        os.utime(path_of(layout, "tiny", machine), (i, i))
    newer = profile(measured("packed fp32", 1, 1), machine={"processor": "5"})
    profiles.put("tiny", "r1", newer)
    assert profiles.get("tiny", "r1", {"processor": "5"}) == newer
    kept = [i for i in range(10) if profiles.get("tiny", "r1", {"processor": str(i)}) is not None]
    assert kept == list(range(2, MOST_MACHINES + 2))


def test_two_processes_that_write_at_once_both_keep_their_machine_s_profile(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = profile(machine={"processor": "mine"}), profile(machine={"processor": "theirs"})
    write = of_profiles.write_json

    def late(path: Path, value: Any) -> None:
        monkeypatch.undo()
        Profiles(layout).put("tiny", "r1", theirs)
        write(path, value)

    monkeypatch.setattr(of_profiles, "write_json", late)
    Profiles(layout).put("tiny", "r1", mine)
    for one in (mine, theirs):
        assert Profiles(layout).get("tiny", "r1", one.machine) == one


@pytest.mark.parametrize("damage", ["cut", "flip", "list", "binary", "folder"])
def test_a_damaged_profile_is_none_and_is_written_anew(
    layout: Layout, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    profiles, path = Profiles(layout), path_of(layout)
    profiles.put("tiny", "r1", profile())
    whole = path.read_bytes()
    changed = {"cut": whole[:-20], "flip": whole.replace(b"50.0", b"51.0"), "list": b"[]", "binary": b"\xff"}
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        assert changed[damage] != whole
        path.write_bytes(changed[damage])
    with caplog.at_level(logging.WARNING, "hmi.stores"):
        assert profiles.get("tiny", "r1", fingerprint()) is None
    assert "has to be measured again" in caplog.text
    if damage != "folder":
        profiles.put("tiny", "r1", profile())
        assert profiles.get("tiny", "r1", fingerprint()) == profile()


@pytest.mark.parametrize("short", [0.0, -1.0, float("nan"), float("inf"), None])
def test_times_that_cannot_be_compared_are_damage(layout: Layout, short: float | None) -> None:
    times = {"long": 50.0} if short is None else {"long": 50.0, "short": short}
    assert_damaged(layout, us_per_token=times)


def test_an_executor_of_an_unknown_name_is_damage(layout: Layout) -> None:
    assert_damaged(layout, name="fused fp64")


def assert_damaged(layout: Layout, **changed: object) -> None:
    """A profile whose first executor is changed, with a right checksum, is not read."""
    kept = profile().model_dump(mode="json")
    kept["measured"][0].update(changed)
    path = path_of(layout)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"sha256": _hash_of(kept), "profile": kept}))
    assert Profiles(layout).get("tiny", "r1", fingerprint()) is None


def test_a_profile_nested_too_deeply_is_damage(layout: Layout) -> None:
    path = path_of(layout)
    path.parent.mkdir(parents=True)
    path.write_text("[" * 100_000)
    assert Profiles(layout).get("tiny", "r1", fingerprint()) is None


def test_a_root_that_was_deleted_meanwhile_gets_no_profile(layout: Layout) -> None:
    Profiles(layout).put("gone", "r1", profile())
    assert not layout.profiles.exists()


def test_a_root_s_profiles_go_with_it(manager: Manager) -> None:
    add_root(manager, "tiny")
    add_root(manager, "tiny-2")
    layout = Layout(manager.settings.data)
    for name in ("tiny", "tiny-2"):
        manager.profiles.put(name, "r1", profile())
    manager.delete_root("tiny")
    assert not path_of(layout).exists()
    assert path_of(layout, "tiny-2").exists()


def test_an_import_drops_the_profiles_under_its_name(manager: Manager, tiny_source: Path) -> None:
    path = Layout(manager.settings.data).profiles_of("tiny", "r0") / "0.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{}")
    manager.import_root("tiny", str(tiny_source), texts={"text-0.txt": b"some words of text\n" * 50})
    assert not path.exists()


def test_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, fp32 = measured("packed fp32", 100, 50), measured("fused fp32", 60, 40)
    # bf16 has the least sum, but fp32 the least mean of ratios.
    bf16, int8 = measured("fused bf16", 20, 60, 0.9999), measured("fused int8", 1, 1, 0.99)
    found = [packed, fp32, bf16, int8]
    assert fastest(found, "auto") == fp32  # .7 beside .7: the first of equals
    assert fastest([packed, bf16, fp32], "auto") == bf16
    assert fastest(found, "fp32") == fp32
    assert fastest(found, "bf16") == bf16
    assert fastest(found, "int8") == int8
    assert fastest([packed], "int8") == packed
    assert fastest([*found, measured("fused int16", 50, 30)], "auto").name == "fused int16"
    assert fastest([packed, measured("fused bf16", 1, 1, 0.998)], "auto") == packed


def test_a_server_measures_once_and_keeps_the_choice(
    root: Root, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = executor_for(replace(root, upper=upper(BERT)), "auto", Profiles(layout), wait=True)
    kept = Profiles(layout).get("tiny", "r1", fingerprint())
    assert kept is not None
    assert kept.measured == first.measured

    def measured_again(*_: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(choose, "_measured_all", measured_again)
    # Turned round: whatever is slowest is now the fastest, so the choice can come from the file only.
    slowest = max(kept.measured, key=lambda m: m.us_per_token["long"]).name
    times = {name: 1.0 if name == slowest else 9.0 for name in (m.name for m in kept.measured)}
    turned = kept.model_copy(
        update={
            "measured": tuple(
                m.model_copy(update={"us_per_token": dict.fromkeys(m.us_per_token, times[m.name])})
                for m in kept.measured
            )
        }
    )
    Profiles(layout).put("tiny", "r1", turned)
    again = executor_for(replace(root, upper=upper(BERT)), "auto", Profiles(layout), wait=True)
    assert again.name == slowest == fastest(turned.measured, "auto").name
    assert again.measured == turned.measured


def test_a_damaged_profile_is_measured_again(root: Root, layout: Layout) -> None:
    path = path_of(layout)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not json")
    chosen = executor_for(root, "auto", Profiles(layout), wait=True)
    assert chosen.measured
    kept = Profiles(layout).get("tiny", "r1", fingerprint())
    assert kept is not None
    assert kept.measured == chosen.measured


def test_a_profile_that_cannot_be_kept_changes_nothing(
    root: Root, layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    layout.profiles.write_bytes(b"a file in the folder's place")
    with caplog.at_level(logging.ERROR, "hmi.execution"):
        chosen = executor_for(root, "auto", Profiles(layout), wait=True)
    assert chosen.measured
    assert "could not be kept" in caplog.text


def test_what_a_new_measurement_says_otherwise() -> None:
    old = profile(measured("packed fp32", 100, 50), measured("fused bf16", 50, 25))
    new = profile(measured("packed fp32", 110, 50), measured("fused bf16", 500, 25))
    assert changes_of(old, old, "auto") == []
    found = changes_of(old, new, "auto")
    assert found == [
        "now packed fp32 is the fastest; it was fused bf16",
        "fused bf16 takes 500 µs a token (short); it took 50",
    ]


def test_no_view_without_a_profile(manager: Manager) -> None:
    from hmi.api.views.records import root_view

    record = root_record("tiny")
    assert root_view(record, None, "auto").execution is None
    found = root_view(record, profile(measured("packed fp32", 9, 9), measured("fused bf16", 1, 1)), "auto")
    assert found.execution is not None
    assert (found.execution.executor, found.execution.precision) == ("fused bf16", "bf16")
