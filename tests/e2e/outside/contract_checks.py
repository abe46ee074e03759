"""Checks of each answer that schemathesis gets; `test_contract` loads this module as its hooks."""

from __future__ import annotations

import schemathesis

HIDDEN = "sentinel"
"""The name of a tenant, and a part of the names of all that it owns. No other tenant's answer may contain
it."""
EXPECTED = {503: "overloaded or stopping", 504: "a drawn deadline passed", 507: "the disk is full"}
"""The errors of the server that a sound server answers, too."""


@schemathesis.check
def no_failure(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """No answer is an unexpected 5xx, and a refusal for a while says for how long."""
    status = response.status_code
    assert status < 500 or status in EXPECTED, f"status {status}"
    if status in (429, 503):
        assert int(response.headers["retry-after"][0]) >= 1


@schemathesis.check
def nothing_of_others(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """The answer names nothing that belongs to the hidden tenant."""
    assert HIDDEN.encode() not in response.content
