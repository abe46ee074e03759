"""OpenAI's calls about files: upload, list, show, read, delete."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hmi.api.http.call import Reply, RouteCall
from hmi.api.protocols.openai.models import Deleted, FileForm, OpenAIFileList, OpenAIFileQuery, file_of
from hmi.stores.records.file_table import no_file
from hmi.tenancy import FileRecord

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web

CHUNK_BYTES = 1 << 18
"""Bytes of a file's content that are read at a time."""


async def upload_file(call: RouteCall) -> Reply:
    """Keep a file. It belongs to the tenant of the key."""
    form: FileForm = call.body
    record = await asyncio.to_thread(
        call.services.manager.files.add,
        call.caller.tenant,
        call.files["file"],
        call.file_names.get("file") or "file",
        form.purpose,
        limited=call.caller.tenant is not None,
    )
    return Reply(file_of(record))


async def list_files(call: RouteCall) -> Reply:
    """List the files of the key's tenant. With an administrator's key: those of administrators, or of the
    tenant that the query names."""
    query: OpenAIFileQuery = call.query
    tenant = call.caller.only(query.tenant)
    found = await asyncio.to_thread(call.services.manager.files.of, tenant)
    if query.order == "asc":
        found.reverse()
    wanted = [record for record in found if query.purpose in (None, record.purpose)]
    if query.after is not None:
        last = next((i for i, record in enumerate(wanted) if record.file == query.after), None)
        wanted = [] if last is None else wanted[last + 1 :]
    data = [file_of(record) for record in wanted[: query.limit]]
    first, last_id = (data[0].id, data[-1].id) if data else (None, None)
    more = len(wanted) > query.limit
    return Reply(OpenAIFileList(data=data, has_more=more, first_id=first, last_id=last_id))


async def show_file(call: RouteCall) -> Reply:
    return Reply(file_of(await asyncio.to_thread(own_file, call, call.path["file"])))


async def delete_file(call: RouteCall) -> Reply:
    """Delete a file. Jobs that were started with it keep their copy."""

    def delete() -> FileRecord:
        record = own_file(call, call.path["file"])
        call.services.manager.files.delete(record.file)
        return record

    record = await asyncio.to_thread(delete)
    return Reply(Deleted(id=record.file, object="file"))


async def read_file(call: RouteCall) -> web.StreamResponse:
    """Answer with a file's content."""
    assert call.request is not None
    files = call.services.manager.files
    record = await asyncio.to_thread(own_file, call, call.path["file"])
    path = await asyncio.to_thread(files.checked, record)
    with await asyncio.to_thread(path.open, "rb") as content:
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        response.content_length = record.bytes
        await response.prepare(call.request)
        while chunk := await asyncio.to_thread(content.read, CHUNK_BYTES):
            await response.write(chunk)
    await response.write_eof()
    return response


def own_file(call: RouteCall, file: str, field: str | None = None) -> FileRecord:
    """The record of a file. Raises NotFound, naming `field`, also if the caller does not reach it."""
    record = call.services.manager.files.find(file)
    if record is None or not call.caller.reaches(record.tenant):
        raise no_file(file, field)
    return record
