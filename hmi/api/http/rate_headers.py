"""The headers RateLimit and RateLimit-Policy, by which a tenant's client can slow down before it is refused.

They have the form of the IETF's draft-ietf-httpapi-ratelimit-headers. They are sent with every answer to a
tenant's key from a call to infer, if the tenant has such limits.
"""

from __future__ import annotations

import math

from aiohttp import web

from hmi.api.access.rates import RATES, QuotaState, Rates
from hmi.api.http.services import CALLER, SERVICES

NAMES = ("RateLimit-Policy", "RateLimit")


async def add_rate_limits(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Signal handler: put the headers on an answer."""
    caller = request.get(CALLER)
    if caller is None or caller.tenant is None or not isinstance(request, web.Request):
        return
    if "RateLimit" not in response.headers:  # else another server answered, and it counts the tenant's calls
        response.headers.update(rate_limits(request.app[SERVICES].inference.rates, caller.tenant))


def rate_limits(rates: Rates, tenant: str) -> dict[str, str]:
    """Return the headers for a tenant; {} if it has no such limits."""
    states = rates.states(tenant)
    if not states:
        return {}
    policies = ", ".join(_policy(state, rates.burst_s) for state in states)
    return dict(zip(NAMES, (policies, ", ".join(map(_left, states))), strict=True))


def _policy(state: QuotaState, burst_s: float) -> str:
    """Return what may be sent: `q` within `w` seconds."""
    return f'"{RATES[state.quota]}";q={math.floor(state.rate.capacity)};w={math.ceil(burst_s)}'


def _left(state: QuotaState) -> str:
    """Return what is left: `r` now, and all again in `t` seconds."""
    return f'"{RATES[state.quota]}";r={max(0, math.floor(state.left))};t={math.ceil(state.full_s)}'
