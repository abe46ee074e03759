"""Language models against transformers, and GGUF files against folders of the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as FastTokenizer

from hmi.errors import InvalidInput, UnsupportedModel
from hmi.model.network.decoder import attend_before
from hmi.model.network.shape import read_config, read_decoder_shape
from hmi.model.sources.language_model import LanguageModel, load_language_model
from hmi.model.sources.source import find_source
from hmi.model.text.batching import pad_ids
from hmi.model.text.generative import GenerativeTokenizer
from tests.tiny import WORDS, random_texts

SPECIALS = ["<|end|>", "<|start|>", "<|stop|>"]
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('no such role') }}{% endif %}\n"
    "{{ '<|start|>' + message['role'] + '\n' + message['content'] | trim + '<|stop|>' }}\n"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
KINDS = ("llama", "qwen2", "qwen3")


def tokenizer_of() -> FastTokenizer:
    """A small tokenizer of SmolLM's form, learnt from random texts."""
    made = FastTokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    signs = pre_tokenizers.ByteLevel.alphabet()
    texts = [*random_texts(200, 3), *WORDS]
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIALS, initial_alphabet=signs)
    )
    made.add_special_tokens([AddedToken(sign, normalized=False) for sign in SPECIALS])
    return made


def write_language_model(kind: str, folder: Path, **others: Any) -> Path:
    """A random language model, as transformers writes it. others: settings."""
    transformers = pytest.importorskip("transformers", reason="the [adapters] extra is not installed")
    fast = tokenizer_of()
    sizes = {
        "vocab_size": fast.get_vocab_size(),
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": [2, 0],
        "pad_token_id": 2,
        "tie_word_embeddings": True,
    } | ({"head_dim": 16} if kind == "qwen3" else {})
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **sizes | others)
    made = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weights in made.parameters():
            weights.add_(torch.randn_like(weights) * 0.2)
    made.save_pretrained(folder, safe_serialization=True, max_shard_size=others.get("shard", "5GB"))
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def scores_of(model: LanguageModel, texts: list[list[int]]) -> list[torch.Tensor]:
    """The logits of texts in our ids, [T, the source's vocabulary] each, padded together."""
    with torch.inference_mode():
        logits = model.decoder.logits(model.decoder(pad_ids(texts)))
    assert (logits[..., 0] == -torch.inf).all()
    return [row[: len(text), 1:] for row, text in zip(logits, texts, strict=True)]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(kind: str, tied: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the [adapters] extra is not installed")
    folder = write_language_model(kind, tmp_path / kind, tie_word_embeddings=tied)
    source = find_source(str(folder))
    assert source.generates
    model = load_language_model(source)
    texts = [t.ids for t in model.tokenizer.encode([*random_texts(3, 1, 8, 12), "good film 2024"], 60)]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    for ours, text in zip(scores_of(model, texts), texts, strict=True):
        with torch.inference_mode():
            want = theirs(torch.tensor([text]) - 1).logits[0]
        assert (ours - want).abs().max() < 1e-5 * want.abs().max()


def test_weights_in_several_files(tmp_path: Path) -> None:
    whole = load_language_model(find_source(str(write_language_model("llama", tmp_path / "whole"))))
    folder = write_language_model("llama", tmp_path / "parts", shard="50KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    parts = find_source(str(folder))
    for a, b in zip(whole.decoder.parameters(), load_language_model(parts).decoder.parameters(), strict=True):
        assert torch.equal(a, b)
    sorted(folder.glob("*.safetensors"))[1].unlink()
    with pytest.raises(UnsupportedModel, match=r"no model-00002-of"):
        find_source(str(folder))


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "scaled rotary positions"),
    ],
)
def test_what_does_not_fit_is_named(others: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = write_language_model("llama", tmp_path / "llama")
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **others}))
    with pytest.raises(UnsupportedModel, match=said):
        find_source(str(folder))


@pytest.mark.parametrize(
    "others", [{"bos_token_id": 10_000}, {"bos_token_id": "x"}, {"eos_token_id": [True, None, -1]}]
)
def test_a_begin_or_end_that_the_tokenizer_lacks_is_named(others: dict[str, Any], tmp_path: Path) -> None:
    folder = write_language_model("llama", tmp_path / "llama")
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **others}))
    with pytest.raises(UnsupportedModel, match="bos_token_id"):
        load_language_model(find_source(str(folder)))
    config.write_text("[]")
    with pytest.raises(UnsupportedModel, match="not a JSON object"):
        find_source(str(folder))


