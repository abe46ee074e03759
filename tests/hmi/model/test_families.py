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


def write_source(kind: str, folder: Path, head: bool = False, **others: Any) -> Path:
    """A random model of a family, with a head or without, as transformers writes it. others: settings."""
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
    of = transformers.AutoModelForSequenceClassification if head else transformers.AutoModel
    made = of.from_config(transformers.AutoConfig.for_model(kind, **sizes | others)).eval()
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
    states_are_equal(source)
    assert find_source(str(source)).kind == "folder"


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("roberta", {"head": True}),
        ("roberta", {"pad_token_id": 3}),
        ("xlm-roberta", {"head": True, "pad_token_id": 4}),
        ("distilbert", {"head": True}),
        ("distilbert", {"sinusoidal_pos_embds": True}),
    ],
)
def test_heads_paddings_and_positions_of_other_forms(
    kind: str, others: dict[str, Any], tmp_path: Path
) -> None:
    states_are_equal(write_source(kind, tmp_path / kind, **others), others.get("pad_token_id"))


def states_are_equal(source: Path, padding: int | None = None) -> None:
    transformers = pytest.importorskip("transformers", reason="the [adapters] extra is not installed")
    theirs = transformers.AutoModel.from_pretrained(source).eval()
    tokenizer, ours = Tokenizer(source / "tokenizer.json"), load_encoder(source)
    texts = tokenizer.encode([*random_texts(3, 1, 8, 12), "good film", ("bad", "plot")], 60)
    rows = [[tokenizer._ours(i) for i in text.ids] for text in texts]  # as the source has them
    pad = tokenizer.pad_id if padding is None else padding
    ids = pad_ids([[{0: pad, pad: 0}.get(i, i) for i in row] for row in rows])
    mask = pad_ids([[1] * len(row) for row in rows]) > 0
    given = torch.full(ids.shape, pad)
    for i, row in enumerate(rows):
        given[i, : len(row)] = torch.tensor(row)
    with torch.no_grad():
        want = theirs(given, attention_mask=mask.long(), output_hidden_states=True).hidden_states
        for layer in range(5):
            found = ours(ids, mask, upto=layer)
            torch.testing.assert_close(found[mask], want[layer][mask], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "others", [{"max_position_embeddings": 64}, {"max_position_embeddings": 68}, {"pad_token_id": 10_000}]
)
def test_weights_that_do_not_fit_the_configuration_are_refused(
    others: dict[str, int], tmp_path: Path
) -> None:
    source = write_source("roberta", tmp_path / "roberta")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | others))
    with pytest.raises(UnsupportedModel, match="does not hold the weights"):
        load_encoder(source)


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


@pytest.mark.parametrize("text", [TEXT, "good  film", " good\nfilm ", "the\t bad plot"])
def test_the_places_of_words_leave_spaces_out(source: Path, text: str) -> None:
    tokenizer = Tokenizer(source / "tokenizer.json")
    words = [text[start:end] for start, end in tokenizer.word_spans(text, 64).values()]
    assert words[0] in ("good", "the")
    assert all(word and word == word.strip() for word in words)
    assert "".join(words) == "".join(text.split())


def test_whole_words_of_bytes_are_read_as_letters(tmp_path: Path) -> None:
    made = FastTokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    signs = pre_tokenizers.ByteLevel.alphabet()
    texts = ["el país está aquí y größe für dich país aquí größe für"] * 20
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, special_tokens=specials, initial_alphabet=signs)
    )
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    made.save(str(tmp_path / "tokenizer.json"))
    assert {"país", "aquí", "größe", "für"} <= set(
        Tokenizer(tmp_path / "tokenizer.json").whole_words().values()
    )


@pytest.mark.parametrize("kind", ["electra", "modernbert", "llama", None, ["roberta"]])
def test_other_families_are_refused_by_name(kind: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(UnsupportedModel, match="roberta") as raised:
        read_shape(tmp_path)
    assert repr(kind) in raised.value.message
