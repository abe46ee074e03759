"""The optimisers step as torch's, and do not import torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import torch

from hmi.training.fit.optimisers import AdamW, load_optimiser, optimiser_tensors


def trained(kind: type[torch.optim.AdamW]) -> torch.Tensor:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(5, 3))
    optimiser = kind([{"params": [weight], "lr": 0.1}], weight_decay=0.01, fused=True)
    for step in range(6):
        if step == 3:  # resumed from a checkpoint
            kept = {name: value.clone() for name, value in optimiser_tensors(optimiser).items()}
            optimiser = kind([{"params": [weight], "lr": 0.1}], weight_decay=0.01, fused=True)
            load_optimiser(optimiser, kept)
        optimiser.zero_grad(set_to_none=True)
        (weight.sin().sum() * step).backward()
        optimiser.step()
    return weight.detach()


def test_it_steps_as_torchs() -> None:
    assert torch.equal(trained(AdamW), trained(torch.optim.AdamW))


def test_nothing_imports_torchs_compiler() -> None:
    code = (
        "import sys, torch\n"
        "import hmi.api.process.server, hmi.engine.engine, hmi.execution.cuda.choose\n"
        "from hmi.training.fit.optimisers import AdamW, LBFGS, load_optimiser, optimiser_tensors\n"
        "w = torch.nn.Parameter(torch.ones(3))\n"
        "for made in (AdamW([w], fused=True), LBFGS([w])):\n"
        "    made.zero_grad()\n"
        "    (w * w).sum().backward()\n"
        "    made.step(lambda: (w * w).sum())\n"
        "made = AdamW([w], fused=True)\n"
        "load_optimiser(made, optimiser_tensors(made))\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
