"""The overview, the check of files and the files of the page, over HTTP; the n-gram behind each word."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmi.api.views.page_files import INDEX, page_files
from tests.hmi.labs.api_world import hmi, rows, running, tenant


async def test_a_tenant_sees_its_own_part(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        acme = await tenant(world)
        await tenant(world, "globex")
        world.services.monitoring.metrics.usage.add("acme", requests=2, inputs=3, tokens=9, compute_ms=1.5)
        world.services.monitoring.metrics.usage.add(
            "globex", requests=1, inputs=50, tokens=99, compute_ms=9.0
        )
        status, whole, _ = await world.call("GET", "/manage/overview")
        assert status == 200
        assert [t["tenant"] for t in whole["tenants"]] == ["globex", "acme"]
        assert whole["since_start"]["texts"] == whole["points"][-1]["texts"] == 53
        assert whole["counts"] == {"roots": 0, "domains": 0, "tenants": 2, "models": 0}
        assert whole["caller"] == {"tenant": None, "scopes": ["admin", "infer", "manage"], "keyless": True}
        status, own, _ = await world.call("GET", "/manage/overview?minutes=1440", key=acme)
        assert status == 200
        assert "globex" not in str(own)
        assert own["since_start"]["texts"] == own["points"][-1]["texts"] == 3
        assert own["tenants"][0]["texts_by_point"][-1] == 3
        for hidden in ("queue", "pool", "memory_bytes", "jobs", "plot_lookups"):
            assert own[hidden] is None
            assert whole[hidden] is not None
        status, _, _ = await world.call("GET", "/manage/overview?minutes=1441")
        assert status == 422


async def test_a_file_is_checked_without_a_job(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        status, seen, _ = await world.upload("/manage/check", {}, {"data": rows(12)})
        assert (status, seen["usable"], seen["task"], seen["count"]) == (200, True, "classification", 12)
        assert sum(seen["labels"].values()) == 12
        assert set(seen["sample"][0]) == {"text", "label"}
        bad = rows(12) + b'\n{"text": "no label"}'
        status, seen, _ = await world.upload("/manage/check", {}, {"data": bad})
        assert (seen["usable"], seen["bad_rows"], seen["problems"][0]["line"]) == (False, 1, 13)
        status, seen, _ = await world.upload("/manage/check", {"skip_bad_rows": 1}, {"data": bad})
        assert seen["usable"]
        strange = b"what,said\n" + b"".join(b"%d,this is the row %d\n" % (i % 2, i) for i in range(9))
        status, seen, _ = await world.upload("/manage/check", {}, {"data": strange})
        assert (seen["usable"], seen["options"]) == (False, {"text_column": "said", "label_column": "what"})
        status, seen, _ = await world.upload("/manage/check", {"options": seen["options"]}, {"data": strange})
        assert (seen["usable"], seen["labels"], seen["options"]) == (True, {"0": 5, "1": 4}, {})
        both = {"text_column": ["said", "what"], "label_column": "x", "labels": ["no", "yes"]}
        status, seen, _ = await world.upload("/manage/check", {"options": both}, {"data": strange})
        assert "there is no column `x` (label_column)" in seen["error"]
        status, answer, _ = await world.upload(
            "/manage/check", {"options": {"label_colum": "a"}}, {"data": strange}
        )
        assert (status, answer["error"]["details"]["field"]) == (422, "options.label_colum")
        tagged = b'{"tokens": ["to", "Rome"], "tags": ["O", "B-city"]}\n' * 9
        status, seen, _ = await world.upload("/manage/check", {"task": "tagging"}, {"data": tagged})
        assert seen["sample"][0] == {"tokens": ["to", "Rome"], "tags": ["O", "B-city"]}
        status, answer, _ = await world.upload("/manage/check", {"task": "embedding"}, {"data": tagged})
        assert (status, answer["error"]["details"]["field"]) == (422, "task")
        assert (await world.call("GET", "/manage/jobs"))[1]["jobs"] == []


async def test_the_page_is_sent_with_its_policy_and_etags(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        for name in page_files():
            async with world.client.get("/" if name == INDEX else f"/page/{name}") as first:
                assert first.status == 200
                assert "unsafe" not in first.headers["Content-Security-Policy"]
                assert first.headers["X-Frame-Options"] == "DENY"
                assert first.headers["Referrer-Policy"] == "no-referrer"
                assert not first.headers["ETag"].startswith("W/")
            known = {"If-None-Match": first.headers["ETag"]}
            async with world.client.get("/" if name == INDEX else f"/page/{name}", headers=known) as again:
                assert (again.status, await again.read()) == (304, b"")
        for path in ("/page/base.py", "/page/..%2Froute.py", "/page/%2Fetc%2Fpasswd"):
            assert (await world.call("GET", path))[0] == 404
        async with world.client.get("/dashboard", allow_redirects=False) as moved:
            assert (moved.status, moved.headers["Location"]) == (308, "./")


def test_nothing_of_the_page_makes_markup_of_texts_or_asks_others() -> None:
    assert {".html", ".css", ".js", ".svg"} == {Path(name).suffix for name in page_files()}
    for name, file in page_files().items():
        text = file.body.decode().replace("http://www.w3.org/2000/svg", "")
        for never in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "://",
            "localStorage",
        ):
            assert never not in text, (name, never)
        assert len(text.splitlines()) < 250, name
        assert "style=" not in text, name


async def test_words_name_the_n_gram_that_answered(folder: Path) -> None:
    async with running(folder) as world:
        text = "cell 🧬 gene, protein!"
        wanted = {"inputs": [text], "parameters": {"return": ["words", "provenance"]}}
        _, seen, _ = await world.call("POST", "/infer/acme.m", wanted)
        words = seen["outputs"][0]["words"]
        assert [text[w["start"] : w["end"]] for w in words] == [w["text"] for w in words]
        assert [w["text"] for w in words if w["text"].isalpha()] == ["cell", "gene", "protein"]
        names = list(seen["provenance"]["plot"])
        assert all(w["order"] == max(w["orders"], key=names.index) for w in words)
        tokens = sum(len(w["orders"]) for w in words)
        assert tokens == sum(seen["provenance"]["plot"].values()) - 2, "all but [CLS] and [SEP]"
        wanted["parameters"]["exact"] = True  # type: ignore[index]
        _, seen, _ = await world.call("POST", "/infer/acme.m", wanted)
        assert {w["order"] for w in seen["outputs"][0]["words"]} == {"computed"}
        _, seen, _ = await world.call("POST", "/infer/acme.m", {"inputs": [text]})
        assert seen["outputs"][0]["words"] is None


def test_the_command_shows_words_in_groups(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = hmi(capsys, "infer", "acme.m", "the market price", "--words", "--data", folder)
    last = shown.splitlines()[-1]
    assert last.startswith("words: [")
    assert "market" in last


def test_the_wheel_would_hold_the_page() -> None:
    import tomllib

    settings = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert "api/page/*" in settings["tool"]["setuptools"]["package-data"]["hmi"]
