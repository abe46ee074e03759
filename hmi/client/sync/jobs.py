# Made by scripts/sync_client.py of hmi/client/aio/jobs.py: change that file.
"""Jobs: their handle, and the calls about them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

from hmi.client.answers import JobState, JobStatus
from hmi.client.calls import Call, checked, get, segment
from hmi.client.errors import ApiError, DeadlineExceeded, JobCancelled, JobFailed, QuotaExceeded
from hmi.client.progress import Report, shown
from hmi.client.retrying import Attempts
from hmi.client.sync import io
from hmi.client.sync.session import Session

ENDLESS = 1 << 30


class Job:
    """A job on the server, by its id."""

    def __init__(self, session: Session, id: str) -> None:
        self.id = id
        self._session = session

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def status(self) -> JobStatus:
        """Return the job as it stands. Raises NotFound if it is gone."""
        return checked(JobStatus.model_validate, self._session.send(get(self._path)))

    def cancel(self) -> JobStatus:
        """Ask the job to stop. Raises Conflict if it has ended."""
        return checked(JobStatus.model_validate, self._session.send(Call("DELETE", self._path)))

    def events(self) -> Generator[JobStatus, None, None]:
        """Yield the job's status now, at each change and at its end.

        A stream that breaks is opened again, also after a restart of the server. Raises ApiError if the job
        is gone or no server answers for `reconnect_s` seconds.
        """
        attempts = Attempts(ENDLESS, self._session.config.reconnect_s, repeatable=True)
        while True:
            try:
                once = Attempts(1, self._session.config.timeout_s, repeatable=True)
                with closing(self._session.events(get(f"{self._path}/events"), once)) as events:
                    for event in events:
                        status = checked(JobStatus.model_validate, event.data)
                        attempts.reset()
                        yield status
                        if status.done:
                            return
                wait = attempts.pause()  # the server stops, and closes its streams before
            except QuotaExceeded as error:  # too many streams at a time: look at the job now and then
                wait = attempts.wait_after(error)
                yield (status := self.status())
                attempts.reset()
                if status.done:
                    return
            except ApiError as error:
                wait = attempts.wait_after(error)
            io.sleep(wait)

    def wait(
        self, *, progress: bool | Report = True, timeout_s: float | None = None, check: bool = True
    ) -> JobStatus:
        """Follow the job to its end, and return its last status.

        progress: True shows a bar in a terminal and lines elsewhere; False shows nothing; a function gets
        each status. check: raise JobFailed or JobCancelled if the job did not succeed. Raises
        DeadlineExceeded after about `timeout_s` seconds; the job goes on.
        """
        clock = Attempts(1, timeout_s or float("inf"), repeatable=True)
        with shown(progress, self.id) as report:
            with closing(self.events()) as statuses:
                for status in statuses:
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


class Jobs:
    """The jobs that the key reaches."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(self, id: str) -> Job:
        """Return the handle of a job, without a call."""
        return Job(self._session, id)

    def get(self, id: str) -> JobStatus:
        return self(id).status()

    def cancel(self, id: str) -> JobStatus:
        return self(id).cancel()

    def list(
        self,
        *,
        tenant: str | None = None,
        state: JobState | None = None,
        kind: str | None = None,
        limit: int | None = None,
    ) -> Iterator[JobStatus]:
        """Yield jobs, newest first, page by page; at most `limit`."""
        after: str | None = None
        left = ENDLESS if limit is None else limit
        while left > 0:
            asked = get(
                "/manage/jobs", tenant=tenant, state=state, kind=kind, after=after, limit=min(left, 1000)
            )
            page = self._session.send(asked)
            for job in page["jobs"]:
                yield checked(JobStatus.model_validate, job)
                left -= 1
            after = page["next"]
            if after is None:
                return
