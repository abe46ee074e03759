"""Jobs: their handle, and the calls about them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from hmi.client.aio import io
from hmi.client.aio.session import AsyncSession
from hmi.client.answers import JobState, JobStatus
from hmi.client.calls import Call, checked, get, segment
from hmi.client.errors import ApiError, DeadlineExceeded, JobCancelled, JobFailed, QuotaExceeded
from hmi.client.progress import Report, shown
from hmi.client.retrying import Attempts

ENDLESS = 1 << 30


class AsyncJob:
    """A job on the server, by its id."""

    def __init__(self, session: AsyncSession, id: str) -> None:
        self.id = id
        self._session = session

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    async def status(self) -> JobStatus:
        """Return the job as it stands. Raises NotFound if it is gone."""
        return checked(JobStatus.model_validate, await self._session.send(get(self._path)))

    async def cancel(self) -> JobStatus:
        """Ask the job to stop. Raises Conflict if it has ended."""
        return checked(JobStatus.model_validate, await self._session.send(Call("DELETE", self._path)))

    async def events(self) -> AsyncGenerator[JobStatus, None]:
        """Yield the job's status now, at each change and at its end.

        A stream that breaks is opened again, also after a restart of the server. Raises ApiError if the job
        is gone or no server answers for `reconnect_s` seconds.
        """
        attempts = Attempts(ENDLESS, self._session.config.reconnect_s, repeatable=True)
        while True:
            try:
                once = Attempts(1, self._session.config.timeout_s, repeatable=True)
                async with aclosing(self._session.events(get(f"{self._path}/events"), once)) as events:
                    async for event in events:
                        status = checked(JobStatus.model_validate, event.data)
                        attempts.reset()
                        yield status
                        if status.done:
                            return
                wait = attempts.pause()  # the server stops, and closes its streams before
            except QuotaExceeded as error:  # too many streams at a time: look at the job now and then
                wait = attempts.wait_after(error)
                yield (status := await self.status())
                attempts.reset()
                if status.done:
                    return
            except ApiError as error:
                wait = attempts.wait_after(error)
            await io.sleep(wait)

    async def wait(
        self, *, progress: bool | Report = True, timeout_s: float | None = None, check: bool = True
    ) -> JobStatus:
        """Follow the job to its end, and return its last status.

        progress: True shows a bar in a terminal and lines elsewhere; False shows nothing; a function gets
        each status. check: raise JobFailed or JobCancelled if the job did not succeed. Raises
        DeadlineExceeded after about `timeout_s` seconds; the job goes on.
        """
        clock = Attempts(1, timeout_s or float("inf"), repeatable=True)
        with shown(progress, self.id) as report:
            async with aclosing(self.events()) as statuses:
                async for status in statuses:
                    report(status)
                    if status.done:
                        return _checked(status) if check else status
                    if clock.over:
                        raise DeadlineExceeded(f"job {self.id} goes on after {timeout_s:g} s: wait again")
        raise AssertionError("events end with the job's end")

    @property
    def _path(self) -> str:
        return f"/manage/jobs/{segment(self.id)}"


def _checked(status: JobStatus) -> JobStatus:
    if status.state == "succeeded":
        return status
    said = dict(status.error or {})
    if status.state == "cancelled":
        raise JobCancelled(f"job {status.job} was cancelled", details=said)
    message = f"job {status.job} failed: {said.get('message', 'no reason is known')}"
    raise JobFailed(message, details={**said, "job": status.job})


class AsyncJobs:
    """The jobs that the key reaches."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    def __call__(self, id: str) -> AsyncJob:
        """Return the handle of a job, without a call."""
        return AsyncJob(self._session, id)

    async def get(self, id: str) -> JobStatus:
        return await self(id).status()

    async def cancel(self, id: str) -> JobStatus:
        return await self(id).cancel()

    async def list(
        self,
        *,
        tenant: str | None = None,
        state: JobState | None = None,
        kind: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[JobStatus]:
        """Yield jobs, newest first, page by page; at most `limit`."""
        after: str | None = None
        left = ENDLESS if limit is None else limit
        while left > 0:
            asked = get(
                "/manage/jobs", tenant=tenant, state=state, kind=kind, after=after, limit=min(left, 1000)
            )
            page = await self._session.send(asked)
            for job in page["jobs"]:
                yield checked(JobStatus.model_validate, job)
                left -= 1
            after = page["next"]
            if after is None:
                return
