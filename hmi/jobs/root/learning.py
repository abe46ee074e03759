"""The phases in which an import learns a root's layers, with checkpoints from which a resumed job goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from hmi.jobs.runtime.context import JobContext
from hmi.model.files import read_checkpoint, write_checkpoint
from hmi.model.tenant.artefact import tensors_below
from hmi.training.fit.reports import StepReport
from hmi.training.root.phases import Keeper


@dataclass(frozen=True)
class Learning:
    """The layers that are learnt, by name, and the seconds between two checkpoints within a phase."""

    ctx: JobContext
    parts: Mapping[str, nn.Module]
    checkpoint_s: float

    def run(self, phases: Mapping[str, Callable[[], None]]) -> None:
        """Run the phases in order, but those that an earlier attempt of the job has finished.

        phases: by name. Each ends with a checkpoint; a long one also has checkpoints within it, so a resumed
        job repeats a few minutes. It ends with the same bits as an uninterrupted one. Raises StorageFull,
        JobCancelled, JobStopped.
        """
        for aside in self.ctx.folder.glob(".checkpoint-*.tmp"):  # of a process that died while it wrote one
            aside.unlink()
        names = list(phases)
        done = next((i + 1 for i in reversed(range(len(names))) if self._restored(names[i])), 0)
        for name in names[done:]:
            phases[name]()
            self._finish(name)

    def keeper(self, phase: str) -> Keeper:
        path = self.ctx.folder / f"checkpoint-within-{phase}.safetensors"
        return Keeper(path, self.checkpoint_s, self.ctx.checkpointed)

    def report(self, said: str) -> StepReport:
        """Shows the steps of a phase to users under the name `said`."""
        return lambda step, total, loss: self.ctx.progress(step, total, phase=said, loss=loss)

    def _path(self, phase: str) -> Path:
        return self.ctx.folder / f"checkpoint-{phase}.safetensors"

    def _finish(self, phase: str) -> None:
        """Write the checkpoint at a phase's end, and remove those before it."""
        path = self._path(phase)
        state = {
            f"{prefix}.{k}": v for prefix, part in self.parts.items() for k, v in part.state_dict().items()
        }
        write_checkpoint(path, state)
        self.ctx.checkpointed()
        for older in self.ctx.folder.glob("checkpoint-*.safetensors"):
            if older != path:
                older.unlink()

    def _restored(self, phase: str) -> bool:
        found = read_checkpoint(self._path(phase))
        if found is None:
            return False
        for prefix, part in self.parts.items():
            part.load_state_dict(tensors_below(found[0], prefix))
        return True
