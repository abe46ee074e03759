"""Imports and exports tenants' modules in the format of the library `adapters`, those of models that write in
that of `peft`. `hmi.model.tenant.interchange` and the files beside it convert them.

torch takes seconds to import, so modules that need it are imported where they are used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hmi.core import HEADLESS, DomainId, JobRecord, ModelId, ModelVersion, Task, check_name
from hmi.errors import InvalidInput
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.specs import FineTuneSpec
from hmi.jobs.task_options import settled
from hmi.manager.domains import DomainOperations
from hmi.manager.models import refuse_existing, submit_fine_tune
from hmi.manager.parts import Parts, checked_options
from hmi.model.tenant.artefact import Artefact
from hmi.stores.plot.plot_meta import PlotMeta
from hmi.stores.tensors.adapter_store import DamagedArtefact

if TYPE_CHECKING:
    from hmi.model.sources.root import GenerativeRootInfo, RootInfo

MAX_CONFIG_BYTES, MAX_PEFT_BYTES = 1 << 20, 1 << 28


@dataclass(frozen=True)
class ModuleFiles:
    """An exported module: its files under the names that its library expects, and what was left out, with
    the reason."""

    model: str
    version: int
    files: dict[str, bytes]
    left_out: list[str] = field(default_factory=list)
    format: str = "adapters 1.3.0"
    """The library that reads them."""


class Exchange:
    """Export and import of modules."""

    def __init__(self, parts: Parts, domains: DomainOperations) -> None:
        self._parts, self._domains = parts, domains

    def export(self, model: str) -> ModuleFiles:
        """Export the live version's module and, if `adapters` has a counterpart, its head. Raises
        NotFound, InvalidInput (no counterpart of the module), Damaged."""
        from safetensors.torch import save

        from hmi.model.sources.root import GenerativeRootInfo
        from hmi.model.tenant.interchange import write_adapter_config
        from hmi.model.tenant.interchange_peft import FORMAT as PEFT
        from hmi.model.tenant.interchange_peft import write_peft
        from hmi.model.tenant.interchange_tensors import HeadTwin, write_head, write_module

        wanted = ModelId.parse(model)
        live = self._parts.registry.model(wanted).live
        if live.module is None:
            raise InvalidInput(f"model {wanted} has no module: there is nothing to export", field="model")
        info = self._root(live.root, live.root_version)
        if isinstance(info, GenerativeRootInfo):
            module, base = self._artefact(wanted, live).module, info.source["name"]
            peft, tensors = write_peft(live.module, module, info.shape, info.split, base)
            named = {"adapter_config.json": _json(peft), "adapter_model.safetensors": save(tensors)}
            return ModuleFiles(str(wanted), live.version, named, format=PEFT)
        config = write_adapter_config(wanted.name, live.module, info.shape, info.split)
        artefact = self._artefact(wanted, live)
        files = {
            "adapter_config.json": _json(config),
            "adapter.safetensors": save(write_module(wanted.name, dict(artefact.module), info.split)),
        }
        left_out: list[str] = []
        weight, bias = artefact.head["out.weight"].float(), artefact.head["out.bias"].float()
        head = HeadTwin(live.task, live.labels, weight, bias)
        written = write_head(wanted.name, head, info.shape)
        if isinstance(written, str):
            left_out.append(f"head: {written}")
        else:
            files |= {"head_config.json": _json(written[0]), "model_head.safetensors": save(written[1])}
        if artefact.lexical:
            left_out.append(
                "lexical features: adapters has none; train with lexical=false for a model without them"
            )
        if artefact.transitions:
            left_out.append(
                "which tag follows which: adapters has no such table; train with transitions=false for "
                "a model without it"
            )
        if artefact.ramps:
            left_out.append("ramps: adapters has none; 'hmi model ramps' trains some for an imported model")
        if artefact.prompts:
            left_out.append(
                "prompts: adapters has none; 'hmi model tokens' trains some for an imported model"
            )
        if live.rules.scheme not in ("bio", "free"):
            left_out.append(
                "the rows' tag scheme: the head's labels are BIO, and so are the answers of a model "
                "made from it"
            )
        return ModuleFiles(str(wanted), live.version, files, left_out)

    def import_(
        self,
        model: str,
        domain: str,
        task: str,
        files: Mapping[str, Path | bytes],
        options: Mapping[str, Any] | None,
        job_limit: int | None,
    ) -> JobRecord:
        """Create a model from the files of an adapter (see `hmi.jobs.model.import_module`). Only its
        configuration and rows are checked here; the job checks the tensors.

        Raises InvalidInput (which names a setting without counterpart in HMI), NotFound,
        Conflict, QuotaExceeded, StorageFull.
        """
        from hmi.model.sources.root import GenerativeRootInfo
        from hmi.model.tenant.interchange import read_adapter_config

        wanted, branch = ModelId.parse(model), DomainId.parse(domain)
        refuse_existing(self._parts, wanted)
        plot = self._domains.current(branch)
        info = self._root(branch.root, PlotMeta.of(plot).root_version)
        if isinstance(info, GenerativeRootInfo):
            return self._import_peft(wanted, branch, info, files, options, job_limit)
        _check_parts(files)
        if task in HEADLESS or task not in get_args(Task):
            known = ", ".join(t for t in get_args(Task) if t not in HEADLESS)
            raise InvalidInput(
                f"an adapter cannot be trained for the task {task[:80]!r}: use {known}", field="task"
            )
        twin = read_adapter_config(_small(files["adapter_config"]), info.shape, info.split)
        checked = _with_module(options, twin.spec.model_dump(mode="json"), trained="data" in files)
        spec = FineTuneSpec(model=str(wanted), domain=str(branch), task=task, mode="import", options=checked)
        return submit_fine_tune(self._parts, spec, files, job_limit)

    def _import_peft(
        self,
        model: ModelId,
        domain: DomainId,
        info: GenerativeRootInfo,
        files: Mapping[str, Path | bytes],
        options: Mapping[str, Any] | None,
        job_limit: int | None,
    ) -> JobRecord:
        """Create a model that writes from an adapter of `peft`. Rows, if there are some, train it further."""
        from hmi.model.tenant.interchange_peft import read_peft
        from hmi.model.tenant.interchange_tensors import read_safetensors

        if "head" in files or "head_config" in files:
            raise InvalidInput("a model that writes has no head: leave it out", field="head")
        tensors = read_safetensors(_small(files["adapter"], MAX_PEFT_BYTES), "adapter_model.safetensors")
        made = read_peft(_small(files["adapter_config"]), tensors, info.shape, info.split)
        given = settled("generation", options, update=True) if "data" in files else options
        checked = _with_module(given, made.spec.model_dump(mode="json"), trained="data" in files)
        spec = FineTuneSpec(
            model=str(model), domain=str(domain), task="generation", mode="import", options=checked
        )
        return submit_fine_tune(self._parts, spec, files, job_limit)

    def _artefact(self, model: ModelId, live: ModelVersion) -> Artefact:
        try:
            return Artefact.split(self._parts.adapters.get(live.artefact))
        except DamagedArtefact as error:
            raise error.of(f"version {live.version} of model {model}") from error

    def _root(self, name: str, version: str) -> RootInfo | GenerativeRootInfo:
        from hmi.model.sources.root import GenerativeRootInfo, RootInfo, read_any_info

        found = read_any_info(self._parts.roots.folder(check_name(name, "root"), version))
        assert isinstance(found, RootInfo | GenerativeRootInfo)
        return found


def _check_parts(files: Mapping[str, Path | bytes]) -> None:
    """Raise InvalidInput unless the files have a complete head, or rows to train one."""
    if "dev" in files and "data" not in files:
        raise InvalidInput("there are dev rows, but no rows to train on: give data, too", field="data")
    if ("head" in files) != ("head_config" in files):
        raise InvalidInput("head and head_config go together: give both, or neither", field="head")
    if "head" not in files and "data" not in files:
        raise InvalidInput(
            "the adapter came without a head: give rows (data; on the command line --rows) to train one, or "
            "save it with its head, model.save_adapter(folder, name, with_head=True, use_safetensors=True)",
            field="data",
        )


def _with_module(
    options: Mapping[str, Any] | None, module: dict[str, Any], *, trained: bool
) -> FineTuneOptions:
    idle = sorted(set(options or {}) - {"max_length", "module", "start"})
    if idle and not trained:
        raise InvalidInput(
            f"{idle[0]} is for training, and there are no rows: leave it out, or give data",
            field=f"options.{idle[0]}",
        )
    if (options or {}).get("module") is not None:
        raise InvalidInput("the adapter decides the module: leave options.module out", field="options.module")
    if (options or {}).get("depth") is not None:
        raise InvalidInput(
            "an adapter fits one root: leave options.depth out, and name a domain of that root",
            field="options.depth",
        )
    if (options or {}).get("start") is not None:
        raise InvalidInput("an import starts from the adapter: leave start out", field="options.start")
    return checked_options(FineTuneOptions, {**(options or {}), "module": module})


def _small(file: Path | bytes, most: int = MAX_CONFIG_BYTES) -> bytes:
    if isinstance(file, bytes):
        return file
    if file.stat().st_size > most:
        name = "adapter_config" if most == MAX_CONFIG_BYTES else "adapter"
        raise InvalidInput(f"{name} is over {most >> 20} MiB: send the adapter alone", field=name)
    return file.read_bytes()


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"
