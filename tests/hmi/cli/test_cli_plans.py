"""What the batch scripts and the parser of options accept."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import click
import pytest

from hmi.cli.framework.options import nested
from hmi.cli.tenants.batch_state import Outcome, State
from hmi.cli.tenants.plans import read_onboarding
from hmi.cli.tenants.plots import read_plots
from hmi.config import Settings
from hmi.errors import InvalidInput
from hmi.sizes import parse_bytes


def test_folder_of_tenants(tmp_path: Path) -> None:
    for name in ("acme", "zeta"):
        (tmp_path / name).mkdir()
        told = {"model": "intent", "domain": "minilm", "task": "classification", "options": {"epochs": 2}}
        (tmp_path / name / "model.json").write_text(json.dumps(told))
        (tmp_path / name / "train.jsonl").write_text("{}\n")
    (tmp_path / "zeta" / "dev.jsonl").write_text("{}\n")
    entries = read_onboarding(tmp_path)
    assert [e.id for e in entries] == ["acme.intent", "zeta.intent"]
    assert entries[0].options == {"epochs": 2}
    assert entries[0].dev is None
    assert entries[1].dev == tmp_path / "zeta" / "dev.jsonl"


def test_table_of_tenants(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    table = tmp_path / "plan.csv"
    lines = [
        "tenant,model,domain,task,data,options",
        'acme,intent,minilm,pair,rows.jsonl,"{""epochs"": 3}"',
        "zeta,spam,minilm,tagging,rows.jsonl,",
    ]
    table.write_text("\n".join(lines))
    first, second = read_onboarding(table)
    assert (first.id, first.task, first.data, first.options) == (
        "acme.intent",
        "pair",
        tmp_path / "rows.jsonl",
        {"epochs": 3},
    )
    assert second.options == {}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"tenant": "Acme", "model": "m", "domain": "d", "task": "pair", "data": "rows.jsonl"}, "not a name"),
        ({"tenant": "acme", "model": "m", "domain": "d", "task": "pair"}, "'data'"),
        ({"tenant": "acme", "model": "m", "domain": "d", "task": "pair", "data": "gone"}, "no file"),
        (
            {"tenant": "acme", "model": "m", "domain": "d", "task": "pair", "data": "rows.jsonl", "x": "1"},
            "'x'",
        ),
    ],
)
def test_bad_rows_are_named(row: dict[str, str], told: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    (tmp_path / "plan.json").write_text(json.dumps([row]))
    with pytest.raises(InvalidInput, match=told):
        read_onboarding(tmp_path / "plan.json")


def test_a_model_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    row = {"tenant": "acme", "model": "m", "domain": "d", "task": "pair", "data": "rows.jsonl"}
    (tmp_path / "plan.json").write_text(json.dumps([row, row]))
    with pytest.raises(InvalidInput, match="twice"):
        read_onboarding(tmp_path / "plan.json")


def test_table_of_plots(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text\n")
    (tmp_path / "plan.csv").write_text(
        "domain,corpus,alpha,pretrain\nminilm/a,text.txt,20,yes\nminilm/b,text.txt,,\n"
    )
    first, second = read_plots(tmp_path / "plan.csv", 50)
    assert (str(first.domain), first.alpha, first.pretrain) == ("minilm/a", 20, True)
    assert (second.alpha, second.pretrain) == (50, False)
    (tmp_path / "plan.csv").write_text(
        "domain,corpus,alpha,budget\nminilm/a,text.txt,,1.5M\nminilm/b,text.txt,9,\n"
    )
    assert [(p.alpha, p.budget) for p in read_plots(tmp_path / "plan.csv", 50)] == [
        (None, 3 << 19),
        (9, None),
    ]
    for wrong in ("20,30M", ",many", ",0", ",nan", ",-5K"):
        (tmp_path / "plan.csv").write_text(f"domain,corpus,alpha,budget\nminilm/a,text.txt,{wrong}\n")
        with pytest.raises(InvalidInput, match="budget"):
            read_plots(tmp_path / "plan.csv", 50)
    (tmp_path / "plan.csv").write_text("domain,corpus,alpha\nminilm/a,text.txt,much\n")
    with pytest.raises(InvalidInput, match="alpha"):
        read_plots(tmp_path / "plan.csv", 50)


def test_state_survives_and_keys_are_private(tmp_path: Path) -> None:
    state = State(tmp_path / "state.json", tmp_path / "keys.json")
    state.keep_key("acme", "hmi_secret")
    state.keep(Outcome("acme.intent", "failed", "why", "j1", 2.0))
    again = State(tmp_path / "state.json", tmp_path / "keys.json")
    assert again.key_of("acme") == "hmi_secret"
    assert again.of("acme.intent") == Outcome("acme.intent", "failed", "why", "j1", 2.0)
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600


def test_options_nest() -> None:
    found = nested(("epochs=3", "module.rank=8", "module.kind=lora", "lr=0.5"))
    assert found == {"epochs": 3, "module": {"rank": 8, "kind": "lora"}, "lr": 0.5}
    for bad in (("epochs",), ("module=1", "module.rank=8")):
        with pytest.raises(click.BadParameter):
            nested(bad)


@pytest.mark.parametrize("text", ["5M", "5MB", "5MiB", "5 mb", "5.0M", "5120K", "5242880", "5242880B"])
def test_a_size_is_read_however_people_write_it(text: str) -> None:
    assert parse_bytes(text) == 5 << 20
    assert Settings.from_env({"HMI_PLOT_MAX_BYTES": text}).plot_max_bytes == 5 << 20


@pytest.mark.parametrize(
    "text", ["", "M", "5X", "5MM", "-5M", "nan", "inf", "1e5", "5 M B", "0x10", "٥M", "2000000T"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_bytes(text)
