"""Forty files as people have them: what is unambiguous is taken, and the rest is told its cause and its cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hmi.forty_files import File, files, page, told

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "2026-11-forty-files.md"


@pytest.mark.parametrize("file", files(), ids=lambda file: file.name)
def test_each_file_gets_what_it_should(file: File) -> None:
    said = told(file)
    assert file.expected in said
    assert "Traceback" not in said


def test_there_are_forty_and_the_page_has_them() -> None:
    assert len({file.name for file in files()}) == len(list(files())) >= 40
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.hmi.forty_files > that page"
