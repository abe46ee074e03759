"""The options of a training that depend on the model's task: what is chosen, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hmi.core import ModuleSpec, Task
from hmi.errors import InvalidInput
from hmi.jobs.options import FineTuneOptions, checked_options
from hmi.modulespec import SITES
from hmi.training.plans.defaults import WRITING_DROPOUT, WRITING_LENGTH, WRITING_MODULE

NOT_OF_WRITING = (
    "lexical",
    "transitions",
    "ramps",
    "class_weights",
    "long_texts",
    "variants",
    "labels",
    "labels_columns",
    "text_pair_column",
    "improve_cpu_s",
)
"""Options that mean nothing for a model that writes."""


def settled(
    task: Task, options: Mapping[str, Any] | None, *, update: bool = False
) -> Mapping[str, Any] | None:
    """The options with the choices of the task. update: those that are missing stay as the live version's.

    Raises InvalidInput for an option that means nothing for the task.
    """
    if task != "generation":
        _refuse_gate(options)
        return options
    given = dict(options or {})
    for name in NOT_OF_WRITING:
        default = FineTuneOptions.model_fields[name].default
        if given.get(name, default) != default:
            raise InvalidInput(
                f"options.{name} means nothing for a model that writes: leave it out", field=f"options.{name}"
            )
    if given.get("improve"):
        raise InvalidInput(
            "options.improve: there is no second version of a model that writes: leave it out",
            field="options.improve",
        )
    if given.get("module") is not None or not update:
        given["module"] = _lora(given)
    given = {"dropout": WRITING_DROPOUT, **given}
    if not update:
        given.setdefault("max_length", WRITING_LENGTH)
    return given


def _lora(options: Mapping[str, Any]) -> dict[str, Any]:
    """The module of a language model: LoRA. Without sites, it is at those of WRITING_MODULE, and without rank
    and size too, of its rank.

    Raises InvalidInput for another kind.
    """
    asked = options.get("module")
    spec = checked_options(FineTuneOptions, options).module or WRITING_MODULE
    if spec.kind != "lora":
        raise InvalidInput(
            f"a language model takes no module of the kind {spec.kind!r}: leave module.kind out",
            field="options.module.kind",
        )
    given = spec.model_dump(mode="json")
    if "sites" in spec.model_fields_set:
        return given
    chosen = isinstance(asked, Mapping) and ("rank" in asked or asked.get("size") is not None)
    rank = given["rank"] if chosen or isinstance(asked, ModuleSpec) else WRITING_MODULE.rank
    return {**given, "rank": rank, "sites": WRITING_MODULE.sites}


def _refuse_gate(options: Mapping[str, Any] | None) -> None:
    module = checked_options(FineTuneOptions, options).module
    if module is not None and "gate" in module.all_sites:
        names = ", ".join(SITES["lora"])
        raise InvalidInput(
            f"only language models have the site gate: name some of {names}", field="options.module.sites"
        )
