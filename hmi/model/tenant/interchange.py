"""Reads and writes `adapter_config.json`, the format of tenant modules in the `adapters` library (1.3.0).

The library's LoRA, parallel, sequential (SeqBn) and double sequential (DoubleSeqBn) adapters are our kinds
lora, parallel, sequential and houlsby. They must leave out the lower layers, which a PLOT replaces here.
Any other setting that would change the answer is refused by name. For the tensors see
`hmi.model.tenant.interchange_tensors`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from hmi.core import ModuleSpec
from hmi.errors import InvalidInput
from hmi.model.network.shape import EncoderShape
from hmi.modulespec import Site

FORMAT = "adapters.1.3.0"
"""The `version` field of the files that `write_adapter_config` writes."""
SMALLEST_FACTOR = 0.01
"""The least `reduction_factor` that is accepted."""
FIXED_LORA_SCALE = (1, 1)
"""From this version on, `adapters` multiplies a LoRA by alpha / r. Earlier versions stored alpha but
applied 1, so 1 is the scale that those modules were trained with."""

_TRAINING_ONLY = {"dropout", "dtype", "init_weights", "init_weights_seed", "stochastic_depth"}
"""Fields that change training only."""
_READ_ELSEWHERE = {"architecture", "leave_out"}
"""Fields that `read_adapter_config` checks before the fields of a kind."""
_OF_REFUSED_FEATURES = {
    "adapter_residual_before_ln",  # of ln_after
    "inv_adapter_reduction_factor",  # of inv_adapter
    # of phm_layer
    "factorized_phm_W",
    "factorized_phm_rule",
    "hypercomplex_nonlinearity",
    "learn_phm",
    "phm_bias",
    "phm_c_init",
    "phm_dim",
    "phm_init_range",
    "phm_rank",
    "shared_W_phm",
    "shared_phm_rule",
}
"""Options of features that are refused if they are on, so that the options have no effect."""
_IGNORED = _TRAINING_ONLY | _READ_ELSEWHERE | _OF_REFUSED_FEATURES

_LORA_NEEDS: dict[str, Any] = {
    "composition_mode": "add",
    "use_gating": False,
    "use_dora": False,
    "vera_d": None,
    "vera_b": None,
}
"""The values that these fields of a LoRA must have, if they are present."""
_BOTTLENECK_NEEDS: dict[str, Any] = {
    "ln_before": False,
    "ln_after": False,
    "use_gating": False,
    "phm_layer": False,
    "inv_adapter": None,
    "cross_adapter": False,
    "original_ln_after": True,
}
"""The values that these fields of a bottleneck adapter must have, if they are present."""


@dataclass(frozen=True)
class EquivalentModule:
    """Our equivalent of an adapter of the `adapters` library."""

    name: str
    spec: ModuleSpec
    scale: float
    """The factor by which `adapters` multiplies the change."""
    left_out: frozenset[int] = frozenset()
    """The upper layers that the adapter does not change, counted from the split."""


def read_adapter_config(raw: bytes, shape: EncoderShape, split: int) -> EquivalentModule:
    """Convert `adapter_config.json` for a root of `shape` with `split` lower layers.

    Raises InvalidInput, which names the field that has no equivalent.
    """
    full = read_json(raw, "adapter_config.json")
    name = check_base(full, shape)
    config = full.get("config")
    if not isinstance(config, dict):
        raise conversion_error("config", config, "the adapter's settings")
    left_out = _left_out(config.get("leave_out") or [], shape.layers, split)
    if config.get("architecture") == "lora":
        spec, scale = _lora(config, _version(full))
    elif config.get("architecture") is None:
        spec, scale = _bottleneck(config, shape, split)
    else:
        raise conversion_error(
            "architecture", config["architecture"], "'lora', or none for bottleneck adapters"
        )
    return EquivalentModule(name, spec, scale, left_out)


def write_adapter_config(name: str, spec: ModuleSpec, shape: EncoderShape, split: int) -> dict[str, Any]:
    """The `adapter_config.json` of a module. Raises InvalidInput if `adapters` has no equivalent."""
    check_kind(shape)
    wanted = spec.all_sites
    leave_out = list(range(split))
    if spec.kind == "lora":
        config = _lora_config(wanted, spec.rank, leave_out)
    elif spec.kind in ("parallel", "sequential", "houlsby"):
        config = _bottleneck_config(spec, shape.dim, leave_out)
    else:
        raise InvalidInput(
            f"a module of kind {spec.kind!r} has no counterpart in the adapters library: train one of kind "
            "lora, parallel, sequential or houlsby",
            field="module.kind",
        )
    return {**shared_fields(name, shape), "config": config}


def shared_fields(name: str, shape: EncoderShape) -> dict[str, Any]:
    """The fields besides `config`, which adapters and heads share."""
    return {
        "name": name,
        "model_type": shape.kind,
        "model_name": "",
        "model_class": "BertModel",
        "hidden_size": shape.dim,
        "version": FORMAT,
    }


def read_json(raw: bytes, file: str) -> dict[str, Any]:
    """Parse a JSON object. Raises InvalidInput, which names the file."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{file} is not JSON ({error}): give the file that save_adapter wrote", field=file
        ) from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{file} is not a JSON object: give the file that save_adapter wrote", field=file)
    return value


