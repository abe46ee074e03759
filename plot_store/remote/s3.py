"""Objects in a bucket of S3, or of a server that speaks its protocol, by s3fs.

Credentials, region and address come from where the library looks for them: the environment (AWS_…) and its
files. No message repeats the library's own text, which may show an address with its query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from fsspec.asyn import sync
from s3fs import S3FileSystem

from plot_store.ground.errors import Invalid, StoreIO
from plot_store.remote.objects import CURE, Listed

_PART: Final = 64 << 20  # larger objects are sent in parts of this size
_PATIENCE: Final = {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 2}}
"""A host that says nothing is given up after about a minute. The library's own limits are five minutes."""
_PAGE: Final = 1000  # names that one request removes
_CHANGED: Final = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
_ABSENT: Final = ("NoSuchKey", "404")
_BEYOND: Final = ("InvalidRange", "416")


class S3:
    """See `Objects`. `path` is "bucket/prefix"."""

    def __init__(self, path: str) -> None:
        self.place = f"s3://{path}"
        self._bucket, _, prefix = path.partition("/")
        if not self._bucket:
            raise Invalid("s3:// without a bucket: pass s3://bucket or s3://bucket/prefix")
        self._prefix = f"{prefix}/" if prefix else ""
        self._fs: Any = S3FileSystem(
            skip_instance_cache=True, use_listings_cache=False, config_kwargs=dict(_PATIENCE)
        )
        self._fs.retries = 1  # botocore tries again, too. Both together would take minutes to give up.

    def get(self, name: str) -> tuple[bytes, str] | None:
        found = self._fetch(name)
        return None if found is None else (found[0], str(found[1]["ETag"]))

    def read(self, name: str, start: int, size: int) -> bytes | None:
        found = self._fetch(name, Range=f"bytes={start}-{start + size - 1}")
        return None if found is None else found[0]

    def size(self, name: str) -> int | None:
        found = self._call_or_none("head_object", name)
        return None if found is None else int(found["ContentLength"])

    def put(self, name: str, data: memoryview) -> None:
        if data.nbytes <= _PART:
            self._call("put_object", name, Body=bytes(data))
            return
        upload = self._call("create_multipart_upload", name)["UploadId"]
        try:
            parts = []
            for number, start in enumerate(range(0, data.nbytes, _PART), 1):
                body = bytes(data[start : start + _PART])
                sent = self._call("upload_part", name, UploadId=upload, PartNumber=number, Body=body)
                parts.append({"PartNumber": number, "ETag": sent["ETag"]})
            self._call("complete_multipart_upload", name, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            self._call("abort_multipart_upload", name, UploadId=upload)
            raise

    def swap(self, name: str, data: bytes, tag: str | None) -> bool:
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        with self._errors("put_object", name) as codes:
            self._fs.call_s3("put_object", **self._where(name), Body=data, **condition)
        return not codes

    def listed(self, below: str) -> Iterator[Listed]:
        more: dict[str, str] = {}
        while True:
            with self._errors("list_objects_v2", below):
                page = self._fs.call_s3(
                    "list_objects_v2", Bucket=self._bucket, Prefix=f"{self._prefix}{below}/", **more
                )
            for found in page.get("Contents", ()):
                name = found["Key"].removeprefix(self._prefix)
                yield Listed(name, int(found["Size"]), found["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def remove(self, names: Iterable[str]) -> None:
        left = list(names)
        while left:
            keys = [{"Key": self._prefix + name} for name in left[:_PAGE]]
            with self._errors("delete_objects", left[0]):
                found = self._fs.call_s3(
                    "delete_objects", Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True}
                )
            if refused := found.get("Errors"):
                raise StoreIO(f"{self.place} does not remove {left[0]} ({refused[0].get('Code')}): {CURE}")
            left = left[_PAGE:]

    def _where(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    def _fetch(self, name: str, **options: str) -> tuple[bytes, Any] | None:
        """Return an object's bytes and the answer's other fields; None if there is no object."""
        with self._errors("get_object", name) as codes:
            answer = self._fs.call_s3("get_object", **self._where(name), **options)
            return sync(self._fs.loop, _content, answer["Body"]), answer
        return (b"", {}) if codes[0] in _BEYOND else None

    def _call(self, method: str, name: str, **options: Any) -> Any:
        found = self._call_or_none(method, name, **options)
        if found is None:
            raise StoreIO(f"{self.place} has no {name} any more: {CURE}")
        return found

    def _call_or_none(self, method: str, name: str, **options: Any) -> Any:
        with self._errors(method, name) as codes:
            found = self._fs.call_s3(method, **self._where(name), **options)
        return None if codes else found

    @contextmanager
    def _errors(self, method: str, name: str) -> Iterator[list[str]]:
        """Convert the library's errors to StoreIO.

        It is no error if an object is absent or does not meet a condition. The list then has the code.
        """
        codes: list[str] = []
        try:
            yield codes
        except Exception as error:
            code = _code(error)
            if code in (*_ABSENT, *_BEYOND) or (code in _CHANGED and method == "put_object"):
                codes.append(code)
                return
            raise StoreIO(
                f"{self.place} does not answer to {method} of {name} ({code or type(error).__name__}): {CURE}"
            ) from None


async def _content(body: Any) -> bytes:
    async with body:
        data: bytes = await body.read()
        return data


def _code(error: BaseException) -> str:
    """Return the code that the server's answer has, or ""."""
    for one in (error, error.__cause__):
        answer = getattr(one, "response", None)
        if isinstance(answer, dict):
            return str(answer.get("Error", {}).get("Code", ""))
    return ""
