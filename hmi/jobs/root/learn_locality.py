"""Learns a root's locality in phases: ridge regression, distillation of the lower layers, co-training of the
upper ones, training of both together. Each phase ends with a checkpoint; a long one also has checkpoints
within it, so a resumed job repeats a few minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from hmi.jobs.options import ImportRootOptions
from hmi.jobs.runtime.context import JobContext
from hmi.model.files import read_checkpoint, write_checkpoint
from hmi.model.network.encoder import Encoder
from hmi.model.sources.locality import apply_locality
from hmi.model.sources.lower import InputBias, LocalLower
from hmi.model.tenant.artefact import tensors_below
from hmi.model.text.batching import Encoded
from hmi.training.fit.reports import StepReport
from hmi.training.root.distillation import DistilPlan, distil_lower, start_local, train_upper
from hmi.training.root.joint import train_jointly
from hmi.training.root.phases import Keeper

LocalParts = tuple[LocalLower, nn.ModuleList, InputBias]
PARTS = ("lower", "upper", "bias")


def learn_locality(
    ctx: JobContext,
    teacher: Encoder,
    parts: LocalParts,
    texts: list[Encoded],
    options: ImportRootOptions,
    shipped: Path | None = None,
) -> None:
    """Train `parts` in place. A resumed job ends with the same bits as an uninterrupted one.

    shipped: the locality weights to start from, instead of ridge regression. Raises Damaged (these),
    StorageFull, JobCancelled, JobStopped.
    """
    phases = _phases(ctx, teacher, parts, texts, options, shipped)
    for aside in ctx.folder.glob(".checkpoint-*.tmp"):  # of a process that died while it wrote one
        aside.unlink()
    names = list(phases)
    done = next((i + 1 for i in reversed(range(len(names))) if _restored(ctx, names[i], parts)), 0)
    for name in names[done:]:
        phases[name]()
        _finish(ctx, name, parts)


def _phases(
    ctx: JobContext,
    teacher: Encoder,
    parts: LocalParts,
    texts: list[Encoded],
    options: ImportRootOptions,
    shipped: Path | None,
) -> dict[str, Callable[[], None]]:
    """The phases to run, in order, by the name of the checkpoint at their end."""
    lower, upper, bias = parts
    plan = DistilPlan(
        steps=options.steps,
        upper_steps=options.upper_steps,
        joint_steps=options.joint_steps,
        seed=options.seed,
    )

    def within(phase: str) -> Keeper:
        path = ctx.folder / f"checkpoint-within-{phase}.safetensors"
        return Keeper(path, options.checkpoint_s, ctx.checkpointed)

    def ridge() -> None:
        ctx.progress(0, 1, phase="ridge regression")
        start_local(lower, bias, teacher, texts, plan)

    def distil() -> None:
        report = _report(ctx, "distillation")
        distil_lower(lower, bias, teacher, texts, plan, report, bf16=True, keeper=within("distilled"))

    def cotrain() -> None:
        report = _report(ctx, "co-training of the upper layers")
        train_upper(lower, bias, upper, teacher, texts, plan, report, bf16=True, keeper=within("trained"))

    def load() -> None:
        assert shipped is not None
        ctx.progress(0, 1, phase="locality weights")
        apply_locality(shipped, parts)

    def joint() -> None:
        report = _report(ctx, "training of all layers together")
        train_jointly(parts, teacher, texts, plan, report, bf16=True, keeper=within("joined"))

    phases = {"ridge": ridge} if shipped is None else {"loaded": load}
    if plan.steps:
        phases["distilled"] = distil
    if plan.upper_steps:
        phases["trained"] = cotrain
    if plan.joint_steps:
        phases["joined"] = joint
    return phases


def _report(ctx: JobContext, phase: str) -> StepReport:
    return lambda step, total, loss: ctx.progress(step, total, phase=phase, loss=loss)


def _finish(ctx: JobContext, name: str, parts: LocalParts) -> None:
    """Write the checkpoint at a phase's end, and remove those before it."""
    path = ctx.folder / f"checkpoint-{name}.safetensors"
    state = {
        f"{prefix}.{k}": v
        for prefix, part in zip(PARTS, parts, strict=True)
        for k, v in part.state_dict().items()
    }
    write_checkpoint(path, state)
    ctx.checkpointed()
    for older in ctx.folder.glob("checkpoint-*.safetensors"):
        if older != path:
            older.unlink()


def _restored(ctx: JobContext, name: str, parts: LocalParts) -> bool:
    found = read_checkpoint(ctx.folder / f"checkpoint-{name}.safetensors")
    if found is None:
        return False
    for prefix, part in zip(PARTS, parts, strict=True):
        part.load_state_dict(tensors_below(found[0], prefix))
    return True
