"""A control: a model with ramps that were taught on shuffled answers. Almost no text may leave by them."""

from __future__ import annotations

from collections.abc import Sequence

from hmi.core import ModelId, now
from hmi.jobs.train_ramps import divided
from hmi.manager import Manager
from hmi.model.artefact import Artefact
from hmi.model.root import load_root
from hmi.model.tasks import task_of_version
from hmi.stores.layout import Layout
from hmi.training.data.rows import Row
from hmi.training.features import dev_examples
from hmi.training.ramps import Texts, train_ramps
from hmi.training.row_keys import joined_keys
from hmi.training.splits import encoded_split
from hmi.training.trainer import reading_trainer

SEED = 1


def publish_shuffled(manager: Manager, model: ModelId, rows: Sequence[Row], name: ModelId) -> None:
    """Publish the live version of `model` under another name, with ramps trained on these texts as the job
    trains them, but with the answers shuffled among the texts."""
    version = manager.registry.model(model).live
    assert version.module is not None, "all models are trained"
    root = load_root(Layout(manager.settings.data).root(version.root, version.root_version))
    stored, task = manager.adapters.get(version.artefact), task_of_version(version)
    parts = divided(list(rows), joined_keys([]))
    with manager.plots.reader(version.plot_version) as reader:
        trainer = reading_trainer(root, version.module, task, Artefact.split(stored))
        fit, held = (
            Texts(split, dev_examples(root, reader, split, trainer.plan.lexical))
            for some in (parts.fit, parts.held)
            for split in [
                encoded_split(some, root.tokenizer, version.max_length, windows=version.rules.windows)
            ]
        )
        ramps = train_ramps(trainer, trainer.reading(task), fit, held, shuffled=SEED)
    kept = {key: value for key, value in stored.items() if not key.startswith("ramps.")}
    tensors = {**kept, **Artefact(ramps=ramps.tensors).joined()}
    artefact, size = manager.adapters.put(tensors, manager.adapters.about(version.artefact))
    changed = {"version": 0, "artefact": artefact, "ramps": ramps.sites, "bytes": size, "created": now()}
    manager.registry.publish_model(name, version.model_copy(update={**changed, "job": f"shuffled-{model}"}))
