"""Creates a tenant's model from an adapter of the library `adapters`, on a language model's root from one of
`peft`: publishes it unchanged with its head, or trains it further.

This is a part of the job kind `fine_tune`, in its mode "import". The inputs are adapter-config and
adapter, and then head-config with head, or data (optionally with dev), or both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from hmi.core import ModelVersion, TaskRules, now
from hmi.jobs.model.results import published_result
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import FineTuneSpec
from hmi.model.sources.root import AnyRootInfo, GenerativeRootInfo, RootInfo, read_any_info
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.heads import head_tensors
from hmi.model.tenant.interchange import FORMAT, EquivalentModule, read_adapter_config
from hmi.model.tenant.interchange_peft import PeftModule, read_peft
from hmi.model.tenant.interchange_tensors import HeadTwin, read_head, read_module, read_safetensors
from hmi.model.tenant.stored_dtype import int8_of
from hmi.stores.plot.plot_meta import PlotMeta


def without_rows(ctx: JobContext) -> bool:
    """Return whether this job is an import that trains nothing."""
    return FineTuneSpec.of(ctx.job).mode == "import" and not (ctx.input / "data").exists()


def run(ctx: JobContext) -> dict[str, Any]:
    """Publish the adapter with its own head. Raises InvalidInput if a tensor or the head has no
    counterpart in HMI."""
    spec = FineTuneSpec.of(ctx.job)
    domain, model = spec.domain, spec.model_id
    plot = ctx.domain(domain)
    root = plot.ref.split("/")[0]
    info = read_any_info(ctx.roots.folder(root, PlotMeta.of(plot).root_version))
    ctx.progress(0, 1, phase="importing")
    made, described = _imported(ctx, info)
    made = made.map(lambda value: value.half())
    rest = spec.options.rest or "fp16"
    if rest == "int8":
        made = replace(made, module=int8_of(made.module))
    ctx.share(plot.id)
    artefact, size = ctx.adapters.put(made.joined(), {"task": described["task"]})
    record = ctx.registry.publish_model(
        model,
        ModelVersion(
            version=0,
            artefact=artefact,
            domain=domain,
            plot_version=plot.id,
            root=root,
            root_version=info.version,
            **described,
            rest=rest,
            bytes=size,
            created=now(),
            max_length=min(spec.options.max_length, info.shape.positions),
            job=ctx.job.job,
        ),
    )
    return published_result(record, ctx.job.job)


def _imported(ctx: JobContext, info: AnyRootInfo) -> tuple[Artefact, dict[str, Any]]:
    """The tensors of the imported model in fp32, and the fields of its version that they decide."""
    if isinstance(info, GenerativeRootInfo):
        peft = _peft(ctx, info)
        described = {"task": "generation", "labels": (), "module": peft.spec, "metrics": {"imported": "peft"}}
        return Artefact(peft.state), described
    assert isinstance(info, RootInfo)
    twin, module = _module(ctx, info)
    head = _head(ctx, info)
    assert head is not None, "the manager requires a head if there are no rows"
    described = {
        "task": head.task,
        "labels": head.labels,
        "rules": _rules(head),
        "module": twin.spec,
        "metrics": {"imported": FORMAT.partition(".")[0]},
    }
    return Artefact(module, head_tensors(head.weight, head.bias)), described


def _peft(ctx: JobContext, info: GenerativeRootInfo) -> PeftModule:
    tensors = read_safetensors((ctx.input / "adapter").read_bytes(), "adapter_model.safetensors")
    return read_peft((ctx.input / "adapter-config").read_bytes(), tensors, info.shape, info.split)


def start_state(ctx: JobContext, info: AnyRootInfo, task: str, labels: tuple[str, ...]) -> Artefact:
    """The weights that training on rows starts from: the imported module, and the head if it has
    the rows' task and labels."""
    if isinstance(info, GenerativeRootInfo):
        return Artefact(_peft(ctx, info).state)
    assert isinstance(info, RootInfo)
    _, module = _module(ctx, info)
    head = _head(ctx, info)
    if head is None or head.task != task or {*head.labels} != {*labels}:
        return Artefact(module)
    order = [head.labels.index(label) for label in labels]
    return Artefact(module, head_tensors(head.weight[order], head.bias[order]))


def _rules(head: HeadTwin) -> TaskRules:
    """The task's rules, guessed from the labels, since there are no rows: the scheme is BIO if
    every tag is O, B-… or I-…."""
    begins = any(label[:2] == "B-" for label in head.labels)
    bio = (
        head.task == "tagging"
        and begins
        and all(label == "O" or label[:2] in ("B-", "I-") for label in head.labels)
    )
    return TaskRules(scheme="bio" if bio else "free")


def _module(ctx: JobContext, info: RootInfo) -> tuple[EquivalentModule, dict[str, Tensor]]:
    twin = read_adapter_config((ctx.input / "adapter-config").read_bytes(), info.shape, info.split)
    tensors = read_safetensors((ctx.input / "adapter").read_bytes(), "adapter.safetensors")
    return twin, read_module(twin, tensors, info.shape, info.split)


def _head(ctx: JobContext, info: RootInfo) -> HeadTwin | None:
    if not (ctx.input / "head").exists():
        return None
    return read_head((ctx.input / "head-config").read_bytes(), (ctx.input / "head").read_bytes(), info.shape)
