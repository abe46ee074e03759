"""The run of a batch on a compute thread: what it counts."""

from __future__ import annotations

from hmi.engine.interleaving import Hosts
from hmi.engine.running import Held, Runner
from hmi.execution import BatchKey
from hmi.stages import Candidate, Plan


def test_a_part_does_not_count_what_ran_between_the_layers_of_an_earlier_one() -> None:
    plan = Plan(Candidate(0.0, 0.0, "acme", BatchKey(("r", "1"), "cls", exact=False), 3))
    with Hosts(1).running(1.0) as host:
        host.away_s = host.away_cpu_s = 5.0
        ran = Runner([], None).run(Held([], {}, []), plan, host)
    assert ran.times.compute_s >= 0
    assert ran.cpu_s >= 0
