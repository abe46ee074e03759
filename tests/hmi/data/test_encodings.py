"""Encodings other than UTF-8: recognised where the bytes leave no doubt, else named by the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmi.errors import InvalidData
from hmi.jobs.checks import inspect_file
from hmi.jobs.options import Reading
from hmi.training.data.rows import read_labelled_file
from hmi.training.data.text_files import CHUNK, encoding_of
from tests.hmi.labs.api_world import hmi

TEXTS = {
    "german": (
        "Das Gerät fällt ständig aus und der Kundendienst hört nicht zu",
        "Schöne Größe, läuft prima – danke für die schnelle Lieferung",
        "Für den Preis völlig in Ordnung, würde ich wieder kaufen",
    ),
    "french": (
        "Le café était fermé à midi, quelle déception après tant de kilomètres",
        "Très bon séjour, l’hôtel était très agréable et la réception à l’écoute",
        "Le déjeuner a été servi froid, et le garçon était désagréable",
    ),
    "russian": (
        "Заказ пришёл вовремя и в полной сохранности",
        "Очень долго ждал ответа поддержки",
        "Отличное качество за эти деньги",
    ),
    "mixed": (
        "They served jalapeño and crème brûlée",
        "A naïve idea, he said in Zürich",
        "Señor Muñoz’s café",
    ),
    "hungarian": (
        "A csomag időben érkezett, köszönöm",
        "Nagyon lassú volt az ügyfélszolgálat",
        "Jó minőségű",
    ),
    "czech": (
        "Příliš žluťoučký kůň úpěl ďábelské ódy",
        "Zboží přišlo včas a v pořádku",
        "Velmi špatná služba",
    ),
    "turkish": ("Ürün çok güzel, hızlı geldi", "Müşteri hizmetleri ilgisiz", "Çağrıya yanıt vermiyor"),
    "polish": ("Zażółć gęślą jaźń, przesyłka dotarła", "Obsługa była nieuprzejma", "Świetna jakość"),
    "greek": ("Η παραγγελία έφτασε στην ώρα της", "Πολύ κακή εξυπηρέτηση", "Άριστη ποιότητα"),
    "chinese": ("这个产品非常好，一直都很喜欢", "物流太慢了，客服态度也不好", "一般般，价格太贵"),
    "japanese": ("商品はとても良かったです。", "配送が遅くて残念でした。", "一度は試してください"),
}
CODECS = (
    "cp1250",
    "cp1251",
    "cp1252",
    "cp1253",
    "cp866",
    "koi8_r",
    "iso8859_2",
    "mac_roman",
    "cp850",
    "gb18030",
)
CODECS += ("shift_jis", "utf-16-le", "utf-16-be")


def table(language: str, times: int = 3) -> str:
    texts = TEXTS[language] * times
    return "text;label\r\n" + "".join(f"{text};{'ab'[i % 2]}\r\n" for i, text in enumerate(texts))


@pytest.mark.parametrize("language", TEXTS)
def test_no_encoding_is_taken_for_another_one_that_reads_it_otherwise(language: str) -> None:
    """A file is read as it was written, or refused; with too little to tell, it is refused."""
    for times in (1, 2, 4):
        text = table(language, times)
        for codec in CODECS:
            try:
                data = text.encode(codec)
            except UnicodeEncodeError:
                continue
            found = encoding_of(data)
            if found.codec != "utf-8":
                assert data.decode(found.codec) == text, (codec, found)
            elif "UTF-8" not in (inspect_file(data, "classification").error or ""):
                assert data.isascii(), codec


@pytest.mark.parametrize(
    ("language", "codec", "said"),
    [
        ("german", "cp1252", "Windows-1252, by its bytes"),
        ("french", "cp1252", "Windows-1252, by its bytes"),
        ("mixed", "cp1252", "Windows-1252, by its bytes"),
        ("russian", "cp1251", "Windows-1251, by its bytes"),
        ("russian", "koi8_r", "koi8_r, by its bytes"),
        *(
            (language, codec, "UTF-16 without a mark")
            for language in TEXTS
            for codec in ("utf-16-le", "utf-16-be")
        ),
    ],
)
def test_what_leaves_no_doubt_is_read_and_told(language: str, codec: str, said: str) -> None:
    found = read_labelled_file(table(language).encode(codec), "classification")
    assert [row.text for row in found.rows] == [*TEXTS[language] * 3]
    assert said in found.read
    if "Windows" in said:
        assert found.notes[0].startswith("the file is not UTF-8, and was read as Windows-125")
        assert "if that is wrong, give --encoding (over HTTP options.encoding)" in found.notes[0]


def test_in_doubt_the_cure_is_named_and_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = "text,label\nné,x\nb,y\nc,x\nd,y\n".encode("cp1252")
    with pytest.raises(InvalidData) as error:
        read_labelled_file(data, "classification")
    assert "looks like Windows-1252, where it is “é”" in error.value.message
    assert (
        "name its encoding, such as --encoding windows-1252 (over HTTP options.encoding)"
        in error.value.message
    )
    found = read_labelled_file(data, "classification", reading=Reading(encoding="windows-1252"))
    assert found.rows[0].text == "né"
    assert "windows-1252, as told" in found.read
    file = tmp_path / "rows.csv"
    file.write_bytes(data)
    assert (
        "--encoding windows-1252" in hmi(capsys, "check", file, "--encoding", "windows-1252").splitlines()[-1]
    )
    assert "klingon' is no encoding" in hmi(capsys, "check", file, "--encoding", "klingon", code=1)
    with pytest.raises(InvalidData, match="line 2 of data is not ascii"):
        read_labelled_file(data, "classification", reading=Reading(encoding="ascii"))


def test_what_comes_after_the_beginning_is_named_too() -> None:
    late = b"text,label\n" + b"plain words,a\nmore of them,b\n" * (CHUNK // 20) + "né,a\n".encode("cp1252")
    with pytest.raises(InvalidData, match=r"is not UTF-8: byte 2 .* --encoding windows-1252"):
        read_labelled_file(late, "classification")


def test_a_mark_of_utf8_is_no_part_of_the_first_name() -> None:
    data = table("german").encode("utf-8-sig")
    assert len(read_labelled_file(data, "classification", reading=Reading(encoding="UTF-8")).rows) == 9
