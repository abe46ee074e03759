"""LoRAs of language models in the form of `peft`: both ways, against transformers and `peft`, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from hmi.core import ModuleSpec
from hmi.errors import InvalidInput
from hmi.model.network.decoder import attend_before, rotary
from hmi.model.sources.language_model import LanguageModel, load_language_model
from hmi.model.sources.source import find_source
from hmi.model.tenant.interchange_peft import PATHS, read_peft, write_peft
from hmi.model.tenant.modules import TenantModule, module_from, new_module
from tests.hmi.model.test_decoder import write_language_model

SPLIT = 1
IDS = [1, 40, 12, 77, 5, 90, 33]
"""Ids of the source; ours are one more."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_language_model("llama", tmp_path_factory.mktemp("peft") / "tiny")


@pytest.fixture(scope="module")
def model(source: Path) -> LanguageModel:
    return load_language_model(find_source(str(source)))


def module_of(model: LanguageModel, spec: ModuleSpec) -> TenantModule:
    shape = model.decoder.shape
    torch.manual_seed(4)
    made = new_module(spec, shape, shape.layers - SPLIT)
    for change in made.sites.values():
        torch.nn.init.normal_(change.up, std=0.3)  # type: ignore[arg-type]
    return made.requires_grad_(False)


@torch.inference_mode()
def scores(model: LanguageModel, module: TenantModule | None) -> Tensor:
    """The scores of the source's words after each of IDS."""
    decoder = model.decoder
    x = decoder.word(torch.tensor([[i + 1 for i in IDS]]))
    for i, layer in enumerate(decoder.layers):
        delta = {} if module is None or i < SPLIT else {"delta": module.delta(i - SPLIT)}
        x = layer(x, rotary(len(IDS), decoder.shape.head_dim, decoder.shape.base), attend_before, **delta)
    return decoder.logits(x)[0, :, 1:]


@pytest.mark.parametrize("sites", [("q", "v"), tuple(PATHS)])
def test_what_is_written_is_read_again_and_means_the_same_to_transformers(
    source: Path, model: LanguageModel, sites: Any
) -> None:
    transformers = pytest.importorskip("transformers", reason="the [adapters] extra is not installed")
    spec = ModuleSpec(rank=4, sites=sites)
    module = module_of(model, spec)
    config, tensors = write_peft(spec, module.state_dict(), model.decoder.shape, SPLIT, "tiny")
    again = read_peft(json.dumps(config).encode(), tensors, model.decoder.shape, SPLIT)
    assert again.spec.all_sites == spec.all_sites
    for name, value in module.state_dict().items():
        torch.testing.assert_close(again.state[name], value)
    # What `peft` does with these names: W + B·A·alpha/r.
    theirs = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    for name, down in tensors.items():
        if "lora_A" in name:
            path = name.removeprefix("base_model.model.").replace("lora_A.", "")
            with torch.no_grad():
                theirs.get_parameter(path).add_(
                    tensors[name.replace("lora_A", "lora_B")] @ down * config["lora_alpha"] / config["r"]
                )
    with torch.inference_mode():
        want = theirs(torch.tensor([IDS])).logits[0]
    got = scores(model, module)
    assert (got - scores(model, None)).abs().max() > 0.1
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rslora", [False, True])
def test_peft_itself_reads_and_writes_the_same(
    source: Path, model: LanguageModel, tmp_path: Path, *, rslora: bool
) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    transformers = pytest.importorskip("transformers", reason="the [adapters] extra is not installed")

    def base() -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(source).eval()

    spec = ModuleSpec(rank=4, sites=("q", "k", "gate", "fo"))
    module = module_of(model, spec)
    config, tensors = write_peft(spec, module.state_dict(), model.decoder.shape, SPLIT, str(source))
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with torch.inference_mode():
        want = peft.PeftModel.from_pretrained(base(), str(tmp_path))(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(scores(model, module), want, atol=1e-4, rtol=1e-4)
    made = peft.get_peft_model(
        base(),
        peft.LoraConfig(
            task_type="CAUSAL_LM",
            r=6,
            lora_alpha=9,
            use_rslora=rslora,
            init_lora_weights=False,
            target_modules=["q_proj", "o_proj", "up_proj"],
            layers_to_transform=[1, 3],
            layers_pattern="layers",
        ),
    ).eval()
    made.save_pretrained(str(tmp_path / "theirs"))
    with torch.inference_mode():
        want = made(torch.tensor([IDS])).logits[0]
    folder = tmp_path / "theirs"
    from safetensors.torch import load_file

    read = read_peft(
        (folder / "adapter_config.json").read_bytes(),
        load_file(folder / "adapter_model.safetensors"),
        model.decoder.shape,
        SPLIT,
    )
    assert (read.spec.rank, read.spec.all_sites) == (6, ("q", "o", "fi"))
    torch.testing.assert_close(scores(model, module_from(read.state)), want, atol=1e-4, rtol=1e-4)


def test_what_has_no_counterpart_is_refused_by_name(model: LanguageModel) -> None:
    spec, shape = ModuleSpec(rank=4, sites=("q", "v")), model.decoder.shape
    config, tensors = write_peft(spec, module_of(model, spec).state_dict(), shape, SPLIT, "tiny")

    def refused(match: str, field: str, **changed: Any) -> None:
        given = changed.pop("tensors", tensors)
        with pytest.raises(InvalidInput, match=match) as caught:
            read_peft(json.dumps(config | changed).encode(), given, shape, SPLIT)
        assert caught.value.details["field"] == field

    for field, value in {
        "peft_type": "LOHA",
        "bias": "all",
        "use_dora": True,
        "rank_pattern": {"q_proj": 2},
        "modules_to_save": ["lm_head"],
        "r": 0,
        "lora_alpha": "8",
    }.items():
        refused(rf"{field} = .* cannot be converted", field, **{field: value})
    first, name = next(iter(tensors)), "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    assert first == name
    below = {key.replace("layers.1.", "layers.0."): value for key, value in tensors.items()}
    refused("changes layer 0, and the root runs layers 1 to 3", "adapter", tensors=below)
    refused(
        "changes layer 4",
        "adapter",
        tensors={k.replace("layers.1.", "layers.4."): v for k, v in tensors.items()},
    )
    refused(
        "no LoRA of a layer's matrix",
        "adapter",
        tensors={**tensors, "base_model.model.lm_head.weight": tensors[name]},
    )
    refused("has no counterpart", "adapter", tensors={k: v for k, v in tensors.items() if k != name})
    refused("where .* is needed", "adapter", tensors={**tensors, name: tensors[name][:, :3]})
    refused("not finite", "adapter", tensors={**tensors, name: tensors[name] * 1e9})
    refused("no tensors", "adapter", tensors={})
    refused("where .* is needed", "adapter", r=3)
