"""Profiles of token adaptation: a job trains prompts and publishes the live version again with a profile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hmi.core import JobRecord, ModelId
from hmi.errors import InvalidInput
from hmi.jobs.checks import checked_files
from hmi.jobs.options import AS_IT_IS, Reading, reading_options
from hmi.jobs.specs import FineTuneSpec
from hmi.manager.parts import Parts


class TokenProfiles:
    """The operations on profiles of token adaptation."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def profile(
        self,
        model: str,
        files: Mapping[str, Path | bytes],
        *,
        prompts: bool = True,
        skip_bad_rows: int = 0,
        reading: Reading = AS_IT_IS,
        job_limit: int | None = None,
    ) -> JobRecord:
        """Publish the live version again with a profile of what merging does to its answers.

        files: data (labelled rows, required), dev (the rows that are held out), unlabelled (further texts).
        prompts: also train prompts on the rows of data that are not held out. Raises InvalidInput (no data,
        an embedding), InvalidData, NotFound, Conflict (a job is at work on it), QuotaExceeded, StorageFull.
        """
        wanted = ModelId.parse(model)
        live = self._parts.registry.model(wanted).live
        if live.module is None:
            raise InvalidInput(
                "an embedding model has no profile of token adaptation: it has no answers to compare",
                field="model",
            )
        if "data" not in files:
            raise InvalidInput(
                "data is missing: a profile is made of labelled rows; send them as a multipart part, as "
                '{"path": …} below <data>/uploads, or name a file',
                field="data",
            )
        checked_files(live.task, files, skip_bad_rows, reading)
        spec = FineTuneSpec(
            model=str(wanted),
            domain=live.domain,
            task=live.task,
            mode="tokens",
            options=reading_options(reading, skip_bad_rows),
            version=live.version,
            prompts=prompts,
        )
        return self._parts.runner.submit(
            "fine_tune", spec.stored(), wanted.tenant, files, tenant_limit=job_limit
        )
