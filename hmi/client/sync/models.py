# Made by scripts/sync_client.py of hmi/client/aio/models.py: change that file.
"""Models: from rows to versions, their bounds and their exchange."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from hmi.client.answers import Adapter, Cascade, Exits, FeedbackTaken, Model, Prediction, Task, TokenProfile
from hmi.client.calls import Call, change, checked, delete, fields, get, segment
from hmi.client.file_checks import FileCheck
from hmi.client.sync.jobs import ENDLESS, Job
from hmi.client.sync.resources import Resource
from hmi.client.uploads import Data, parts

Publish = Literal["if-better", "always", "never"]
Label = str | float | list[str]


class Models(Resource):
    def list(
        self,
        *,
        tenant: str | None = None,
        domain: str | None = None,
        task: Task | None = None,
        limit: int | None = None,
    ) -> Iterator[Model]:
        """Yield models, page by page; at most `limit`."""
        after: str | None = None
        left = ENDLESS if limit is None else limit
        while left > 0:
            asked = get(
                "/manage/models", tenant=tenant, domain=domain, task=task, after=after, limit=min(left, 1000)
            )
            page = self._session.send(asked)
            for model in page["models"]:
                yield checked(Model.model_validate, model)
                left -= 1
            after = page["next"]
            if after is None:
                return

    def get(self, model: str) -> Model:
        return checked(Model.model_validate, self._session.send(get(_path(model))))

    def check(
        self,
        data: Data,
        *,
        task: Task | None = None,
        corpus: bool = False,
        skip_bad_rows: int = 0,
        options: dict[str, Any] | None = None,
    ) -> FileCheck:
        """Check rows, or a corpus, without a job. options: as of `create`, those that say how to read it."""
        there, sent = parts({"data": data}, self._session.config.compress)
        body = {
            "corpus": corpus,
            "skip_bad_rows": skip_bad_rows,
            **fields(task=task, options=options),
            **there,
        }
        call = Call("POST", "/manage/check", body, uploads=sent, repeatable=True)
        return checked(FileCheck.model_validate, self._session.send(call))

    def create(
        self,
        model: str,
        data: Data | None = None,
        *,
        domain: str,
        task: Task = "classification",
        dev: Data | None = None,
        unlabelled: Data | None = None,
        options: dict[str, Any] | None = None,
        once: str | None = None,
    ) -> Job:
        """Fine-tune a new model on rows. `data` may be a path, rows as mappings, or a data frame.

        Among the options, `text_column`, `label_column` and so on say how to read it.
        """
        body = {"model": model, "domain": domain, "task": task, **fields(options=options)}
        return self.start("/manage/models", body, once, data=data, dev=dev, unlabelled=unlabelled)

    def update(
        self,
        model: str,
        data: Data | None = None,
        *,
        dev: Data | None = None,
        unlabelled: Data | None = None,
        options: dict[str, Any] | None = None,
        publish: Publish = "if-better",
        once: str | None = None,
    ) -> Job:
        """Fine-tune a new version. `publish` says when it begins to answer."""
        body = {"publish": publish, **fields(options=options)}
        path = f"{_path(model)}/update"
        return self.start(path, body, once, data=data, dev=dev, unlabelled=unlabelled)

    def rollback(self, model: str, version: int) -> Model:
        """Let another version answer."""
        call = change(f"{_path(model)}/rollback", {"version": version}, "POST")
        return checked(Model.model_validate, self._session.send(call))

    def delete(self, model: str) -> None:
        self._session.send(delete(_path(model)))

    def set_objective(self, model: str, **bounds: float | None) -> Model:
        """Set bounds: `agreement`, `deadline_ms`, `agreement_under_load`. None removes one; without any, all
        are removed."""
        answer = self._session.send(change(_path(model), {"objective": bounds or None}))
        return checked(Model.model_validate, answer)

    def exits(self, model: str) -> Exits:
        return checked(Exits.model_validate, self._session.send(get(f"{_path(model)}/exits")))

    def feedback(self, model: str, labels: Iterable[tuple[Prediction, Label]]) -> FeedbackTaken:
        """Send right answers that became known after the predictions."""
        items = [{"id": p.answer_id, "index": p.index, "label": label} for p, label in labels]
        answer = self._session.send(Call("POST", f"{_path(model)}/feedback", {"items": items}))
        return checked(FeedbackTaken.model_validate, answer)

    def train_ramps(
        self,
        model: str,
        *,
        data: Data | None = None,
        unlabelled: Data | None = None,
        skip_bad_rows: int = 0,
        options: dict[str, Any] | None = None,
        once: str | None = None,
    ) -> Job:
        """Train ramps, by which texts may leave early. Give rows, texts or both."""
        body = {"skip_bad_rows": skip_bad_rows, **fields(options=options)}
        return self.start(f"{_path(model)}/ramps", body, once, data=data, unlabelled=unlabelled)

    def profile_tokens(
        self,
        model: str,
        data: Data,
        *,
        dev: Data | None = None,
        unlabelled: Data | None = None,
        prompts: bool = True,
        skip_bad_rows: int = 0,
        options: dict[str, Any] | None = None,
        once: str | None = None,
    ) -> Job:
        """Profile what token adaptation does to the model's answers."""
        body = {"prompts": prompts, "skip_bad_rows": skip_bad_rows, **fields(options=options)}
        path = f"{_path(model)}/tokens"
        return self.start(path, body, once, data=data, dev=dev, unlabelled=unlabelled)

    def tokens(self, model: str) -> TokenProfile:
        return checked(TokenProfile.model_validate, self._session.send(get(f"{_path(model)}/tokens")))

    def profile_cascade(
        self,
        model: str,
        data: Data,
        *,
        small: str | None = None,
        skip_bad_rows: int = 0,
        options: dict[str, Any] | None = None,
        once: str | None = None,
    ) -> Job:
        """Profile a cascade in which `small`, or a ramp of the model itself, answers first."""
        body = {"skip_bad_rows": skip_bad_rows, **fields(small=small, options=options)}
        return self.start(f"{_path(model)}/cascade", body, once, data=data)

    def cascade(self, model: str) -> Cascade:
        return checked(Cascade.model_validate, self._session.send(get(f"{_path(model)}/cascade")))

    def delete_cascade(self, model: str) -> None:
        self._session.send(delete(f"{_path(model)}/cascade"))

    def import_adapter(
        self,
        model: str,
        *,
        domain: str,
        adapter_config: Data,
        adapter: Data,
        task: Task = "classification",
        options: dict[str, Any] | None = None,
        once: str | None = None,
        **files: Data | None,
    ) -> Job:
        """Make a model from an adapter of the `adapters` library. `files`: head_config, head, data, dev."""
        body = {"model": model, "domain": domain, "task": task, **fields(options=options)}
        given = {"adapter_config": adapter_config, "adapter": adapter, **files}
        return self.start("/manage/models/import", body, once, **given)

    def export_adapter(self, model: str) -> Adapter:
        return checked(Adapter.model_validate, self._session.send(get(f"{_path(model)}/module")))


def _path(model: str) -> str:
    return f"/manage/models/{segment(model)}"
