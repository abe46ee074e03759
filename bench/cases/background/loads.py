"""The calls of one phase: at a fixed rate, or as many as the server answers."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from bench.cases.background.plan import SATURATED, Plan
from bench.cases.serve.http_driver import Client, Seen
from bench.cases.serve.http_servers import Server
from bench.harness.home import Home

TEXTS = 256
"""Different texts that are asked, of real lengths."""
LEAST_CALLS = 20


@dataclass(frozen=True)
class Caller:
    """Sends the calls of all tenants, from a process of its own."""

    plan: Plan
    home: Home
    client: Client
    texts: list[str]

    def send(self, server: Server, load: str, rate: float, seed: int) -> Seen:
        """Send one phase of a load. rate: calls a second, at random times; unused if it is saturated."""
        bodies = [json.dumps({"inputs": text}) for text in self.texts]
        targets = [server.arm.target(self.home, i) for i in range(self.plan.tenants)]
        draw = np.random.default_rng(seed)
        if load == SATURATED:
            drawn = draw.integers(len(bodies), size=4 * len(bodies)).tolist()
            turn = [(i % len(targets), body) for i, body in enumerate(drawn)]
            seconds, callers = self.plan.seconds, self.plan.callers
            return self.client.closed(server.port, targets, bodies, turn, seconds=seconds, callers=callers)
        count = max(LEAST_CALLS, round(rate * self.plan.seconds))
        at = np.sort(draw.uniform(0.0, count / rate, count)).tolist()
        drawn = draw.integers(len(bodies), size=count).tolist()
        arrivals = [(second, i % len(targets), drawn[i]) for i, second in enumerate(at)]
        return self.client.opened(server.port, targets, bodies, arrivals)
