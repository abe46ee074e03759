"""The setting that names the execution stages that may run."""

from __future__ import annotations

import pytest

from hmi.config import STAGES, Settings
from hmi.errors import InvalidInput


@pytest.mark.parametrize(
    ("given", "kept", "run"),
    [
        ("auto", "auto", set(STAGES)),
        (" none ", "none", set()),
        ("exits", "exits", {"exits"}),
        ("tokens, exits,tokens", "tokens,exits", {"exits", "tokens"}),
    ],
)
def test_a_server_runs_the_stages_that_are_named(given: str, kept: str, run: set[str]) -> None:
    settings = Settings.from_env({"HMI_STAGES": given})
    assert settings.stages == kept
    assert {stage for stage in STAGES if settings.runs(stage)} == run


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("exit", "'exit' is unknown; use auto, none, or some of exits, cascades, tokens, shards"),
        ("exits,,tokens", "'' is unknown"),
        ("auto,exits", "'auto' stands alone"),
        ("exits,none", "'none' stands alone"),
    ],
)
def test_an_unknown_stage_is_refused_by_name(given: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        Settings(stages=given)
    assert caught.value.details == {"field": "stages"}
