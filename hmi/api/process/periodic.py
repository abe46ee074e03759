"""The chores that a server does from time to time, beside its jobs' housekeeping."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from hmi.api.http.audited import log_server_event
from hmi.api.http.services import Services
from hmi.stores.failures import log_failure

log = logging.getLogger("hmi.api")
LOOK_S = 5.0
"""Interval at which the audit log's counted lines are looked through."""
KEYS_S = 60.0
"""Interval at which the uses of keys are stored."""
OLD_S = 3600.0
"""Interval at which old files of the audit log are looked for."""


async def run(services: Services) -> None:
    """Do the chores, forever."""
    log_server_event(services.access.audit, "started")
    keys_at, old_at = time.monotonic() + KEYS_S, 0.0
    while True:
        services.access.audit.sum_up()
        at = time.monotonic()
        if at >= old_at:
            old_at = at + OLD_S
            await _run_logged("removing old files of the audit log", lambda: _drop_old(services))
        if at >= keys_at:
            keys_at = at + KEYS_S
            await _store_used(services)
        await asyncio.sleep(LOOK_S)


async def end(services: Services) -> None:
    """Do the chores for the last time, and close the audit log."""
    if services.lifecycle.periodic is not None:
        services.lifecycle.periodic.cancel()
        with suppress(asyncio.CancelledError):
            await services.lifecycle.periodic
        await _store_used(services)
        log_server_event(services.access.audit, "stopped")
    await services.access.audit.close()


async def _store_used(services: Services) -> None:
    await _run_logged("storing when keys were used", services.manager.registry.key_ring.store_used)


def _drop_old(services: Services) -> None:
    if services.settings.audit_days:
        services.access.audit.log.drop_old(services.settings.audit_days)


async def _run_logged(what: str, work: Callable[[], object]) -> None:
    """Run `work` in a thread. A failure is logged; the next time follows."""
    try:
        await asyncio.to_thread(work)
    except Exception as error:
        log_failure(log, f"{what} failed", error)
