"""Files that callers keep: they survive restarts, are bounded by tenant, checked when read, and go with
their tenant."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hmi.config import Settings
from hmi.errors import Damaged, NotFound, QuotaExceeded
from hmi.manager import Manager
from hmi.manager.parts import HOUR_S
from tests.hmi.labs.api_world import hmi


def opened(data: Path, **settings: int) -> Manager:
    manager = Manager(Settings(data=data, **settings))  # type: ignore[arg-type]
    for tenant in ("acme", "globex"):
        if tenant not in {record.tenant for record in manager.registry.tenants()}:
            manager.create_tenant(tenant)
    return manager


def kept(manager: Manager, content: bytes, tenant: str | None = "acme", *, limited: bool = True) -> str:
    source = manager.settings.data / "upload"
    source.write_bytes(content)
    return manager.files.add(tenant, source, "rows.jsonl", "fine-tune", limited=limited).file


def stored(manager: Manager) -> set[str]:
    return stored_in(manager.settings.data)


def stored_in(data: Path) -> set[str]:
    return {path.name for path in (data / "files").iterdir()}


def test_they_survive_a_restart_and_are_listed_newest_first(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    first, second = kept(manager, b"one"), kept(manager, b"two")
    admins = kept(manager, b"three", None)
    manager.close()
    manager = opened(tmp_path)
    assert {record.file for record in manager.files.of("acme")} == {first, second}
    assert [record.created for record in manager.files.of("acme")] == sorted(
        (record.created for record in manager.files.of("acme")), reverse=True
    )
    assert [record.file for record in manager.files.of(None)] == [admins]
    assert manager.files.of("globex") == []
    record = manager.files.find(first)
    assert record is not None
    assert manager.files.checked(record).read_bytes() == b"one"
    manager.close()


def test_a_tenant_keeps_so_many_files_and_bytes(tmp_path: Path) -> None:
    manager = opened(tmp_path, max_files=2, files_bytes=10)
    first = kept(manager, b"12345")
    with pytest.raises(QuotaExceeded, match="would exceed 10"):
        kept(manager, b"123456")
    kept(manager, b"12345")
    with pytest.raises(QuotaExceeded, match="2 are allowed"):
        kept(manager, b"")
    assert len(stored(manager)) == 2, "what was refused is not kept"
    kept(manager, b"12345", "globex")  # another tenant has a share of its own
    kept(manager, b"1234567", limited=False)  # an administrator is not bound
    manager.files.delete(first)
    manager.close()


def test_they_are_deleted_with_their_tenant(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    mine, others = kept(manager, b"one"), kept(manager, b"two", "globex")
    assert manager.delete_tenant("acme")["files"] == 1
    assert stored(manager) == {others}
    assert manager.files.find(mine) is None
    manager.create_tenant("acme")
    assert manager.files.of("acme") == []
    with pytest.raises(NotFound):
        manager.files.delete(mine)
    with pytest.raises(NotFound):
        kept(manager, b"x", "nobody")
    assert stored(manager) == {others}
    manager.close()


def test_a_content_that_is_damaged_or_lost_is_refused(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    record = manager.files.find(kept(manager, b"one"))
    assert record is not None
    path = manager.files.checked(record)
    path.write_bytes(b"two")
    with pytest.raises(Damaged, match="send it again"):
        manager.files.checked(record)
    path.unlink()
    with pytest.raises(Damaged, match="send it again"):
        manager.files.checked(record)
    manager.files.delete(record.file)
    manager.close()


def test_the_command_line_lists_shows_and_deletes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = opened(tmp_path)
    file = kept(manager, b"one")
    manager.close()
    data = ("--data", tmp_path)
    assert json.loads(hmi(capsys, "file", "list", "--json", *data)) == []
    (listed,) = json.loads(hmi(capsys, "file", "list", "--tenant", "acme", "--json", *data))
    assert (listed["id"], listed["filename"], listed["bytes"]) == (file, "rows.jsonl", 3)
    assert "rows.jsonl" in hmi(capsys, "file", "show", file, *data)
    hmi(capsys, "file", "delete", file, "--yes", *data)
    assert "there is no file" in hmi(capsys, "file", "show", file, *data, code=1)
    assert stored_in(tmp_path) == set()


def test_no_id_leaves_the_folder(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    for file in ("../registry/data.mdb", "file-../x", "file-", "", "file-é", "upload"):
        assert manager.files.find(file) is None
    manager.close()


def test_what_a_crash_left_is_collected(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    mine = kept(manager, b"one")
    left, fresh = (tmp_path / "files" / name for name in ("file-left", "file-fresh"))
    for path in (left, fresh, tmp_path / "files" / mine):
        path.write_bytes(b"one")
    for path in (left, tmp_path / "files" / mine):
        os.utime(path, (path.stat().st_mtime - 2 * HOUR_S,) * 2)
    assert manager.collect_garbage()["files"] == 3
    assert stored(manager) == {mine, "file-fresh"}
    manager.close()
