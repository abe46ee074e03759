"""Lets Label Studio's converter write its text forms of tasks, and its checks read predictions.

Reads {"exports": {name: {"config", "tasks"}}, "predictions": …} from standard input.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from label_studio_sdk.converter import Converter
from label_studio_sdk.label_interface import LabelInterface

FORMS = ("JSON", "JSON_MIN", "CSV", "TSV", "CONLL2003")
told = json.load(sys.stdin)
for name, export in told.get("exports", {}).items():
    tasks = Path(f"{name}.json")
    tasks.write_text(json.dumps(export["tasks"]))
    for form in FORMS:
        Converter(export["config"], ".").convert(str(tasks), f"{name}-{form}", form, is_dir=False)
for name, given in told.get("predictions", {}).items():
    interface = LabelInterface(given["config"])
    # validate_task would call validate_prediction without a prediction.
    predictions = [each for task in given["tasks"] for each in task["predictions"]]
    problems = [p for each in predictions for p in interface.validate_prediction(each, return_errors=True)]
    problems += [str(task) for task in given["tasks"] if not interface.validate_task({"data": task["data"]})]
    Path(f"{name}-problems.json").write_text(json.dumps(problems))
