"""The models that a caller may know of: those that its key reaches."""

from __future__ import annotations

from dataclasses import dataclass

from hmi.api.access.caller import Caller
from hmi.core import ModelId, ModelRecord, ModelVersion
from hmi.errors import InvalidInput, NotFound
from hmi.stores.records.registry import Registry


@dataclass(frozen=True)
class OwnModels:
    """The models that `caller` reaches, for protocols."""

    registry: Registry
    caller: Caller
    default_model: str
    """The setting of this name: the model of calls that name none; "" if there is none."""

    def default(self) -> ModelId:
        """The model of a call that names none: that of the setting, else the only one that the caller
        reaches. Raises InvalidInput if there is none, or if there are several."""
        if self.default_model:
            model = ModelId.parse(self.default_model, "default_model")
            if self.caller.reaches(model.tenant):
                return model
        found = self.registry.models(self.caller.tenant, limit=2)
        if len(found) == 1:
            return ModelId(found[0].tenant, found[0].name)
        which = "this key reaches several models" if found else "this key reaches no model"
        raise InvalidInput(
            f"{which}: name one in the header X-Model: tenant.model, or set HMI_DEFAULT_MODEL on the server",
            field="X-Model",
        )

    def live(self, model: ModelId) -> ModelVersion:
        """The version of a model that answers. Raises NotFound, also if the caller does not reach it."""
        return self.record(model).live

    def record(self, model: ModelId) -> ModelRecord:
        """A model with its versions. Raises NotFound, also if the caller does not reach it."""
        what = f"model {str(model)!r}"
        self.caller.must_reach(model.tenant, what, field="model")
        try:
            return self.registry.model(model)
        except NotFound as error:
            raise NotFound(f"there is no {what}: check the name", field="model") from error