def check_base(full: Mapping[str, Any], shape: EncoderShape) -> str:
    """Check that the file is for a model of this shape, and return its `name`. Raises InvalidInput."""
    check_kind(shape)
    for field, wanted in (("model_type", shape.kind), ("hidden_size", shape.dim)):
        if full.get(field) != wanted:
            raise conversion_error(field, full.get(field), f"{wanted!r}, the root's")
    if not str(full.get("version", "")).startswith("adapters."):
        raise conversion_error(
            "version", full.get("version"), f"{FORMAT!r} or older: load it with adapters and save it again"
        )
    name = full.get("name")
    if not isinstance(name, str) or not name or "." in name:
        raise conversion_error("name", name, "a name without dots")
    return name


def check_kind(shape: EncoderShape) -> None:
    if shape.kind != "bert":
        raise InvalidInput(
            f"the root is of kind {shape.kind!r}, whose modules are not converted: use a BERT root",
            field="domain",
        )


def _lora(config: Mapping[str, Any], version: tuple[int, ...]) -> tuple[ModuleSpec, float]:
    used = {"selfattn_lora", "intermediate_lora", "output_lora", "attn_matrices", "r", "alpha"}
    _check(config, _LORA_NEEDS, used)
    rank, alpha = config.get("r", 8), config.get("alpha", 8)
    check_rank(rank, "r")
    if not is_number(alpha):
        raise conversion_error("alpha", alpha, "a number")
    sites: tuple[Site, ...] = _enabled_sites(fi=config.get("intermediate_lora"), fo=config.get("output_lora"))
    if config.get("selfattn_lora", True):
        sites = (*_attention_sites(config.get("attn_matrices", ["q", "v"])), *sites)
    if not sites:
        raise conversion_error(
            "selfattn_lora", False, "true, or intermediate_lora or output_lora: the adapter changes nothing"
        )
    scale = alpha / rank if version >= FIXED_LORA_SCALE else 1.0
    return ModuleSpec(kind="lora", rank=rank, sites=sites), scale


def _attention_sites(value: Any) -> list[Site]:
    if not isinstance(value, list) or any(m not in ("q", "k", "v") for m in value):
        raise conversion_error("attn_matrices", value, "some of 'q', 'k', 'v'")
    return value


def _lora_config(sites: tuple[Site, ...], rank: int, leave_out: list[int]) -> dict[str, Any]:
    if "o" in sites:
        raise InvalidInput(
            "LoRA at site 'o' (attention's output) has no counterpart in the adapters library: train with "
            "the option module.sites=q,k,v,fi,fo",
            field="module.sites",
        )
    attention = [s for s in sites if s in ("q", "k", "v")]
    return {
        "architecture": "lora",
        "r": rank,
        "alpha": 2 * rank,
        "attn_matrices": attention,
        **_LORA_NEEDS,
        "selfattn_lora": bool(attention),
        "intermediate_lora": "fi" in sites,
        "output_lora": "fo" in sites,
        "leave_out": leave_out,
        "dropout": 0.0,
        "init_weights": "lora",
    }


