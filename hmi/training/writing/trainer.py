"""Trains a tenant's LoRA in the upper layers of a language model on what is to be written after prompts.

The loss is the mean cross-entropy of the completions' tokens and of the end token after each; prompts are
only read. Rows come from a PLOT and never change, so no gradient goes beyond the upper layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.model.memory import keep_less_if_grown
from hmi.model.network.decoder import attend_before, rotary
from hmi.model.network.encoder import Delta, Norm, no_delta
from hmi.model.sources.generative_root import UpperDecoder
from hmi.model.tenant.modules import TenantModule
from hmi.model.text.batching import READ_TOKENS, STEP_TOKENS, in_parts, length_grouped, pad_ids
from hmi.training.fit.learner import Learner
from hmi.training.fit.plan import TrainPlan
from hmi.training.fit.precision import arithmetic, native_bf16
from hmi.training.writing.lookup import RowsOf
from hmi.training.writing.texts import Written

SCORED = 512
"""The most tokens whose scores of all words are in memory at once: 100 MB for each 50,000 words."""
MULTIPLE = 8
"""Texts are padded to a multiple of so many tokens, since code is generated for each shape."""


class WritingTrainer(Learner):
    """One run of training. `module` is trained; the layers stay as they are, unless `module` is `upper`."""

    def __init__(
        self,
        upper: UpperDecoder,
        module: TenantModule | UpperDecoder,
        rows_of: RowsOf,
        plan: TrainPlan,
        train: Sequence[Written],
    ) -> None:
        self.upper, self.module, self._rows_of, self._train = upper, module, rows_of, train
        self.watch: Callable[[], None] = lambda: None
        """Called between parts of a long reading. It may raise, to end it."""
        # A copy of layers that are trained would stay behind them.
        copied = plan.bf16 and native_bf16() and module is not upper
        self._quick = _in_bf16(upper) if copied else upper
        super().__init__(
            plan, [len(t) for t in train], [{"params": list(module.parameters()), "lr": plan.lr}]
        )

    @torch.inference_mode()
    def losses(self, texts: Sequence[Written], *, exact: bool = False, plain: bool = False) -> Tensor:
        """The sum of the losses of each text's tokens to write, in nats, and their number: [texts, 2].

        exact: compute in fp32, as the server may. plain: without the module.
        """
        found = torch.zeros(len(texts), 2)
        lengths = [len(text) for text in texts]
        for batch in length_grouped(lengths, 64, None):
            for rows in _in_parts(batch, texts, READ_TOKENS):
                some = [texts[i] for i in rows]
                losses = self._token_losses(some, plain=plain, bf16=self.plan.bf16 and not exact)
                sizes = [len(text.answer) for text in some]
                for row, own in zip(rows, losses.split(sizes), strict=True):
                    found[row] = torch.tensor([float(own.double().sum()), len(own)])
                keep_less_if_grown()
                self.watch()
        return found

    @property
    def _parts(self) -> dict[str, nn.Module]:
        return {"module": self.module}

    def _cut(self, rows: Sequence[int]) -> list[list[int]]:
        return list(_in_parts(rows, self._train, STEP_TOKENS))

    def _shares(self, parts: Sequence[Sequence[int]]) -> list[float]:
        sizes = [sum(len(self._train[i].answer) for i in part) for part in parts]
        return [size / sum(sizes) for size in sizes]

    def _loss_of(self, rows: Sequence[int]) -> Tensor:
        texts = [self._train[i] for i in rows]
        return self._token_losses(texts, bf16=self.plan.bf16, dropout=self.plan.dropout).mean()

    def _token_losses(
        self, texts: Sequence[Written], *, bf16: bool, plain: bool = False, dropout: float = 0.0
    ) -> Tensor:
        """The loss of each token to write, of one text after another."""
        # No token attends to what follows it, so neither padding nor the last token is seen by any other.
        ids = pad_ids([text.ids for text in texts], MULTIPLE)
        at = torch.arange(ids.shape[1] - 1)[None]
        begins = torch.tensor([[text.begin] for text in texts])
        ends = torch.tensor([[len(text)] for text in texts])
        wanted = (at >= begins - 1) & (at < ends - 1)
        upper, shape = self._quick if bf16 else self.upper, self.upper.shape
        with arithmetic(bf16=bf16):
            x = self._rows_of(ids[:, :-1])
            turns = rotary(x.shape[1], shape.head_dim, shape.base)
            for i, layer in enumerate(upper.layers):
                x = layer(x, turns, attend_before, no_delta if plain else self._delta(i, dropout))
            scores = upper.logits(x[wanted]).float()
        return F.cross_entropy(scores, ids[:, 1:][wanted], reduction="none")

    def _delta(self, layer: int, dropout: float) -> Delta:
        """The module's change of a layer. dropout: the share of what a change reads that it does not see."""
        module = self.module
        if not isinstance(module, TenantModule):
            return no_delta
        if not dropout:
            return module.delta(layer)

        def apply(site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor:
            change = module.at(layer, site)
            return y if change is None else y + change(F.dropout(x, dropout))

        return apply


def _in_parts(rows: Sequence[int], texts: Sequence[Written], tokens: int) -> Iterator[list[int]]:
    """Cut a batch into parts of at most `tokens` tokens, of which at most SCORED are to be written."""
    lengths = [len(text) for text in texts]
    part: list[int] = []
    for some in in_parts(rows, lengths, tokens):
        size = 0
        for row in some:
            more = len(texts[row].answer)
            if part and size + more > SCORED:
                yield part
                part, size = [], 0
            part.append(row)
            size += more
        yield part
        part = []


def _in_bf16(upper: UpperDecoder) -> UpperDecoder:
    """A copy whose matrices are in bf16, so that no step has to convert them."""
    made = copy.deepcopy(upper)
    for part in made.modules():
        if isinstance(part, nn.Linear):
            part.bfloat16()
    return made
