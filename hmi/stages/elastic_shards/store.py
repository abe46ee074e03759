"""The shards of a root on disk, read one by one or a layer at a time. `making` writes them."""

from __future__ import annotations

import json
import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from hmi.errors import Damaged, NotFound, Unavailable
from hmi.model.checked import check_file
from hmi.model.files import read_tensors
from hmi.model.sources.root import RootInfo, read_root_info
from hmi.model.tenant.artefact import tensors_below
from hmi.stages.elastic_shards.codec import Bytes, Dictionary, LayerBuffer, LayerCut
from hmi.stages.elastic_shards.making import FOLDER, FORMAT, HEADER, REST, check_of, hash_of, layer_file
from hmi.stages.elastic_shards.versions import FULL, VERSIONS

log = logging.getLogger("hmi.stages")
CURE = "make the root's shards again"
"""The cure of damaged shards, for error messages."""


@dataclass(frozen=True)
class Place:
    """The place of one blob in its layer's file."""

    offset: int
    size: int
    """Bytes."""
    hash: str


@dataclass(frozen=True)
class LayerAbout:
    """The facts about one layer's shards."""

    cut: LayerCut
    rest: dict[str, Tensor]
    """The tensors of the layer that are not cut: biases, LayerNorms and, if it has one, the relative table,
    under their names in the layer's `state_dict`."""
    dictionaries: dict[int, Dictionary]
    """The layer's dictionary of each bitwidth."""
    places: dict[int, tuple[Place, ...]]
    """[shards] for each bitwidth: the place of each shard's blob."""
    outliers: float
    """The share of the weights that are outliers."""
    reach: float
    """The distance of outliers from the mean, in standard deviations."""


