"""The settings of a tenant's module: kinds, sites and sizes. `hmi.core` re-exports `ModuleSpec`."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal[
    "lora",
    "parallel",
    "sequential",
    "houlsby",
    "ln",
    "lora+ln",
    "parallel+ln",
    "sequential+ln",
    "houlsby+ln",
    "lora+parallel",
]
Site = Literal[
    "q",
    "k",
    "v",
    "o",
    "gate",
    "fi",
    "fo",
    "attn",
    "ffn",
    "after_attn",
    "after_ffn",
    "after_norm",
    "ln1",
    "ln2",
]
Size = Literal["small", "default", "large"]

SITES: dict[str, tuple[Site, ...]] = {
    "lora": ("q", "k", "v", "o", "fi", "fo"),
    "parallel": ("attn", "ffn"),
    "sequential": ("after_norm",),
    "houlsby": ("after_attn", "after_ffn"),
    "ln": ("ln1", "ln2"),
}
"""The sites at which each part of a kind changes an encoder's layer. `hmi.model.tenant.modules` says what
each one reads."""
GATED: tuple[Site, ...] = ("q", "k", "v", "o", "gate", "fi", "fo")
"""The sites at which LoRA changes a language model's layer, whose FFN has a gate. No encoder has one."""

BUDGETS: dict[Size, int] = {"small": 62_500, "default": 184_000, "large": 1_000_000}
"""The most parameters of each size, without the head, on the default root (3 upper layers, 384 dimensions).
The default leaves room for lexical features within 250,000."""
_LAYERS, _DIM = 3, 384
_WIDE = ("gate", "fi", "fo")
"""Sites at the FFN's matrices, of which one side is four times the dimension."""

Depth = Literal["auto", "fast", "full"]
"""The layers that a model's next versions compute. fast: the upper half, over rows of the domain's PLOT.
full: all, on a root without lower layers. auto: those of the version that answers."""
DEPTH = (
    "fast: compute the upper half of the layers, over what the PLOT looks up. full: compute all layers, with "
    "a module in each; a text takes about twice the time. It needs a root that was imported from the same "
    "source with split 0. auto: an update keeps the layers of the version that answers, a new model is fast."
)


class ModuleSpec(BaseModel):
    """A tenant's module in the upper layers; see docs/modules.md.

    `sites` None means all sites of the kind in an encoder. `size` is replaced by the largest rank within its
    budget, so a stored spec has no size. A kind without a rank ("ln") ignores `size`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = "lora"
    rank: int = Field(default=8, ge=1, le=512)
    sites: tuple[Site, ...] | None = Field(
        default=None, description="Some of the kind's sites; a list or 'q,v'."
    )
    size: Size | None = Field(default=None, description="Chooses the rank; give one of both.")

    @property
    def all_sites(self) -> tuple[Site, ...]:
        """The sites of each layer, in the order of SITES."""
        return self.sites or _sites_of_kinds(self.kind)

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, given: Any) -> Any:
        """Normalise the input: sites in their order (None if all), and a rank in place of a size."""
        if not isinstance(given, dict) or given.get("kind", "lora") not in get_args(Kind):
            return given
        spec: dict[str, Any] = {k: v for k, v in given.items() if k != "size" or v is not None}
        known = _sites_of_kinds(spec.get("kind", "lora"))
        sites = _checked_sites(spec.get("sites"), known)
        if "sites" in spec:
            spec["sites"] = sites
        if "size" in spec and "rank" in spec:
            raise ValueError("size and rank are both given: give one of them")
        size = spec.get("size", "default")
        if "rank" in spec or size not in get_args(Size):
            return spec
        spec.pop("size", None)
        return {**spec, "rank": rank_within(BUDGETS[size], sites or known)}


def rank_within(budget: int, sites: tuple[Site, ...]) -> int:
    """The largest rank, at least 1, that keeps modules at these sites within `budget` on the default root."""
    each = budget // _LAYERS
    a_rank = 0
    for site in sites:
        if site in SITES["ln"]:
            each -= 2 * _DIM
        elif site in GATED:
            a_rank += (5 if site in _WIDE else 2) * _DIM
        else:
            a_rank += 2 * _DIM + 1
            each -= _DIM
    return max(1, each // a_rank) if a_rank else 1


def _sites_of_kinds(kind: str) -> tuple[Site, ...]:
    return tuple(site for part in kind.split("+") for site in SITES[part])


def _checked_sites(value: Any, of_encoders: tuple[Site, ...]) -> tuple[Site, ...] | None:
    if value is None:
        return None
    lora, others = SITES["lora"], tuple(site for site in of_encoders if site not in SITES["lora"])
    known = (*GATED, *others) if of_encoders[: len(lora)] == lora else of_encoders
    named = [s.strip() for s in value.split(",")] if isinstance(value, str) else value
    if not isinstance(named, (list, tuple)) or not named or any(s not in known for s in named):
        also = "" if known == of_encoders else "; of a language model also gate"
        names = ", ".join(of_encoders)
        raise ValueError(f"this kind of module has no sites {value!r}: name some of {names}{also}")
    chosen = tuple(site for site in known if site in named)
    return None if chosen == of_encoders else chosen
