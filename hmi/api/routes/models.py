"""The calls for models and their cascades, a part of the route table (`hmi.api.routes.table`)."""

from __future__ import annotations

from hmi.api.handlers import cascades, exits, models, tokens
from hmi.api.http.route import Route
from hmi.api.schemas.cascades import CascadeView, ProfileCascade
from hmi.api.schemas.exits import ExitsView, Feedback, FeedbackTaken, TrainRamps
from hmi.api.schemas.models import (
    ChangeModel,
    CreateModel,
    ImportModule,
    ModelList,
    ModelQuery,
    ModelView,
    ModuleExport,
    RollbackModel,
    UpdateModel,
)
from hmi.api.schemas.shared import JobAccepted, NoBody
from hmi.api.schemas.tokens import ProfileTokens, TokensView

DATA = {"data": False, "dev": False, "unlabelled": False}
"""File parts of a model's rows. None is required here: an embedding model needs no data, and the manager
refuses missing data for any other task."""
TEXTS = {"data": False, "unlabelled": False}
"""File parts of texts for ramps. The manager refuses a request without both."""
ADAPTER = {
    "adapter_config": True,
    "adapter": True,
    "head_config": False,
    "head": False,
    "data": False,
    "dev": False,
}
"""File parts of an adapter from adapter-hub. The manager refuses a request without a head and without
data."""
MODEL = "/manage/models/{model}"

MODELS = (
    Route(
        "GET",
        "/manage/models",
        models.list_models,
        "List models.",
        ModelList,
        "manage",
        query=ModelQuery,
        kinds=("not_found",),
    ),
    Route(
        "POST",
        "/manage/models",
        models.create_model,
        "Fine-tune a new model.",
        JobAccepted,
        "manage",
        202,
        body=CreateModel,
        files=DATA,
        creates=True,
        kinds=("conflict", "invalid_data"),
    ),
    Route(
        "POST",
        "/manage/models/import",
        models.import_module,
        "Make a model from an adapter of adapter-hub.",
        JobAccepted,
        "manage",
        202,
        body=ImportModule,
        files=ADAPTER,
        creates=True,
        kinds=("conflict", "invalid_data"),
    ),
    Route(
        "GET",
        f"{MODEL}/module",
        models.export_module,
        "Export a module to adapter-hub.",
        ModuleExport,
        "manage",
        kinds=("damaged",),
    ),
    Route("GET", MODEL, models.show_model, "A model and its versions.", ModelView, "manage"),
    Route(
        "POST",
        f"{MODEL}/update",
        models.update_model,
        "Fine-tune a new version.",
        JobAccepted,
        "manage",
        202,
        body=UpdateModel,
        files=DATA,
        creates=True,
        kinds=("conflict", "invalid_data"),
    ),
    Route(
        "POST",
        f"{MODEL}/ramps",
        exits.train_ramps,
        "Train ramps, by which texts may leave early.",
        JobAccepted,
        "manage",
        202,
        body=TrainRamps,
        files=TEXTS,
        creates=True,
        kinds=("conflict", "invalid_data"),
    ),
    Route(
        "POST",
        f"{MODEL}/tokens",
        tokens.profile_tokens,
        "Train prompts, and profile what token adaptation does to the model's answers.",
        JobAccepted,
        "manage",
        202,
        body=ProfileTokens,
        files=DATA,
        creates=True,
        kinds=("conflict", "invalid_data"),
    ),
    Route("GET", f"{MODEL}/tokens", tokens.show_tokens, "A model's token adaptation.", TokensView, "manage"),
    Route(
        "POST",
        f"{MODEL}/rollback",
        models.rollback_model,
        "Let another version answer.",
        ModelView,
        "manage",
        body=RollbackModel,
        kinds=("conflict",),
    ),
    Route(
        "PATCH",
        MODEL,
        models.change_model,
        "Set or remove the bounds for a model's answers.",
        ModelView,
        "manage",
        body=ChangeModel,
        kinds=("storage_full",),
    ),
    Route(
        "GET", f"{MODEL}/exits", exits.show_exits, "A model's objective and early exits.", ExitsView, "manage"
    ),
    Route(
        "POST",
        f"{MODEL}/feedback",
        exits.feedback,
        "Send labels that became known after the answers.",
        FeedbackTaken,
        "infer",
        body=Feedback,
    ),
    Route("DELETE", MODEL, models.delete_model, "Delete a model.", NoBody, "manage", kinds=("conflict",)),
)

CASCADES = (
    Route(
        "POST",
        f"{MODEL}/cascade",
        cascades.profile_cascade,
        "Profile a cascade with this model as its large level.",
        JobAccepted,
        "manage",
        202,
        body=ProfileCascade,
        files={"data": False},
        creates=True,
        kinds=("conflict", "invalid_data"),
    ),
    Route(
        "GET", f"{MODEL}/cascade", cascades.show_cascade, "A cascade and its traffic.", CascadeView, "manage"
    ),
    Route("DELETE", f"{MODEL}/cascade", cascades.delete_cascade, "Remove a cascade.", NoBody, "manage"),
)
