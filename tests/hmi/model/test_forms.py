"""Forms of answers: what is refused, and which tokens a guide allows, against texts written out."""

from __future__ import annotations

import random
import re
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken

from hmi.errors import InvalidInput
from hmi.model.text.form import MOST_CHOICES, Form
from hmi.model.text.generative import GenerativeTokenizer
from hmi.model.text.guides import KEPT, Guides
from tests.hmi.model.test_decoder import tokenizer_of


def tokenizer() -> GenerativeTokenizer:
    return GenerativeTokenizer(tokenizer_of(), 2, (3, 1))


@pytest.fixture(scope="module")
def guides() -> Guides:
    pytest.importorskip("llguidance", reason="the [structured] extra is not installed")
    return Guides(tokenizer())


@pytest.fixture(autouse=True)
def _ahead_at_any_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine looking ahead may seem too dear, and then a guide does not look ahead again."""
    monkeypatch.setattr("hmi.model.text.guides.DEAREST_AHEAD_S", 60.0)


def bytes_of(source: GenerativeTokenizer) -> dict[int, bytes]:
    """What each token that is not special adds to a text: byte-level BPE has a letter for each byte."""
    from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    special = set(source.fast.get_added_tokens_decoder())
    vocab = source.fast.get_vocab()
    return {id + 1: bytes(letters[c] for c in t) for t, id in vocab.items() if id not in special}


WEIRD = ('a"b\\c\nd', "é😀", "/x/", "{[]}$", "tab\t\x01\x7f", "a", "ab", "abc", "'|' ", "<|end|>")
LANGUAGES: list[tuple[Form, set[str]]] = [
    (Form(choices=("good film", "good", "bad plot", "bad", "protein binds")), set()),
    (Form(choices=WEIRD), set()),
    (Form(choices=("a<|end|>b",)), set()),
    (Form(choices=("<|start|><|end|>", " <|stop|>x")), set()),
    (Form(regex=r"<\|end\|>"), {"<|end|>"}),
    (Form(grammar='start: "<|stop|> "'), {"<|stop|> "}),
    (
        Form(regex="[ab]{1,3}(c|é)?"),
        {
            "".join(t) + end
            for n in (1, 2, 3)
            for t in product("ab", repeat=n)
            for end in ("", "c", "é")
        },
    ),
    (
        Form(grammar='start: word (" " word)?\nword: "gene" | "cell"'),
        {"gene", "cell", *(f"{a} {b}" for a in ("gene", "cell") for b in ("gene", "cell"))},
    ),
    (
        Form(json_schema={"type": "object", "properties": {"a": {"enum": [1, "x"]}}, "required": ["a"],
                          "additionalProperties": False}),
        {
            "{" + p + '"a"' + q + ":" + r + value + s + "}"
            for p, q, r, s in product(("", " "), repeat=4)
            for value in ("1", '"x"')
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("form", "texts"), LANGUAGES)
def test_allowed_tokens_are_those_by_which_a_text_can_go_on(
    form: Form, texts: set[str], guides: Guides
) -> None:
    source = guides._source
    pieces = bytes_of(source)
    allowed = {text.encode() for text in texts or form.choices or ()}
    draw = random.Random(1)
    for _ in range(25):
        guide, said = guides.guide(form), b""
        while not guide.ended:
            guide.look()
            may = {id for id in range(source.fast.get_vocab_size() + 5) if guide.allows(id)}
            rests = [text[len(said) :] for text in allowed if text.startswith(said)]
            want = {id for id, piece in pieces.items() if any(rest.startswith(piece) for rest in rests)}
            if b"" in rests:
                want |= set(source.ends)
            if may != want:  # where all texts go on alike, one token of theirs is enough
                assert len(may) == 1
                assert may < want
                assert len({rest[:1] for rest in rests}) == 1
                want = may
            row = np.arange(500, dtype=np.float32)
            assert set(np.flatnonzero(guide.kept(row) > -np.inf).tolist()) == want
            chosen = draw.choice(sorted(may))
            guide.take(chosen)
            if chosen in source.ends:
                break
            said += pieces[chosen]
        assert said in allowed
        assert guide.keeps(said.decode())
    assert not guide.keeps(said.decode() + "é")
    assert not guide.keeps("")


def test_an_end_that_its_source_marks_as_no_special_token_is_in_no_text() -> None:
    pytest.importorskip("llguidance", reason="the [structured] extra is not installed")
    fast = tokenizer_of()
    fast.add_tokens([AddedToken("</end>", special=False, normalized=False)])
    source = GenerativeTokenizer(fast, 2, (fast.token_to_id("</end>") + 1,))
    guide, said = Guides(source).guide(Form(choices=("a</end>b",))), list[int]()
    while not guide.ended:
        guide.look()
        said += [id for id in range(1, 402) if guide.allows(id)][:1]
        guide.take(said[-1])
    assert source.decode(said) == "a</end>b"
    assert source.encode(["a</end>b"], 99)[0].ids == [2, *said]


@pytest.mark.parametrize(("form", "texts"), LANGUAGES)
def test_what_a_form_says_ahead_is_how_one_of_its_texts_goes_on(
    form: Form, texts: set[str], guides: Guides
) -> None:
    """Looking ahead changes nothing: the guide allows the same tokens as one that was not asked."""
    source = guides._source
    pieces = bytes_of(source)
    allowed = {text.encode() for text in texts or form.choices or ()}
    draw, seen = random.Random(2), 0
    for _ in range(25):
        guide, other, said = guides.guide(form), guides.guide(form), b""
        while not guide.ended:
            ahead = guide.ahead()
            text = said + b"".join(pieces[id] for id in ahead)
            assert any(each.startswith(text) for each in allowed)
            seen += len(ahead)
            may = [[id for id in range(500) if each.allows(id)] for each in (guide, other)]
            assert may[0] == may[1]
            chosen = draw.choice(ahead[:1] or may[0])
            if not guide.allows(chosen):
                chosen = draw.choice(may[0])
            for each in (guide, other):
                each.take(chosen)
            if chosen in source.ends:
                break
            said += pieces[chosen]
        assert said in allowed
    assert seen > 9 or form.regex, "nothing of that regular expression is sure"


def test_json_goes_on_ahead_with_the_spaces_that_most_models_write(guides: Guides) -> None:
    wants = {"count": {"type": "integer"}, "kind": {"enum": ["small", "large"]}}
    schema = {"type": "object", "properties": wants, "required": [*wants], "additionalProperties": False}
    guide, text = guides.guide(Form(json_schema=schema)), ""
    said = [""]
    for piece in ("{", ' "', 'count": ', "17", ", ", '"kind": "', "s"):
        for id in guides._ids_of(piece):
            guide.take(id)
        text += piece
        said.append(guides._source.decode(guide.ahead()))
    assert said[1:] == ['"count": ', 'count": ', "", "", '"kind": "', "", 'mall"}']
    beginning = guides._source.decode(guides.guide(Form(json_schema=schema)).ahead())
    assert beginning == '{"count": '


def test_a_form_that_is_dear_to_look_ahead_in_is_not_asked_again(
    guides: Guides, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = Form(choices=("good film", "bad plot"))
    for dearest, more in ((1.0, True), (-1.0, False)):
        monkeypatch.setattr("hmi.model.text.guides.DEAREST_AHEAD_S", dearest)
        guide = guides.guide(form)
        guide.ahead()
        guide.take(guides._ids_of("good film")[0])
        assert bool(guide.ahead()) == more


DEEP: Any = {}
for _ in range(70):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({}, "form", "one of json_schema, json, choices, regex and grammar"),
        ({"json": True, "regex": "a"}, "form", "one of"),
        ({"choices": ()}, "form.choices", "1 to 1,000"),
        ({"choices": tuple(map(str, range(MOST_CHOICES + 1)))}, "form.choices", "1 to 1,000"),
        ({"choices": ("a", "b", "a")}, "form.choices[2]", "twice"),
        ({"choices": ("a", "")}, "form.choices[1]", "empty"),
        ({"regex": "a" * 3_000}, "form.regex", "2,048 bytes"),
        ({"grammar": "a" * 9_000}, "form.grammar", "8,192 bytes"),
        ({"json_schema": {"enum": ["a" * 17_000]}}, "form.json_schema", "16,384 bytes"),
        ({"regex": "(?:a{1000}){6}"}, "form.regex", "repeats too much"),
        ({"regex": "x(ab{2,}[c]{30}){0,200}"}, "form.regex", "repeats too much"),
        ({"grammar": 'start: "a"~1..6000'}, "form.grammar", "repeats too much"),
        ({"json_schema": {"items": {"pattern": "a{9000}"}}}, "form.json_schema.items.pattern", "repeats"),
        ({"json_schema": {"multipleOf": 999983}}, "form.json_schema", "multipleOf costs too much"),
        ({"json_schema": {"allOf": [{"multipleOf": 0.101}] * 2}}, "form.json_schema", "multipleOf"),
        ({"json_schema": DEEP}, "form.json_schema" + ".items" * 65, "more than 64 deep"),
        ({"json_schema": {"type": "string", "maxlength": 3}}, "form.json_schema.maxlength", "'maxlength'"),
        (
            {"json_schema": {"properties": {"a": {"items": {"anyOf": [{}, {"not": {}}]}}}}},
            "form.json_schema.properties.a.items.anyOf[1].not",
            "'not' is not supported",
        ),
        ({"json_schema": {"type": "string", "x-guidance": {}}}, "form.json_schema.x-guidance", "x-guidance"),
        ({"regex": "a", "probabilities": True}, "form.probabilities", "needs form.choices"),
    ],
)
def test_what_is_no_form(given: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Form(**given)
    assert caught.value.details["field"] == field
    assert said in caught.value.message


LIMIT = re.compile("too (many|much|large)|current row has|limit|more than", re.I)
WIDE = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}}
EITHER = [
    {"anyOf": [{"type": "object", "properties": {f"{x}{i}": {"type": "string"}}} for x in "pq"]}
    for i in range(16)
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"json_schema": {"type": "strin"}}, "Invalid type"),
        ({"json_schema": {"properties": [1]}}, "must be an object"),
        ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "Unsatisfiable"),
        ({"json_schema": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
        ({"json_schema": {"type": "string", "format": "nonsense"}}, "Unknown format"),
        ({"json_schema": {"$ref": "http://example.com/x"}}, "http://example.com/x"),
        ({"json_schema": {"$ref": "#"}}, "no text keeps it"),
        ({"json_schema": {"oneOf": [{"type": "string"}, {"minLength": 2}]}}, "oneOf"),
        ({"json_schema": {"allOf": EITHER}}, "too large"),
        ({"regex": "(a"}, "unclosed group"),
        ({"regex": r"(a)\1"}, "backreferences"),
        ({"regex": r"[^\x00-\U0010ffff]"}, "no text keeps it"),
        ({"grammar": "start: foo"}, "unknown name"),
        ({"grammar": "start: @foo"}, "unknown grammar"),
        ({"grammar": 'start: "a" <|end|>'}, 'unknown special token: "<|end|>"'),
        ({"grammar": 'start: "a" <[3]>'}, "'<[' is not supported"),
        ({"grammar": 'start: a\na[temperature=0.5]: "a"'}, "'temperature=' is not supported"),
        ({"grammar": '%llguidance {"allow_invalid_utf8": true}\nstart: /a/'}, "is not supported"),
    ],
)
def test_what_cannot_be_kept(given: dict[str, Any], said: str, guides: Guides) -> None:
    with pytest.raises(InvalidInput) as caught:
        guides.guide(Form(**given))
    assert "available" not in caught.value.message, "names of tokens that nobody can ask for"
    (name,) = given
    assert caught.value.details["field"] == f"form.{name}"
    assert said in caught.value.message


@pytest.mark.parametrize(
    "given",
    [
        {"regex": "((a{1,100}){1,100}){1,100}"},
        {"regex": "(a|aa)+b"},
        {"regex": "(x+x+)+y"},
        {"regex": "[a-z]{1,1000000}"},
        {"regex": "(.|\n)*[a-m](.|\n){200}[n-z](.|\n)*"},
        {"regex": "((.|\n)*[a-m](.|\n){12}){9}x"},
        {"json_schema": {"type": "array", "items": {}, "minItems": 10**6, "maxItems": 10**7}},
        {"json_schema": {"type": "string", "minLength": 10**7}},
        {"json_schema": WIDE},
        {"grammar": 'start: a\na: a a | "x" | '},
        {"grammar": "start: r0\n" + "".join(f"r{i}: r{i + 1}? r{i + 1}?\n" for i in range(30)) + 'r30: "a"?'},
        {"grammar": "start: " + " | ".join(f"/[a-z]*{i}[a-z]*/" for i in range(900))},
    ],
)
def test_a_costly_form_is_kept_or_ends_with_an_error(given: dict[str, Any], guides: Guides) -> None:
    """Each of them would take for ever, or all memory, in an engine without limits."""
    draw = random.Random(2)
    try:
        guide = guides.guide(Form(**given))
        for _ in range(80):
            guide.look()
            if guide.error is not None or guide.ended:
                break
            guide.take(draw.choice([id for id in range(1, 402) if guide.allows(id)]))
        why = "" if guide.error is None else guide.error.message
    except InvalidInput as error:
        why = error.message
    assert not why or LIMIT.search(why), why


@pytest.mark.parametrize(
    "given",
    [
        {"grammar": "start: a0\n" + "".join(f"a{i:x}:a{i + 1:x}\n" for i in range(680)) + 'a2a8: "a"'},
        {
            "json_schema": {
                "$ref": "#/$defs/0",
                "$defs": {str(i): {"oneOf": [{"$ref": f"#/$defs/{i + 1}"}]} for i in range(330)}
                | {"330": {"enum": ["a"]}},
            }
        },
    ],
)
def test_the_longest_chains_end_no_process(given: dict[str, Any], guides: Guides) -> None:
    """Of rules and of references: their one text can begin. Some three times as many would."""
    guide = guides.guide(Form(**given))
    guide.look()
    words = [guides._source.fast.decode([id - 1]) for id in range(1, 402) if guide.allows(id)]
    assert words == ['"' if "json_schema" in given else "a"]


def test_a_mask_that_costs_too_much_ends_its_text(guides: Guides, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = guides.guide(Form(regex="[a-z]+"))
    monkeypatch.setattr("hmi.model.text.guides.SLOWEST_S", -1.0)
    guide.look()
    assert guide.error is not None
    assert "costs too much" in guide.error.message
    with pytest.raises(ValueError, match="costs too much"):
        guide.allows(5)


def test_compiled_forms_are_kept_and_let_go(guides: Guides) -> None:
    form = Form(regex="[0-9]+")
    first, second = guides.guide(form), guides.guide(Form(regex="[0-9]+"))
    digit = guides._source.encode(["7"], 9)[0].ids[-1]
    first.take(digit)
    assert second.allows(digit)
    assert not any(second.allows(end) for end in guides._source.ends), "it stands at its own place"
    assert any(first.allows(end) for end in guides._source.ends)
    before = guides._kept[form.key]
    for i in range(KEPT + 5):
        guides.guide(Form(regex=f"{i}"))
    assert len(guides._kept) == KEPT
    guides.guide(form)
    assert guides._kept[form.key] is not before
    assert Form(json_schema={"title": "x"}).key != Form(json_schema={"title": "y"}).key


def test_without_the_library_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InvalidInput, match=r"install hmi-server\[structured\]"):
        Guides(tokenizer()).guide(Form(json=True))
