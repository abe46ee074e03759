"""Tenant modules: small changes at named sites of each upper layer.

Sites of a layer, with what they read and what they are added to:

| site       | reads                                   | added to                  | kind                  |
|------------|-----------------------------------------|---------------------------|-----------------------|
| q, k, v    | the layer's input                       | query, key, value         | lora                  |
| o          | attention's context                     | attention's output        | lora                  |
| fi         | the FFN's input                         | the FFN before its GELU   | lora                  |
| gate       | the FFN's input                         | its gate before the SiLU  | lora                  |
| fo         | the GELU's output                       | the FFN's output          | lora                  |
| attn       | the layer's input                       | attention's output        | parallel              |
| ffn        | the FFN's input                         | the FFN's output          | parallel              |
| after_attn | attention's output                      | the same                  | houlsby               |
| after_ffn  | the FFN's output                        | the same                  | houlsby               |
| after_norm | LayerNorm(the FFN's input + its output) | the FFN's output          | sequential (Pfeiffer) |
| ln1, ln2   | what the layer's LayerNorm reads        | that LayerNorm's output   | ln                    |

A language model's layers take LoRA alone. There, `fi` is added to what the gate multiplies, and `fo` reads
the product. Encoders have no gate.

The changes of the last row are differences of gain and bias, in which a LayerNorm is linear. All others are
(down, activation, up); LoRA has neither activation nor biases. Every change starts at zero, so a fresh
module changes nothing. Tensors are named by their site, which also determines the activation, so a module
can be rebuilt from its tensors alone. Sources: HMI section 4.3, LoRA (Hu et al.), parallel adapters (He et
al.), bottleneck adapters (Houlsby et al., Pfeiffer et al.).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.core import ModuleSpec
from hmi.errors import Damaged
from hmi.model.network.encoder import Delta, Norm
from hmi.model.network.shape import DecoderShape, EncoderShape
from hmi.modulespec import GATED, SITES

Form = TypeVar("Form")
LORA_SCALE = 2.0
"""The factor of every LoRA's product: its alpha / rank."""
NORM_EPS = 1e-12
"""The eps of `ln` sites on every root. The root's own LayerNorm, to whose output they add, keeps its eps."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys((*SITES["parallel"], *SITES["sequential"]), F.relu),
    **dict.fromkeys(SITES["houlsby"], F.silu),
}
"""The activation of each site that has one: the same as in the `adapters` library."""


class LowRankLayer(nn.Module):
    """x [..., in] -> activation(x down^T + bias) up^T + bias [..., out].

    Without biases it is a LoRA: x down^T up^T times LORA_SCALE.
    """

    def __init__(
        self,
        down: Tensor,
        up: Tensor,
        down_bias: Tensor | None = None,
        up_bias: Tensor | None = None,
        activation: Callable[[Tensor], Tensor] = F.relu,
    ) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(down), nn.Parameter(up)
        self.down_bias = None if down_bias is None else nn.Parameter(down_bias)
        self.up_bias = None if up_bias is None else nn.Parameter(up_bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(x, self.down, self.down_bias)
        if self.down_bias is None:
            return F.linear(h, self.up) * LORA_SCALE
        return F.linear(self.activation(h), self.up, self.up_bias)

    def add_to(self, y: Tensor, x: Tensor) -> None:
        """y += self(x), in place and without a temporary [..., out] tensor. x may be y."""
        h = F.linear(x, self.down, self.down_bias)
        if self.down_bias is None:
            y.addmm_(h, self.up.t(), alpha=LORA_SCALE)
            return
        assert self.up_bias is not None
        y.addmm_(self.activation(h), self.up.t()).add_(self.up_bias)


class NormShift(nn.Module):
    """The change of a LayerNorm's output if `gain` and `bias` [dim] are added to its own: x [..., dim] ->
    [..., dim]."""

    def __init__(self, gain: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(gain), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.gain.shape, self.gain, self.bias, NORM_EPS)

    def add_to(self, y: Tensor, x: Tensor) -> None:
        """y += self(x), in place."""
        y += self(x)


Change = LowRankLayer | NormShift


class Forms:
    """The forms of one module that executors have made, one for each executor. Thread-safe.

    A form lives as long as both its executor and its module do. It must refer to neither.
    """

    def __init__(self) -> None:
        self._by: WeakKeyDictionary[object, tuple[Any, int]] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self.bytes = 0
        """Bytes of all forms, as of the last one that was made."""
        self.check: Callable[[], None] = lambda: None
        """Called before a form is made; it raises if the module's tensors must not be read."""

    def of(self, executor: object, make: Callable[[], tuple[Form, int]]) -> Form:
        """The executor's form of the module. `make` returns it and its bytes, and is called once."""
        found = self._by.get(executor)
        if found is None:
            with self._lock:
                found = self._by.get(executor)
                if found is None:
                    self.check()
                    found = self._by[executor] = make()
                    self.bytes = sum(size for _, size in self._by.values())
        return cast(Form, found[0])

    def __deepcopy__(self, _: object) -> Forms:
        return Forms()


