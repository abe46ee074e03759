"""Each model's answer to each text, computed alone, for checks of answers under load.

Only single texts run here, without queue, batches or pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.cases.serve.engine import Serving
from hmi.core import ModelVersion
from hmi.execution.base import Executor
from hmi.execution.batch import BatchKey, Rows
from hmi.execution.packed import PackedExecutor
from hmi.model.sources.root import Root, load_root
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.heads import Head, head_from
from hmi.model.tenant.modules import TenantModule, module_from
from hmi.model.text.batching import Encoded
from hmi.stores.layout import Layout
from plot_store import Reader

KEY = BatchKey(("", ""), "cls", exact=False)


@dataclass(frozen=True)
class Alone:
    """Scores by model and text, fp32 [models, texts, labels]."""

    executor: NDArray[np.float32]
    """By the engine's own executor."""
    reference: NDArray[np.float32]
    """By packed torch in fp32, on weights that are not prepacked."""
    name: str
    """The engine's executor."""

    @property
    def difference(self) -> float:
        """The largest difference of a score between `executor` and `reference`."""
        return float(np.abs(self.executor - self.reference).max())

    def nearest(self) -> float:
        """Return the least distance between any two models. At least two models are needed.

        The distance of two models is the largest difference of their scores of the same text. If the least
        distance exceeds a check's tolerance, the check can tell any two models apart.
        """
        return _nearest(self.executor.transpose(1, 0, 2))

    def nearest_texts(self) -> float:
        """Return the least distance between two texts' scores by the same model, [texts ≥ 2]."""
        return _nearest(self.executor)


def _nearest(groups: NDArray[np.float32]) -> float:
    """Return the least distance of two rows of the same group, [groups, rows, labels]."""
    least = np.inf
    for rows in groups:
        for i in range(len(rows) - 1):
            least = min(least, float(np.abs(rows[i + 1 :] - rows[i]).max(-1).min()))
    return least


@torch.inference_mode()
def alone(serving: Serving, versions: Sequence[ModelVersion], texts: Sequence[str]) -> Alone:
    """Compute all models' scores of all texts. The engine must be idle; all models have the same labels."""
    first = versions[0]
    upper, reader = serving.bundles.upper(first).now(), serving.bundles.reader(first).now()
    assert upper is not None, "the engine has answered"
    assert reader is not None, "the engine has answered"
    folder = Layout(serving.manager.settings.data).root(first.root, first.root_version)
    plain = load_root(folder)
    packed = PackedExecutor(plain.upper, plain.info.shape)
    rows = [rows_of(plain, reader, text) for text in plain.tokenizer.encode(texts, first.max_length)]
    ours, theirs = [], []
    for version in versions:
        parts = Artefact.split(serving.manager.adapters.get(version.artefact))
        module, head = module_from(parts.module), head_from(parts.head)
        ours.append([scores(upper.executor, x, module, head) for x in rows])
        theirs.append([scores(packed, x, module, head) for x in rows])
    return Alone(np.array(ours, np.float32), np.array(theirs, np.float32), upper.executor.name)


def rows_of(root: Root, reader: Reader, text: Encoded) -> Tensor:
    """Look up one text's rows [tokens, dim], with their bias."""
    tokens = np.asarray(text.ids, np.int32)
    found, _ = reader.lookup(tokens, np.array([0, len(tokens)], np.int64))
    rows: Tensor = root.bias(torch.from_numpy(found), torch.arange(len(tokens)), torch.tensor(text.types))
    return rows


def scores(executor: Executor, rows: Tensor, module: TenantModule, head: Head) -> list[float]:
    """Return a classification's probabilities of one text, by label."""
    (left,) = executor.run(KEY, Rows.packed(rows.clone(), [0, len(rows)]), [module])
    read = torch.cat([left.last[0], left.before.mean(0)])[None]
    everywhere = torch.ones(1, len(rows), dtype=torch.bool)
    found: list[float] = head(head.with_attended(read, left.before[None], everywhere))[0].softmax(-1).tolist()
    return found
