"""The examples of docs/your-data.md: each file is checked, and the page shows what the command says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from hmi.cli import main
from hmi.cli.models.preannotations import label_studio_task
from hmi.training.data.batch_texts import read_batch

PAGE = Path(__file__).resolve().parents[3] / "docs" / "your-data.md"
EXAMPLE = re.compile(
    r'^```\w+ title="([^"]+)"\n(.*?)^```\n\n```\n\$ hmi (.+?)\n(.*?)^```$', re.DOTALL | re.MULTILINE
)
EXAMPLES = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))


def test_every_file_of_the_page_is_an_example() -> None:
    assert len(EXAMPLES) == PAGE.read_text(encoding="utf-8").count(" title=") > 10


@pytest.mark.parametrize(("name", "content", "command", "said"), EXAMPLES, ids=[each[0] for each in EXAMPLES])
def test_the_check_says_what_the_page_shows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str,
    command: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit):
        main(shlex.split(command))
    out, err = capsys.readouterr()
    assert (out + err).strip() == said.strip()


def test_the_pre_annotations_of_the_page_are_those_that_hmi_writes() -> None:
    [content] = [each[1] for each in EXAMPLES if each[0] == "tasks.json"]
    for task, text in zip(json.loads(content), read_batch(content.encode()), strict=True):
        [prediction] = task["predictions"]
        entities = [
            {**each["value"], "label": each["value"]["labels"][0], "score": each["score"]}
            for each in prediction["result"]
        ]
        assert label_studio_task(text, {"entities": entities}, prediction["model_version"]) == task
