"""The Open Inference Protocol's calls about models, whichever way they come: over HTTP or gRPC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import hmi
from hmi.api.access.caller import Caller
from hmi.api.http.services import Services
from hmi.api.infer.call_counts import VersionCalls
from hmi.api.infer.own_models import OwnModels
from hmi.api.protocols.oip.about import config_of, index_of, metadata_of
from hmi.api.protocols.oip.asking import check_version
from hmi.core import ModelId, ModelRecord
from hmi.errors import Conflict, InvalidInput, NotFound, TooLarge

EXTENSIONS = ("binary_tensor_data", "generate", "model_configuration", "model_repository", "statistics")
"""The protocol's extensions that are served, by Triton's names."""
MOST_LISTED = 10_000
"""Most models that one index or one call for statistics lists."""
PAGE = 1000
_STAGES = {
    "success": "total_ms",
    "queue": "queue_ms",
    "compute_input": "retrieve_ms",
    "compute_infer": "compute_ms",
}
"""The stages of HMI whose times Triton's statistics show, by Triton's names."""
_UNKNOWN = ("fail", "compute_output", "cache_hit", "cache_miss")
"""Figures of Triton's statistics that HMI does not count by model. They are 0."""


def server_metadata() -> dict[str, Any]:
    """The server's name, version and extensions."""
    return {"name": "hmi", "version": hmi.__version__, "extensions": list(EXTENSIONS)}


@dataclass(frozen=True)
class Repository:
    """The models that a caller reaches, as the protocol describes them.

    Each method takes a model's name, and a version as the caller writes it ("" names none). It raises
    InvalidInput (a malformed name), NotFound, and Conflict (a version that exists and does not answer).
    """

    services: Services
    caller: Caller

    def record(self, model: str, version: str = "") -> ModelRecord:
        """The model's record."""
        services = self.services
        own = OwnModels(services.manager.registry, self.caller, services.settings.default_model)
        record = own.record(ModelId.parse(model))
        check_version(record, version)
        return record

    def check_model_ready(self, model: str, version: str = "") -> None:
        """Raise Unavailable unless the model answers."""
        self.record(model, version)
        self.services.lifecycle.check_ready()

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        return metadata_of(self.record(model, version))

    def config(self, model: str, version: str = "") -> dict[str, Any]:
        return config_of(self.record(model, version))

    def statistics(self, model: str = "", version: str = "") -> dict[str, Any]:
        """Return the statistics of a model since the server started; without a name, of all models that
        answered and still exist.
        """
        tally = self.services.inference.tally
        names = [model] if model else [str(each) for each in tally.models(self.caller.tenant)]
        stats = []
        for name in names:
            try:
                record = self.record(name, version)
            except NotFound:
                if model:
                    raise
                continue  # it was deleted after it answered
            stats.append(_statistics(name, tally.of(ModelId.parse(name), record.current)))
        return {"model_stats": stats}

    def index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """All versions of all models, by name. ready: only those that answer.

        Raises TooLarge if there are more than MOST_LISTED models.
        """
        entries: list[dict[str, str]] = []
        after, listed = None, 0
        while page := self.services.manager.models(self.caller.tenant, after, PAGE):
            listed += len(page)
            if listed > MOST_LISTED:
                raise TooLarge(
                    f"there are more than {MOST_LISTED} models: use GET /manage/models, which has pages"
                )
            entries += [entry for record in page for entry in index_of(record)]
            after = f"{page[-1].tenant}.{page[-1].name}"
        return [entry for entry in entries if not ready or entry["state"] == "READY"]

    def load(self, model: str, parameters: dict[str, Any]) -> None:
        """Check that a model can be asked: it is loaded by the first call that asks it."""
        self.record(model)
        if parameters:
            raise InvalidInput(
                "a model's configuration and files cannot be replaced by a load: leave the parameters out",
                field="parameters",
            )

    def unload(self, model: str) -> NoReturn:
        """Refuse."""
        self.record(model)
        raise Conflict(
            f"{model} cannot be unloaded: models are loaded when they are asked, and leave memory by "
            f"themselves when others need the room; DELETE /manage/models/{model} deletes it",
            field="model",
        )


def _statistics(name: str, answered: VersionCalls) -> dict[str, Any]:
    """One model's entry in Triton's statistics. Times are in nanoseconds."""
    stages = {
        triton: {"count": answered.calls, "ns": round(answered.ms.get(ours, 0.0) * 1e6)}
        for triton, ours in _STAGES.items()
    }
    return {
        "name": name,
        "version": str(answered.version),
        "last_inference": round(answered.last * 1000),
        "inference_count": answered.inputs,
        "execution_count": answered.calls,
        "inference_stats": {**stages, **{name: {"count": 0, "ns": 0} for name in _UNKNOWN}},
        "batch_stats": [],
    }