class ShardStore:
    """One root's shards. Thread-safe; each read has its own place in the file.

    What is always in memory: dictionaries, biases, LayerNorms, relative attention and the input bias.
    """

    def __init__(self, folder: Path, info: RootInfo) -> None:
        """Open the shards of the root in `folder`; prefer `open_shards`. See there for errors."""
        self.info = info
        self.made: str
        """The checksum of the header, which identifies these shards."""
        self._whose = f"the shards of root {info.name}"
        header = self._header(folder / FOLDER / HEADER)
        path = folder / FOLDER / REST
        check_file(path, header["rest"], self._whose, cure=CURE)
        tensors = read_tensors(path)
        try:
            self.bias = tensors_below(tensors, "bias")
            """The tensors of the root's `InputBias`."""
            self.layers = tuple(self._about(i, each, tensors) for i, each in enumerate(header["layers"]))
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise Damaged(f"{HEADER} of {self._whose} cannot be read ({error}): {CURE}") from error
        self.resident_bytes = sum(tensor.nbytes for tensor in tensors.values())
        """The bytes that the store keeps in memory."""
        with ExitStack() as stack:
            self._files = [
                stack.enter_context(self._opened(folder / FOLDER / layer_file(i)))
                for i in range(len(self.layers))
            ]
            self._closing = stack.pop_all()

    @property
    def shards(self) -> int:
        """The number of shards of each layer."""
        return len(self.layers[0].cut)

    def size(self, layer: int, shard: int, bits: int) -> int:
        """Return the bytes that `read` reads."""
        return self.layers[layer].places[bits][shard].size

    @property
    def full_bytes(self) -> int:
        """The bytes of all shards at full precision."""
        return sum(place.size for layer in self.layers for place in layer.places[FULL])

    def read(self, layer: int, shard: int, bits: int) -> Bytes:
        """Read one shard's blob. Raises Damaged if its hash is wrong, Unavailable if it cannot be read."""
        place = self.layers[layer].places[bits][shard]
        return self._checked(layer, bits, shard, self._read(layer, place.offset, place.size))

    def decode(self, layer: int, shard: int, bits: int, blob: Bytes, buffer: LayerBuffer) -> None:
        """Write a blob's weights into their place in a buffer of this layer."""
        found = self.layers[layer].dictionaries.get(bits)
        buffer.decode(shard, bits, blob, None if found is None else found.pairs)

    def verify(self) -> list[str]:
        """Check every blob. Returns a sentence for each problem. Raises Unavailable."""
        problems = []
        for layer in range(len(self.layers)):
            for bits in VERSIONS:
                for shard in range(self.shards):
                    try:
                        self.read(layer, shard, bits)
                    except Damaged as error:
                        problems.append(error.message)
        return problems

    def close(self) -> None:
        """Close the files. Reads fail afterwards."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self, path: Path) -> Any:
        try:
            return path.open("rb", buffering=0)
        except FileNotFoundError as error:
            raise Damaged(f"{path.name} of {self._whose} is missing: {CURE}") from error
        except OSError as error:
            raise self._unread(path.name, error) from error

    def _unread(self, name: str, error: OSError) -> Unavailable:
        return Unavailable(
            f"{name} of {self._whose} could not be read ({error.strerror}): try again; if it stays so, check "
            "the disk"
        )

    def _read(self, layer: int, offset: int, size: int) -> Bytes:
        """Read bytes of a layer's file; fewer than asked for where the file ends early."""
        data, got = np.empty(size, np.uint8), 0
        try:
            while got < size:
                more = os.preadv(self._files[layer].fileno(), [data[got:].data], offset + got)
                if more == 0:
                    break
                got += more
        except OSError as error:
            raise self._unread(layer_file(layer), error) from error
        return data[:got]

    def _checked(self, layer: int, bits: int, shard: int, blob: Bytes) -> Bytes:
        if hash_of(blob) != self.layers[layer].places[bits][shard].hash:
            raise Damaged(
                f"shard {shard} of layer {layer} at {bits} bits of root {self.info.name} fails its checksum: "
                f"{CURE}"
            )
        return blob

    def _header(self, path: Path) -> Any:
        try:
            header: Any = json.loads(path.read_text(encoding="utf-8"))
            if header["format"] > FORMAT:
                raise Damaged(f"{self._whose} were written by a newer version of HMI: upgrade hmi-server")
            self.made = str(header.pop("check"))
            if self.made != check_of(header):
                raise Damaged(f"{HEADER} of {self._whose} fails its checksum: {CURE}")
            if not isinstance(header["rest"], str) or not header["layers"]:
                raise ValueError("it has no layers")
            if header["weights"] != self.info.files.get("upper.safetensors"):
                raise Damaged(f"{self._whose} were made from other weights than the root has now: {CURE}")
        except FileNotFoundError as error:
            raise NotFound(f"root {self.info.name} has no shards: make them first") from error
        except OSError as error:
            raise self._unread(HEADER, error) from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Damaged(f"{HEADER} of {self._whose} cannot be read ({error}): {CURE}") from error
        return header

    def _about(self, layer: int, about: Any, tensors: dict[str, Tensor]) -> LayerAbout:
        mine = tensors_below(tensors, f"layers.{layer}")
        order, tables = tensors_below(mine, "order"), tensors_below(mine, "table")
        cut = LayerCut.ordered(self.info.shape.dim, order["heads"].tolist(), order["neurons"].numpy())
        return LayerAbout(
            cut=cut,
            rest={k: v for k, v in mine.items() if not k.startswith(("order.", "table."))},
            dictionaries={int(k): Dictionary(v.numpy()) for k, v in tables.items() if len(v)},
            places={bits: tuple(Place(*each) for each in about["blobs"][str(bits)]) for bits in VERSIONS},
            outliers=float(about["outliers"]),
            reach=float(about["reach"]),
        )


def open_shards(folder: Path) -> ShardStore:
    """Open the shards of the root in `folder`.

    Raises NotFound if it has none; Damaged if they are damaged, of other weights or of a newer format;
    Unavailable if they cannot be read.
    """
    return ShardStore(folder, read_root_info(folder))
