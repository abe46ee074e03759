"""The costs of layers and ramps (design/0012)."""

from __future__ import annotations

import pytest

from hmi.stages.early_exit.ramps import Costs, saved_s


def test_an_exit_avoids_later_layers_and_later_ramps() -> None:
    costs = Costs((1.0, 2.0, 4.0), (0.1, 0.2, 0.3))
    assert costs.full_s == 7.0
    assert saved_s(costs, (0, 2)) == pytest.approx([7.3, 4.0])
    assert saved_s(costs, ()) == []


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="costs"):
        Costs((1.0,), (-0.1,))
    with pytest.raises(ValueError, match="costs"):
        Costs((1.0,), ())