def test_missing_and_further_weights_are_refused(tmp_path: Path) -> None:
    folder = write_language_model("llama", tmp_path / "llama")
    config = folder / "config.json"
    about = json.loads(config.read_text())
    for layers in (3, 5):
        config.write_text(json.dumps({**about, "num_hidden_layers": layers}))
        with pytest.raises(UnsupportedModel, match=r"layers\.[34]"):
            load_language_model(find_source(str(folder)))


def gguf_of(folder: Path, path: Path, kind: str, quantised: bool = False, factor: float = 0.0) -> Path:
    """The model of a Hugging Face folder as a GGUF file, as llama.cpp's converter would write it."""
    gguf = pytest.importorskip("gguf", reason="the [gguf] extra is not installed")
    model = load_language_model(find_source(str(folder)))
    shape, config = model.decoder.shape, read_config(folder)
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.dim)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_rope_freq_base(shape.base)
    if factor:
        writer.add_float32(f"{kind}.rope.scaling.factor", factor)
    writer.add_layer_norm_rms_eps(shape.eps)
    fast = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(fast["model"]["vocab"], key=fast["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in fast["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    from safetensors.torch import load_file

    from hmi.model.sources.gguf import _LAYER, _OTHERS

    names = {theirs: ours for ours, theirs in (_LAYER | _OTHERS).items()}
    for name, value in load_file(folder / "model.safetensors").items():
        stem, part = name.rsplit(".", 1)
        if stem.startswith("model.layers."):
            _, _, layer, site = stem.split(".", 3)
            new = f"blk.{layer}.{names[site]}"
            if kind == "llama" and site in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = shape.heads if site == "self_attn.q_proj" else shape.kv_heads
                value = value.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(value.shape)
        else:
            new = names[stem]
        data = value.contiguous().numpy()
        if quantised and data.ndim == 2:
            kind_of = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{new}.{part}", gguf.quants.quantize(data, kind_of), raw_dtype=kind_of)
        else:
            writer.add_tensor(f"{new}.{part}", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_gguf_file_equals_its_folder(kind: str, tmp_path: Path) -> None:
    folder = write_language_model(kind, tmp_path / kind)
    path = gguf_of(folder, tmp_path / "model.gguf", kind)
    one, other = load_language_model(find_source(str(folder))), load_language_model(find_source(str(path)))
    assert read_decoder_shape(read_config(folder)).base == other.decoder.shape.base
    for (name, a), b in zip(one.decoder.named_parameters(), other.decoder.parameters(), strict=True):
        assert torch.equal(a, b), name
    text = "good film, 2024\n\n  it's <|stop|> ünïcode"
    for specials in (False, True):
        ids = [m.tokenizer.encode([text], 99, specials=specials)[0].ids for m in (one, other)]
        assert ids[0] == ids[1]
        assert (3 in ids[0]) is specials  # <|stop|>
    assert one.tokenizer.template == other.tokenizer.template
    quantised = load_language_model(find_source(str(gguf_of(folder, tmp_path / "q.gguf", kind, True))))
    worst = max(
        float((a - b).abs().max())
        for a, b in zip(one.decoder.parameters(), quantised.decoder.parameters(), strict=True)
    )
    assert 0 < worst < 0.02


def test_a_gguf_file_of_scaled_positions_is_refused(tmp_path: Path) -> None:
    folder = write_language_model("llama", tmp_path / "llama")
    path = gguf_of(folder, tmp_path / "scaled.gguf", "llama", factor=4.0)
    with pytest.raises(UnsupportedModel, match="scaled rotary positions"):
        load_language_model(find_source(str(path)))


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_language_model("llama", tmp_path / "llama")
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "model.norm.weight": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight is \(1,\), not \(32,\)"):
        load_language_model(find_source(str(folder)))
    with pytest.raises(UnsupportedModel, match="neither a folder"):
        find_source("a" * 300 + ".gguf")


def test_a_gguf_file_that_does_not_fit(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the [gguf] extra is not installed")
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(UnsupportedModel, match=r"no model\.safetensors"):
        find_source(str(tmp_path / "folder.gguf"))
    (tmp_path / "no.gguf").write_bytes(b"")
    with pytest.raises(UnsupportedModel, match="is not a GGUF file"):
        find_source(str(tmp_path / "no.gguf"))
    (tmp_path / "no.gguf").write_bytes(b"GGUF" + np.arange(99, dtype=np.uint8).tobytes())
    with pytest.raises(UnsupportedModel, match="cannot be imported"):
        load_language_model(find_source(str(tmp_path / "no.gguf")))
    (tmp_path / "other.gguf").write_bytes(b"")
    with pytest.raises(UnsupportedModel, match="2 GGUF files"):
        find_source(str(tmp_path))


def test_another_architecture_is_refused_before_the_whole_file_is_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the [gguf] extra is not installed")
    path = tmp_path / "other.gguf"
    for first in (True, False):
        writer = gguf.GGUFWriter(str(path), "gpt2")
        writer.add_name("other")
        (fields,) = writer.kv_data
        if not first:
            fields["general.architecture"] = fields.pop("general.architecture")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        with pytest.raises(UnsupportedModel, match=r"its architecture is 'gpt2', not one of llama,"):
            find_source(str(path)) if first else load_language_model(find_source(str(path)))


def test_texts_and_chats(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the [adapters] extra is not installed")
    folder = write_language_model("llama", tmp_path / "llama")
    tokenizer = load_language_model(find_source(str(folder))).tokenizer
    text = tokenizer.encode(["good film", "<|start|>good"], 4)
    assert [each.ids[0] for each in text] == [2, 2]
    assert [each.truncated for each in text] == [False, True]
    assert tokenizer.decode(text[0].ids) == "good film"
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_of(), bos_token="<|start|>", eos_token="<|stop|>", chat_template=TEMPLATE
    )
    chats = [
        [{"role": "user", "content": word}, {"role": "assistant", "content": f" {word}\n\n{i} "}]
        for i, word in enumerate(WORDS[:20])
    ]
    for i, chat in enumerate(chats):
        whole = tokenizer.chat(chat, answer=bool(i % 2))
        assert whole == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=bool(i % 2))
        ids = tokenizer.encode([whole], 99, specials=True)[0].ids
        assert [j - 1 for j in ids] == theirs.apply_chat_template(chat, add_generation_prompt=bool(i % 2))
    with pytest.raises(InvalidInput, match="no such role"):
        tokenizer.chat([{"role": "tool", "content": "a"}])
    for message in ({"role": "user", "content": "a<|stop|>b"}, {"role": "<|stop|>user", "content": "a"}):
        with pytest.raises(InvalidInput, match=r"messages\[0\]\.\w+ holds .* <\|stop\|>"):
            tokenizer.chat([message])
    with pytest.raises(InvalidInput, match=r"messages\[0\]\.content is not a text"):
        tokenizer.chat([{"role": "assistant", "content": None}])
    broken = GenerativeTokenizer(tokenizer.fast, tokenizer.begin, tokenizer.ends, "{{ 1 / 0 }}")
    with pytest.raises(InvalidInput, match=r"refuses this chat: division by zero"):
        broken.chat([{"role": "user", "content": "a"}])


def test_a_tokenizer_with_more_ids_than_words_is_refused(tmp_path: Path) -> None:
    folder = write_language_model("llama", tmp_path / "llama")
    fast = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    fast.add_tokens(["further"])
    fast.save(str(folder / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match="ids beyond vocab_size = 400"):
        load_language_model(find_source(str(folder)))


def test_the_last_tokens_of_generation_config(tmp_path: Path) -> None:
    folder = write_language_model("llama", tmp_path / "llama")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    assert load_language_model(find_source(str(folder))).tokenizer.ends == (3, 1, 6)


@pytest.mark.parametrize("heads", [(6, 2), (4, 4)])
def test_attention_that_trains_in_bf16_is_the_fused_one_but_for_rounding(heads: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, n, 11, 16, generator=draw) for n in (heads[0], heads[1], heads[1]))
    back = torch.randn(3, heads[0], 11, 16, generator=draw)
    found = []
    for number in (torch.float32, torch.bfloat16):
        mine = [x.clone().requires_grad_() for x in (q, k, v)]
        mixed = attend_before(mine[0], mine[1], mine[2].to(number))
        assert mixed.dtype == number
        (mixed.float() * back).sum().backward()
        found.append([mixed.detach().float(), *(x.grad for x in mine)])
    for exact, near in zip(*found, strict=True):
        assert exact is not None
        assert near is not None
        assert float((near - exact).norm() / exact.norm()) < 0.02