class TenantModule(nn.Module):
    """A tenant's changes to the upper layers; `sites` has the keys `layer-site`, counted from the split.

    Its tensors may be views of a file, in the type in which they are stored. An executor computes with a form
    of its own (`forms`), which it makes ahead of the first batch (`Executor.prepare`) or in it.
    """

    def __init__(self, sites: Mapping[str, Change]) -> None:
        super().__init__()
        self.sites = nn.ModuleDict(sites)
        self.forms = Forms()

    def at(self, layer: int, site: str) -> Change | None:
        key = f"{layer}-{site}"
        return cast(Change, self.sites[key]) if key in self.sites else None

    def delta(self, layer: int) -> Delta:
        """The change of a layer for batches whose rows all belong to this tenant."""

        def apply(site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor:
            change = self.at(layer, site)
            if change is None:
                return y
            out: Tensor = y + change(x if norm is None else norm(y + x))
            return out

        return apply


def new_module(spec: ModuleSpec, shape: EncoderShape | DecoderShape, depth: int) -> TenantModule:
    """A module for `depth` upper layers that changes nothing yet: down is drawn from
    torch's generator, up is 0."""
    sites = {f"{i}-{site}": _fresh(spec.rank, site, shape) for i in range(depth) for site in spec.all_sites}
    return TenantModule(sites)


def module_from(state: Mapping[str, Tensor]) -> TenantModule:
    """Rebuild a module from its tensors, which it does not copy: float16 or float32. Raises Damaged."""
    parts: dict[str, dict[str, Tensor]] = {}
    try:
        for name, value in state.items():
            _, site, part = name.split(".")
            if not value.is_floating_point():
                raise ValueError(f"{name} is {value.dtype}")
            parts.setdefault(site, {})[part] = value
        sites = {site: _rebuilt(site.partition("-")[2], p) for site, p in parts.items()}
    except (TypeError, ValueError) as error:
        raise Damaged(
            f"a tenant module's tensors are not a module ({error}): roll back or fine-tune again"
        ) from error
    return TenantModule(sites).eval().requires_grad_(False)


def fp32_form(executor: object, module: TenantModule) -> TenantModule:
    """An executor's form of the module: a copy in fp32, or the module itself if it is in fp32 already."""

    def make() -> tuple[TenantModule | None, int]:
        if all(tensor.dtype == torch.float32 for tensor in module.parameters()):
            return None, 0
        made = module_from({name: value.float() for name, value in module.state_dict().items()})
        return made, _bytes_of(made)

    form = module.forms.of(executor, make)
    return module if form is None else form


def fp32_form_bytes(executor: object, module: TenantModule) -> int:
    """The bytes that `fp32_form` takes beside the module."""
    form = fp32_form(executor, module)
    return 0 if form is module else _bytes_of(form)


def _bytes_of(module: TenantModule) -> int:
    return sum(tensor.nbytes for tensor in module.parameters())


def _rebuilt(site: str, parts: Mapping[str, Tensor]) -> Change:
    if site in SITES["ln"]:
        return NormShift(**parts)
    if site not in GATED and site not in ACTIVATIONS:
        raise ValueError(f"site {site!r} is unknown: it may come from a newer version")
    return LowRankLayer(**parts, activation=ACTIVATIONS.get(site, F.relu))


def _fresh(rank: int, site: str, shape: EncoderShape | DecoderShape) -> Change:
    if site in SITES["ln"]:
        return NormShift(torch.zeros(shape.dim), torch.zeros(shape.dim))
    size_in, size_out = sizes_of(site, shape)
    down, up = torch.empty(rank, size_in), torch.zeros(size_out, rank)
    nn.init.kaiming_uniform_(down, a=math.sqrt(5))
    if site in GATED:
        return LowRankLayer(down, up)
    return LowRankLayer(down, up, torch.zeros(rank), torch.zeros(size_out), ACTIVATIONS[site])


def sizes_of(site: str, shape: EncoderShape | DecoderShape) -> tuple[int, int]:
    """The sizes of a low-rank site's input and output."""
    if site in ("gate", "fi"):
        return shape.dim, shape.ffn
    if site == "fo":
        return shape.ffn, shape.dim
    if isinstance(shape, EncoderShape):
        return shape.dim, shape.dim
    wide = shape.heads * shape.head_dim
    if site in ("k", "v"):
        return shape.dim, shape.kv_heads * shape.head_dim
    return (wide, shape.dim) if site == "o" else (shape.dim, wide)