def _bottleneck(config: Mapping[str, Any], shape: EncoderShape, split: int) -> tuple[ModuleSpec, float]:
    used = {
        "mh_adapter",
        "output_adapter",
        "reduction_factor",
        "non_linearity",
        "is_parallel",
        "scaling",
        "original_ln_before",
        "residual_before_ln",
    }
    _check(config, _BOTTLENECK_NEEDS, used)
    scale = config.get("scaling", 1.0)
    if not is_number(scale):
        raise conversion_error("scaling", scale, "a number")
    rank = _bottleneck_rank(config.get("reduction_factor"), shape, split)
    attn, ffn = bool(config.get("mh_adapter")), bool(config.get("output_adapter"))
    if not attn and not ffn:
        raise conversion_error("output_adapter", False, "true: the adapter changes nothing")
    if config.get("is_parallel", False):
        _check_activation(config, ("relu",))
        return ModuleSpec(kind="parallel", rank=rank, sites=_enabled_sites(attn=attn, ffn=ffn)), float(scale)
    residual = config.get("residual_before_ln", True)
    if config.get("original_ln_before", False):
        _check_activation(config, ("relu",))
        for field, found, wanted in (("mh_adapter", attn, False), ("residual_before_ln", residual, True)):
            if found is not wanted:
                raise conversion_error(field, found, f"{wanted} beside original_ln_before")
        return ModuleSpec(kind="sequential", rank=rank), float(scale)
    _check_activation(config, ("swish", "silu"))
    if residual not in (True, False):
        raise conversion_error("residual_before_ln", residual, "true or false")
    return ModuleSpec(kind="houlsby", rank=rank, sites=_enabled_sites(after_attn=attn, after_ffn=ffn)), float(
        scale
    )


def _bottleneck_config(spec: ModuleSpec, dim: int, leave_out: list[int]) -> dict[str, Any]:
    sites = spec.all_sites
    return {
        **_BOTTLENECK_NEEDS,
        "mh_adapter": bool({"attn", "after_attn"} & {*sites}),
        "output_adapter": bool({"ffn", "after_ffn", "after_norm"} & {*sites}),
        "is_parallel": spec.kind == "parallel",
        "original_ln_before": spec.kind == "sequential",
        "residual_before_ln": True,
        "adapter_residual_before_ln": False,
        "scaling": 1.0,
        "dropout": 0.0,
        "non_linearity": "swish" if spec.kind == "houlsby" else "relu",
        "leave_out": leave_out,
        "reduction_factor": _factor(dim, spec.rank),
        "init_weights": "mam_adapter",
        "stochastic_depth": 0.0,
    }


def _factor(dim: int, rank: int) -> float:
    """A reduction factor such that `dim // factor` is exactly `rank`, however the division is rounded."""
    return dim / rank if dim % rank == 0 else dim / (rank + 0.5)


def _bottleneck_rank(factor: Any, shape: EncoderShape, split: int) -> int:
    upper = range(split, shape.layers)
    each: list[Any] = (
        [factor.get(str(i), factor.get("default")) for i in upper] if isinstance(factor, dict) else [factor]
    )
    if any(not is_number(f) or f < SMALLEST_FACTOR for f in each):
        raise conversion_error("reduction_factor", factor, f"a number of {SMALLEST_FACTOR} at least")
    ranks = {max(1, int(shape.dim // f)) for f in each}
    if len(ranks) > 1:
        raise conversion_error("reduction_factor", factor, "the same for every upper layer")
    rank = ranks.pop()
    check_rank(rank, "reduction_factor")
    return rank


def _enabled_sites(**sites: Any) -> tuple[Site, ...]:
    return tuple(cast(Site, site) for site, on in sites.items() if on)


def check_rank(rank: Any, field: str) -> None:
    """Raise InvalidInput, which names the field, if it is no rank of a module."""
    most = 512
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= most:
        raise conversion_error(field, rank, f"one rank from 1 to {most} for all matrices")


def _left_out(value: Any, layers: int, split: int) -> frozenset[int]:
    if not isinstance(value, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in value):
        raise conversion_error("leave_out", value, "a list of layers")
    if not set(range(split)) <= set(value):
        raise conversion_error(
            "leave_out", value, f"to name layers 0 to {split - 1} at least: those are looked up, not run"
        )
    return frozenset(i - split for i in value if split <= i < layers)


def _check(config: Mapping[str, Any], needs: Mapping[str, Any], used: set[str]) -> None:
    for field, value in config.items():
        if field in needs:
            if value != needs[field]:
                raise conversion_error(field, value, f"{needs[field]!r}")
        elif field not in used and field not in _IGNORED:
            raise conversion_error(field, value, "absent: it is not known here")


def _check_activation(config: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if config.get("non_linearity") not in known:
        raise conversion_error(
            "non_linearity", config.get("non_linearity"), f"{known[0]!r} for this kind of adapter"
        )


def _version(full: Mapping[str, Any]) -> tuple[int, ...]:
    numbers = str(full["version"]).removeprefix("adapters.").split(".")[:2]
    return tuple(int(n) if n.isdigit() else 0 for n in numbers)


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a number of a sensible size."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30


def conversion_error(field: str, value: Any, wanted: str) -> InvalidInput:
    """The error for a field whose value has no equivalent."""
    return InvalidInput(
        f"{field} = {str(value)[:80]!r} cannot be converted: it must be {wanted}", field=field
    )
