"""Encoders of further families against transformers: RoBERTa, XLM-R, CamemBERT and DistilBERT."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from hmi.errors import UnsupportedModel
from hmi.model.network.shape import read_shape
from hmi.model.sources.source import find_source, load_encoder
from hmi.model.text.batching import pad_ids
from hmi.model.text.tokenizer import Tokenizer
from hmi.training.data.rows import Row
from hmi.training.second.augmentation import similar_words, variants
from tests.tiny import WORDS, random_texts

FAMILIES = ("roberta", "xlm-roberta", "camembert", "distilbert")
TEXT = "good film, the bad plot rises"


def tokenizer_of(kind: str) -> FastTokenizer:
    """A small tokenizer of the form that the family's published ones have, learnt from random texts."""
    texts = [*random_texts(200, 3), *WORDS]
    if kind == "distilbert":
        made = FastTokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        made.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=200, special_tokens=specials))
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
        return made
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    if kind == "roberta":
        made = FastTokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        signs = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(
            texts, trainers.BpeTrainer(vocab_size=500, special_tokens=specials, initial_alphabet=signs)
        )
        made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    else:
        pieces = {f"▁{word}": -5.0 for word in WORDS} | dict.fromkeys("▁,.abcdefghijklmnopqrstuvwxyz", -9.0)
        made = FastTokenizer(models.Unigram([*((sign, 0.0) for sign in specials), *pieces.items()], unk_id=3))
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
        )
        made.add_special_tokens(specials)
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    return made


def write_source(kind: str, folder: Path) -> Path:
    """A random model of a family, as transformers writes it."""
    transformers = pytest.importorskip("transformers", reason="the [adapters] extra is not installed")
    fast = tokenizer_of(kind)
    sizes: dict[str, Any] = {"vocab_size": fast.get_vocab_size(), "max_position_embeddings": 66}
    if kind == "distilbert":
        sizes |= {"dim": 32, "n_heads": 4, "n_layers": 4, "hidden_dim": 64}
    else:
        sizes |= {
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_hidden_layers": 4,
            "intermediate_size": 64,
        }
        sizes |= {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
    torch.manual_seed(0)
    made = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **sizes)).eval()
    with torch.no_grad():
        for weights in made.parameters():
            weights.add_(torch.randn_like(weights) * 0.2)
    made.save_pretrained(folder, safe_serialization=True)
    fast.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(request.param, tmp_path_factory.mktemp("source") / request.param)


def test_hidden_states_equal_transformers(source: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the [adapters] extra is not installed")
    theirs = transformers.AutoModel.from_pretrained(source).eval()
    tokenizer, ours = Tokenizer(source / "tokenizer.json"), load_encoder(source)
    texts = tokenizer.encode([*random_texts(3, 1, 8, 12), "good film", ("bad", "plot")], 64)
    ids = pad_ids([text.ids for text in texts])
    mask, pad = ids > 0, tokenizer.pad_id
    given = torch.where(ids == pad, 0, torch.where(ids == 0, pad, ids)) if pad else ids
    with torch.no_grad():
        want = theirs(given, attention_mask=mask.long(), output_hidden_states=True).hidden_states
        for layer in range(5):
            found = ours(ids, mask, upto=layer)
            torch.testing.assert_close(found[mask], want[layer][mask], atol=1e-5, rtol=1e-5)
    assert find_source(str(source)).kind == "folder"


def test_words_have_the_tokens_that_they_have_in_a_text(source: Path) -> None:
    tokenizer = Tokenizer(source / "tokenizer.json")
    rng = random.Random(0)
    for _ in range(50):
        words = rng.choices(WORDS, k=rng.randint(1, 8))
        text, given = tokenizer.encode([" ".join(words), words], 64)
        assert text.ids == given.ids
        assert [at for at in given.words if at is not None] == sorted(
            at for at in given.words if at is not None
        )
        assert {at for at in given.words if at is not None} == set(range(len(words)))


def test_whole_words_and_changed_copies(source: Path) -> None:
    tokenizer = Tokenizer(source / "tokenizer.json")
    whole = tokenizer.whole_words()
    assert len(whole) > 20
    assert set(WORDS) & set(whole.values())
    for i, word in list(whole.items())[:30]:
        (text,) = tokenizer.encode([f"a {word}"], 64)
        assert text.ids[-2] == i
    rows = [Row(TEXT, "x"), Row("the market price falls", "y")]
    vectors = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    found = similar_words(rows, tokenizer, vectors)
    assert found
    copies = variants(rows, 2, found, 1, 4)
    assert len(copies) == 4


def test_the_places_of_words_leave_spaces_out(source: Path) -> None:
    tokenizer = Tokenizer(source / "tokenizer.json")
    spans = tokenizer.word_spans(TEXT, 64)
    words = [TEXT[start:end] for start, end in spans.values()]
    assert words[0] == "good"
    assert all(word == word.strip() for word in words)
    assert "".join(words) == TEXT.replace(" ", "")


@pytest.mark.parametrize("kind", ["electra", "llama", None])
def test_other_families_are_refused_by_name(kind: str | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(UnsupportedModel, match="roberta") as raised:
        read_shape(tmp_path)
    assert repr(kind) in raised.value.message
