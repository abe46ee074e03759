"""Files of rows that the server keeps for fine-tuning jobs, as OpenAI's protocol has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from hmi.client.aio.resources import AsyncResource
from hmi.client.answers import KeptFile
from hmi.client.calls import checked, create, delete, get, segment
from hmi.client.rows import Source
from hmi.client.uploads import upload

FILES = "/v1/files"


class AsyncFiles(AsyncResource):
    async def upload(self, file: Source, *, once: str | None = None) -> KeptFile:
        """Keep a file of rows: a path, rows, or a data frame. It belongs to the key's tenant."""
        part = upload("file", file, self._session.config.compress)
        call = replace(create(FILES, {"purpose": "fine-tune"}, {"file": part}, once), form=True)
        return checked(KeptFile.model_validate, await self._session.send(call))

    async def list(self, *, tenant: str | None = None) -> AsyncIterator[KeptFile]:
        """Yield files, newest first, page by page."""
        after: str | None = None
        more = True
        while more:
            page = await self._session.send(get(FILES, after=after, tenant=tenant))
            for file in page["data"]:
                yield checked(KeptFile.model_validate, file)
            after, more = page["last_id"], page["has_more"]

    async def get(self, file: str) -> KeptFile:
        return checked(KeptFile.model_validate, await self._session.send(get(f"{FILES}/{segment(file)}")))

    async def content(self, file: str) -> bytes:
        """Return the content of a file, in memory as a whole."""
        return await self._session.content(get(f"{FILES}/{segment(file)}/content"))

    async def delete(self, file: str) -> None:
        await self._session.send(delete(f"{FILES}/{segment(file)}"))
