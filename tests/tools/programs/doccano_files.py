"""Lets doccano import rows into a database in memory, and export them in each of its forms.

No server runs: doccano's importer and exporter are called as its own background tasks call them. Reads
{name: {"kind", "rows"}} from standard input.
"""

# ruff: noqa: E402 (Django's settings come before the models)
from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

# doccano is a folder of Django applications, which import each other by their own names.
sys.path.insert(0, importlib.util.find_spec("backend").submodule_search_locations[0])

import django
from django.conf import settings

APPLICATIONS = (
    "polymorphic django_drf_filepond roles projects label_types labels examples data_export data_import"
)
settings.configure(
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    BASE_DIR=str(Path.cwd()),
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", *APPLICATIONS.split()],
    # The tables as the models have them: the migrations need all of doccano's applications.
    MIGRATION_MODULES=dict.fromkeys(["contenttypes", "auth", *APPLICATIONS.split()]),
    DJANGO_DRF_FILEPOND_UPLOAD_TMP=str(Path("uploads").absolute()),
    DJANGO_DRF_FILEPOND_FILE_STORE_PATH=str(Path("stored").absolute()),
    ROLE_PROJECT_ADMIN="project_admin",
    ROLE_ANNOTATOR="annotator",
    ROLE_ANNOTATION_APPROVER="annotation_approver",
)
django.setup()

from data_export.models import ExportedExample
from data_export.pipeline.dataset import Dataset
from data_export.pipeline.factories import create_comment, create_formatter, create_labels, create_writer
from data_export.pipeline.services import ExportApplicationService
from data_import.datasets import load_dataset
from data_import.pipeline.catalog import JSONL, RELATION_EXTRACTION
from data_import.pipeline.readers import FileName
from django.contrib.auth.models import User
from django.core.management import call_command
from examples.models import Comment, Example
from projects import models
from projects.models import ProjectType

KINDS = {
    "classes": (models.TextClassificationProject, ProjectType.DOCUMENT_CLASSIFICATION, {}),
    "spans": (models.SequenceLabelingProject, ProjectType.SEQUENCE_LABELING, {}),
    "relations": (models.SequenceLabelingProject, ProjectType.SEQUENCE_LABELING, {"use_relation": True}),
    "intents": (
        models.IntentDetectionAndSlotFillingProject,
        ProjectType.INTENT_DETECTION_AND_SLOT_FILLING,
        {},
    ),
}
FORMS = {"classes": ("CSV", "JSON", "JSONL", "fastText")}


def export(project, kind, name):
    for form in FORMS.get(kind, ("JSONL",)):
        examples = ExportedExample.objects.filter(project=project)
        dataset = Dataset(examples, create_labels(project, examples), create_comment(examples), True)
        writer = create_writer(form)
        service = ExportApplicationService(dataset, create_formatter(project, form), writer)
        service.export(f"{name}-{form}.{writer.extension}")


call_command("migrate", run_syncdb=True, verbosity=0)
user = User.objects.create(username="anna")
for name, given in json.load(sys.stdin).items():
    kind = given["kind"]
    of_kind, type_, options = KINDS[kind]
    project = of_kind.objects.create(name=name, project_type=type_, created_by=user, **options)
    source = Path(f"{name}.jsonl").absolute()
    source.write_text("".join(json.dumps(row) + "\n" for row in given["rows"]))
    task = RELATION_EXTRACTION if kind == "relations" else type_
    files = [FileName(str(source), source.name, source.name)]
    dataset = load_dataset(task, JSONL, files, project, encoding="utf_8")
    dataset.save(user)
    assert not dataset.errors, dataset.errors
    for example in Example.objects.filter(project=project)[: given.get("comments", 0)]:
        Comment.objects.create(example=example, user=user, text="is this right, or not?")
    export(project, kind, name)
