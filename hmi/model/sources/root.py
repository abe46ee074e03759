"""Roots: in memory, and as a folder of `root.json`, `tokenizer.json`, `lower`- and `upper.safetensors`."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hmi.errors import Damaged, Unavailable, UnsupportedModel
from hmi.model.checked import ROOT_CURE, check_file, file_sha256
from hmi.model.files import publish_folder, read_tensors, write_json, write_tensors
from hmi.model.network.encoder import Encoder, EncoderLayer
from hmi.model.network.shape import DecoderShape, EncoderShape
from hmi.model.sources.lower import InputBias, LocalLower
from hmi.model.sources.source import Pooling
from hmi.model.text.batching import Encoded
from hmi.model.text.tokenizer import Tokenizer

FORMAT = 5
"""The newest format of `root.json`: of language models. 4: of encoders without lower layers, and of others
than BERT and MPNet, whose words earlier releases tokenise otherwise. Roots that those read have format 3. 2
had no checksum of the file itself. 1 also had trigrams and BERT only, and no fidelity by kind of text."""
SERVED = ("tokenizer.json", "upper.safetensors")
"""The files that are read for serving."""
FILES = (*SERVED, "lower.safetensors")
"""The files that are read for building a PLOT: all but `root.json`."""


class NewerRoot(Damaged):
    """The root was written by a newer release. It is not damaged, but this release cannot read it."""


@dataclass(frozen=True, kw_only=True)
class AnyRootInfo:
    """The fields that `root.json` has for every root."""

    name: str
    version: str
    source: dict[str, str]
    """The source model: its name, kind and `sha256`."""
    shape: EncoderShape | DecoderShape
    split: int
    """The number of lower layers. 0: all are upper layers, and the PLOT holds word embeddings."""
    created: str
    n: int = 3
    """The length of the n-grams."""
    fidelity: dict[str, float] = field(default_factory=dict)
    """Errors against the source model, over all text (`hmi.training.root.fidelity`)."""
    fidelity_by_kind: dict[str, dict[str, float]] = field(default_factory=dict)
    """The same for each kind of text: general, short, a domain's."""
    files: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each file, by name."""


@dataclass(frozen=True, kw_only=True)
class RootInfo(AnyRootInfo):
    """The content of `root.json` of an encoder."""

    shape: EncoderShape
    pooling: Pooling = "mean"
    """The state or states that the source makes embeddings from: the mean of all, or the first."""
    normalise: bool = True
    """Whether the source scales embeddings to length 1."""


@dataclass(frozen=True, kw_only=True)
class GenerativeRootInfo(AnyRootInfo):
    """The content of `root.json` of a language model."""

    shape: DecoderShape
    begin: int
    """The id of the token before a text."""
    ends: list[int]
    """The ids of the tokens after a text."""
    template: str | None = None
    """The Jinja template by which a chat becomes a text."""


@dataclass
class Root:
    """An encoder's root in memory. `lower` is None if it was loaded for serving, where a PLOT replaces it."""

    info: RootInfo
    upper: nn.ModuleList
    bias: InputBias
    tokenizer: Tokenizer
    lower: LocalLower | None = None

    @property
    def dim(self) -> int:
        return self.info.shape.dim

    @property
    def max_length(self) -> int:
        return self.info.shape.positions

    def add_bias(self, rows: Tensor, texts: Sequence[Encoded]) -> Tensor:
        """Add the bias of each token's position and type to packed rows, in place; returns the rows.

        rows [tokens, dim]: the texts' rows, one text after another, from a PLOT or the lower layers. The
        sum is the input of the upper layers.
        """
        self.bias.add_packed(rows, [text.types for text in texts])
        return rows


def split_encoder(
    encoder: Encoder, split: int, cls_id: int, n: int = 3
) -> tuple[LocalLower, nn.ModuleList, InputBias]:
    """Copy an encoder's first `split` layers into a LocalLower and the rest into upper layers.

    The slots are zero, and so is the returned InputBias unless `split` is 0. Then n is 1.
    """
    assert 0 <= split < encoder.shape.layers
    assert split or n == 1
    lower = LocalLower(encoder.shape, split, cls_id, n)
    lower.embeddings.load_state_dict(encoder.embeddings.state_dict())
    lower.layers.load_state_dict(encoder.layers[:split].state_dict())
    upper = nn.ModuleList(EncoderLayer(encoder.shape) for _ in range(encoder.shape.layers - split))
    upper.load_state_dict(encoder.layers[split:].state_dict())
    bias = InputBias(encoder.shape, split)
    if not split:
        bias.embed(encoder.embeddings)
    return lower, upper, bias


def save_root(folder: Path, root: Root, tokenizer_file: Path) -> None:
    """Publish `root`, with its lower layers, as `folder`. Raises StorageFull, and then
    leaves nothing behind."""
    assert root.lower is not None
    save_files(
        folder, root.info, root.lower, _upper_state(root), lambda path: shutil.copyfile(tokenizer_file, path)
    )


def save_files(
    folder: Path,
    info: AnyRootInfo,
    lower: nn.Module,
    upper: Mapping[str, Tensor],
    tokenizer: Callable[[Path], object],
) -> None:
    """Publish a root's files as `folder`; `tokenizer` writes the tokenizer's. Raises StorageFull, and then
    leaves nothing behind."""

    def fill(aside: Path) -> None:
        write_tensors(aside / "lower.safetensors", lower.state_dict())
        write_tensors(aside / "upper.safetensors", upper)
        tokenizer(aside / "tokenizer.json")
        files = {p.name: file_sha256(p) for p in sorted(aside.iterdir())}
        write_root_info(aside, replace(info, files=files))

    publish_folder(folder, fill)


