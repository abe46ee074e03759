"""The pool of texts: the sample of a corpus, and the texts that are drawn from it for a teacher."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from hmi.training.data.passages import MAX_CHARACTERS, MIN_CHARACTERS, passages, sample_corpus, sentences
from hmi.training.data.rows import Row
from hmi.training.second.pool import draw_pool, learn_marking

SUBJECTS = {
    "birds": "heron plover osprey nest wing feather migration chick beak moult",
    "bridges": "girder truss span abutment cable arch load deck pier rivet",
    "bread": "flour yeast dough crust oven knead loaf rye proving starter",
}


def sentence_of(subject: str, rng: random.Random) -> str:
    words = rng.sample(SUBJECTS[subject].split(), 4)
    return f"The {words[0]} and the {words[1]} of {rng.randrange(10**6)} have a {words[2]} and a {words[3]}."


def corpus(rng: random.Random, documents: int = 200) -> list[str]:
    return [" ".join(sentence_of(s, rng) for _ in range(4)) for s in SUBJECTS for _ in range(documents)]


def test_sentences_end_where_they_do() -> None:
    text = 'Dr. A. Smith et al. found 2.5 mg. "So?" he said. (It is late.)  Then\n\nA new paragraph。次の文。'
    assert list(sentences(text)) == [
        "Dr. A. Smith et al. found 2.5 mg.",
        '"So?" he said.',
        "(It is late.)",
        "Then",
        "A new paragraph。",
        "次の文。",
    ]


@pytest.mark.parametrize("unit", ["A sentence of some words. ", "no full stop anywhere ", "x" * 30, "文" * 9])
def test_passages_hold_the_whole_document(unit: str) -> None:
    document = unit * 400
    found = list(passages(document))
    assert max(map(len, found)) <= MAX_CHARACTERS < 2 * min(map(len, found[:-1]))
    assert re.sub(r"\s", "", "".join(found)) == re.sub(r"\s", "", document)


def test_a_sample_is_bounded_and_each_passage_has_the_same_chance() -> None:
    documents = [f"the document of the number {i:05d}" for i in range(4_000)]
    drawn = sample_corpus(documents, passages_most=1_000)
    assert len(drawn) == len(set(drawn)) == 1_000
    quarters = Counter(int(text[-5:]) // 1_000 for text in drawn)
    assert all(200 < quarters[i] < 300 for i in range(4))  # four standard deviations are 55
    size = len(documents[0])
    assert sample_corpus(documents, bytes_most=100 * size + 5) == drawn[:100]
    assert sample_corpus(documents, seed=1, passages_most=1_000) != drawn


def test_samples_of_parts_together_are_the_sample_of_the_whole() -> None:
    documents = corpus(random.Random(0))
    shuffled = random.Random(1).sample(documents, len(documents))
    whole = sample_corpus(documents, bytes_most=20_000)
    assert sample_corpus([*shuffled, *documents[:50]], bytes_most=20_000) == whole
    parts = [sample_corpus(part, bytes_most=20_000) for part in (documents[:250], documents[250:])]
    assert sample_corpus([*parts[0], *parts[1]], bytes_most=20_000) == whole
    assert sample_corpus(["1.", "x" * (MIN_CHARACTERS - 1)]) == []


def test_the_nearest_texts_are_of_the_rows_subject() -> None:
    rng = random.Random(0)
    texts = corpus(rng)
    rows = [Row(sentence_of("birds", rng), "a") for _ in range(30)]
    drawn = draw_pool(rows, texts, 300, 0)
    assert len(drawn) == len({row.text for row in drawn}) == 300
    birds = set(SUBJECTS["birds"].split())
    assert all(birds & set(re.findall(r"\w+", str(row.text))) for row in drawn)
    assert drawn == draw_pool(rows, texts, 300, 0)
    of_all = draw_pool(rows, texts, 300, 0, near=False)
    assert 50 < sum(bool(birds & set(re.findall(r"\w+", str(row.text)))) for row in of_all) < 150


def test_each_row_has_its_share_of_texts() -> None:
    rng = random.Random(0)
    rows = [Row(sentence_of("birds", rng), "a") for _ in range(60)]
    rows += [Row(sentence_of("bread", rng), "b") for _ in range(20)]
    drawn = draw_pool(rows, corpus(rng), 80, 0)
    bread = set(SUBJECTS["bread"].split())
    assert 10 <= sum(bool(bread & set(re.findall(r"\w+", str(row.text)))) for row in drawn) <= 30


def test_no_text_equals_a_row() -> None:
    rng = random.Random(0)
    texts = [sentence_of("birds", rng) for _ in range(40)]
    rows, held_out = [Row(t.upper(), "a") for t in texts[:10]], [Row(f"{t}!", "a") for t in texts[10:15]]
    drawn = draw_pool(rows, texts, 100, 0, held_out=held_out)
    assert {row.text for row in drawn} == set(texts[15:])
    assert all(row.label == "" for row in drawn)
    # Nor is a row a part of one.
    both = draw_pool([Row("One of these. Two of those.", "a")], [f"{held_out[0].text} Another heron."], 5, 0)
    assert len(both) == 1
    inside = [Row("A bird is here. It sits.", "a")]
    assert draw_pool(inside, [f"{texts[0]} It flies."], 5, 0, held_out=[Row(texts[0], "a")]) == []


def test_texts_are_as_long_as_the_rows() -> None:
    rng = random.Random(0)
    texts = corpus(rng)
    short = [Row(" ".join(rng.sample(SUBJECTS["birds"].split(), 5)), "a") for _ in range(20)]
    assert {len(str(row.text).split()) for row in draw_pool(short, texts, 50, 0)} == {5}
    long = [Row(" ".join(sentence_of("birds", rng) for _ in range(4)), "a") for _ in range(20)]
    assert {str(row.text).count(".") for row in draw_pool(long, texts, 50, 0)} == {4}


def test_texts_for_tagging_are_split_as_the_rows_are() -> None:
    rows = [Row(["IL", "-", "2", "of", "the", "heron", "is", "no", "receptor", "."], ("O",) * 10)] * 4
    assert draw_pool(rows, ["A heron has an IL-6 receptor."], 5, 0) == [
        Row(["A", "heron", "has", "an", "IL", "-", "6", "receptor", "."], "")
    ]


def test_pairs_and_nothing_have_no_texts() -> None:
    assert draw_pool([Row(("a b", "c d"), "x")], ["A text of some words."], 5, 0) == []
    assert draw_pool([], ["A text of some words."], 5, 0) == []
    assert draw_pool([Row("the text", "a")], [], 5, 0) == []
    assert draw_pool([Row("the text", "a")], ["?!", "--- ... ---"], 5, 0) == []
    assert draw_pool([Row("!!!", "a")], ["A text."], 5, 0) == []


@pytest.mark.parametrize(("a", "b"), [(("<< ", " >>"), ("[[ ", " ]]")), (("<e1>", "</e1>"), ("[B]", "[/B]"))])
def test_texts_have_the_markers_of_the_rows(a: tuple[str, str], b: tuple[str, str]) -> None:
    def row(first: str, second: str) -> Row:
        return Row(f"We saw that {a[0]}{first}{a[1]} inhibits {b[0]}{second}{b[1]}, in mice.", "x")

    rows = [row("aspirin", "cox two"), row("ibuprofen", "kinase"), row("kinase", "aspirin")]
    texts = ["In mice we saw that kinase inhibits ibuprofen.", "Here << and <e1> are [[ [B] said."]
    drawn = draw_pool(rows, texts, 5, 0)
    both = {(x, y) for x, y in ((a, b), (b, a))}
    assert [text.text for text in drawn] in [
        [f"In mice we saw that {x[0]}kinase{x[1]} inhibits {y[0]}ibuprofen{y[1]}."] for x, y in both
    ]
    # What a row is without its markers is no new text.
    assert draw_pool(rows, ["We saw that aspirin inhibits cox two, in mice."], 5, 0) == []


def test_a_text_of_unknown_words_is_marked_too() -> None:
    marking = learn_marking(["a <<b>> c [[d]] e", "[[d]] a <<f>> c"])
    assert marking is not None
    marked = marking.marked("x y z w v u", random.Random(0))
    assert marking.without(marked) == "x y z w v u"
    assert marked.count("<<") == marked.count(">>") == marked.count("[[") == 1
    assert learn_marking(["a <<b>> c", "no marks", "none"]) is None
