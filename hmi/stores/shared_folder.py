"""A folder of files in the bucket, which other nodes fetch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from hmi.errors import Damaged
from hmi.model.checked import file_sha256
from hmi.stores.bucket import Bucket

LIST = "files.json"
_FILE = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*/)?[A-Za-z0-9_-][A-Za-z0-9._-]*")


def files_in(folder: Path) -> dict[str, Path]:
    """The files in a folder and one level below, but hidden ones, by name."""
    paths = (path for path in (*folder.glob("*"), *folder.glob("*/*")) if path.is_file())
    named = ((path.relative_to(folder).as_posix(), path) for path in sorted(paths))
    return {name: path for name, path in named if _FILE.fullmatch(name)}


class SharedFolder:
    """Files below one name of a bucket. Methods raise Unavailable if the bucket does not answer.

    Each file is named by its SHA-256. `files.json` names them by their paths and is put last, so a reader
    finds the files before a change or those after it.
    """

    def __init__(self, bucket: Bucket, name: str) -> None:
        self._bucket, self._name = bucket, name

    def put(self, folder: Path) -> None:
        """Put the files in `folder`, and one level below, but hidden ones. Files that are listed and that
        `folder` lacks stay."""
        found = files_in(folder)
        self.put_files(found, {name: file_sha256(path) for name, path in found.items()}, self.listed())

    def put_files(
        self,
        paths: Mapping[str, Path],
        files: Mapping[str, str],
        before: Mapping[str, str],
        *,
        only: bool = False,
    ) -> dict[str, str]:
        """Put files, and return what is listed then.

        paths, files: the path and SHA-256 of each, by name. before: what is listed now. only: files that are
        listed and not given go.
        """
        for name, sha256 in files.items():
            if sha256 not in before.values():
                self._bucket.put(self._of(sha256), paths[name])
        listed = dict(files) if only else {**before, **files}
        if listed != before:
            self._bucket.write(self._of(LIST), json.dumps(listed).encode())
            self._bucket.remove(map(self._of, set(before.values()) - set(listed.values())))
        return listed

    def listed(self) -> dict[str, str]:
        """Return the SHA-256 of each file by its path; empty if there is no such folder. Raises Damaged."""
        data = self._bucket.read(self._of(LIST))
        if data is None:
            return {}
        try:
            files = {str(name): str(sha256) for name, sha256 in json.loads(data).items()}
        except (ValueError, AttributeError, RecursionError) as error:
            raise self._damaged("cannot be read") from error
        if not all(_FILE.fullmatch(name) for name in files):
            raise self._damaged("names a file outside the folder")
        return files

    def fetch(self, folder: Path, names: Iterable[str]) -> None:
        """Bring listed files to `folder`. Raises Damaged, StorageFull."""
        files = self.listed()
        for name in names:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            if not self._bucket.fetch(self._of(files[name]), path, files[name]):
                raise self._damaged(f"names {name}, which is missing")

    def remove(self) -> None:
        """Remove the folder, if there is one."""
        self._bucket.remove(self._bucket.names(self._name))

    def _of(self, file: str) -> str:
        return f"{self._name}/{file}"

    def _damaged(self, what: str) -> Damaged:
        return Damaged(
            f"{self._of(LIST)} in the bucket {what}: restore the folder from the bucket's older versions"
        )