def write_root_info(folder: Path, info: AnyRootInfo) -> None:
    """Write `root.json`. Raises StorageFull."""
    form = FORMAT
    if isinstance(info, RootInfo):
        form = 3 if info.split and info.shape.kind in ("bert", "mpnet") else 4
    about = {"format": form, **asdict(info)}
    write_json(folder / "root.json", {**about, "check": _check_of(about)})


def read_root_info(folder: Path) -> RootInfo:
    """Read `root.json` of an encoder. Raises as `read_any_info`; UnsupportedModel for a language model."""
    info = read_any_info(folder)
    if not isinstance(info, RootInfo):
        raise UnsupportedModel(
            f"root {info.name} is a language model, where an encoder's root is needed: name one of these",
            field="root",
        )
    return info


def read_any_info(folder: Path) -> AnyRootInfo:
    """Read `root.json`. Raises Damaged (NewerRoot for a newer format), and Unavailable on read errors."""
    whose = f"root.json of root {folder.parent.name}"
    try:
        raw: dict[str, Any] = json.loads((folder / "root.json").read_text(encoding="utf-8"))
        if raw["format"] > FORMAT:
            raise NewerRoot(
                f"root {folder.parent.name} was written by a newer version of HMI: upgrade hmi-server"
            )
        check = raw.pop("check", None)
        if check != (_check_of(raw) if raw["format"] > 2 or check is not None else None):
            raise Damaged(f"{whose} fails its checksum: {ROOT_CURE}")
        if raw.pop("format") == FORMAT:
            return GenerativeRootInfo(**{**raw, "shape": DecoderShape(**raw["shape"])})
        return RootInfo(**{**raw, "shape": EncoderShape(**raw["shape"])})
    except FileNotFoundError as error:
        raise Damaged(f"{whose} is missing: {ROOT_CURE}") from error
    except OSError as error:
        raise Unavailable(
            f"{whose} could not be read ({error.strerror}): try again, or check the disk"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"{whose} cannot be read ({error}): {ROOT_CURE}") from error


def verify_root(folder: Path) -> list[str]:
    """Check every byte of a root's files. Returns a sentence for each problem. Raises Unavailable."""
    problems = []
    try:
        info = read_any_info(folder)
    except Damaged as error:
        return [error.message]
    for name in sorted({*info.files, *FILES}):
        try:
            check_file(folder / name, info.files.get(name), f"root {info.name}", cure=ROOT_CURE, again=True)
        except Damaged as error:
            problems.append(error.message)
    return problems


def check_files(folder: Path, info: AnyRootInfo, *, with_lower: bool) -> None:
    """Check the files that are read for serving, or all, by their hashes. Raises Damaged, Unavailable."""
    for name in FILES if with_lower else SERVED:
        check_file(folder / name, info.files.get(name), f"root {info.name}", cure=ROOT_CURE)


def load_root(folder: Path, *, with_lower: bool = False) -> Root:
    """Load a root for serving, or `with_lower` for building. Each file read is checked against its hash.

    Raises Damaged, and Unavailable if a file cannot be read. No message names a path, since tenants may see
    it.
    """
    info = read_root_info(folder)
    check_files(folder, info, with_lower=with_lower)
    try:
        tokenizer = Tokenizer(folder / "tokenizer.json")
    except UnsupportedModel as error:
        raise Damaged(f"root {info.name} cannot be used, {error.message}: {ROOT_CURE}") from error
    upper = nn.ModuleList(EncoderLayer(info.shape) for _ in range(info.shape.layers - info.split))
    bias = InputBias(info.shape, info.split)
    state = read_tensors(folder / "upper.safetensors")
    load_part(upper, state, "upper.")
    load_part(bias, state, "bias.")
    root = Root(info, upper.eval(), bias, tokenizer)
    if with_lower:
        root.lower = lower_from(read_tensors(folder / "lower.safetensors"), info, tokenizer.cls_id)
    for module in (upper, bias):
        module.requires_grad_(False)
    return root


def lower_from(state: Mapping[str, Tensor], info: RootInfo, cls_id: int) -> LocalLower:
    """Rebuild the lower layers of a root or of a further pretrained branch from their
    tensors. Raises Damaged."""
    lower = LocalLower(info.shape, info.split, cls_id, info.n)
    load_part(lower, state, "")
    return lower.eval().requires_grad_(False)


def _check_of(about: Mapping[str, Any]) -> str:
    """The checksum of all other fields of `root.json`."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _upper_state(root: Root) -> dict[str, Tensor]:
    upper = {f"upper.{k}": v for k, v in root.upper.state_dict().items()}
    return {**upper, **{f"bias.{k}": v for k, v in root.bias.state_dict().items()}}


def load_part(module: nn.Module, state: Mapping[str, Tensor], prefix: str) -> None:
    """Load the tensors whose names begin with `prefix`. Raises Damaged if they do not fit."""
    part = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    try:
        module.load_state_dict(part)
    except RuntimeError as error:
        raise Damaged(f"weights do not fit root.json: {error}") from error
