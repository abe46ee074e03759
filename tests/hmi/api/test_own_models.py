"""The model of a call that names none, and what a protocol learns of models."""

from __future__ import annotations

import pytest

from hmi.api.access.caller import ADMINISTRATOR, ALL, Caller
from hmi.api.infer.own_models import OwnModels
from hmi.core import ModelId
from hmi.errors import InvalidInput, NotFound
from hmi.stores.records.registry import Registry
from tests.hmi.labs.registry_lab import add_tenant
from tests.hmi.labs.runner_bodies import version_by

ACME, MOOD, TOPIC = Caller("acme", ALL), ModelId("acme", "mood"), ModelId("globex", "topic")


def test_the_only_model_of_a_key_is_its_default(registry: Registry) -> None:
    add_tenant(registry, "globex")
    with pytest.raises(InvalidInput, match=r"reaches no model.*X-Model"):
        OwnModels(registry, ACME, "").default()
    registry.publish_model(TOPIC, version_by("j1"))
    with pytest.raises(InvalidInput, match="reaches no model"):
        OwnModels(registry, ACME, "").default()
    assert OwnModels(registry, ADMINISTRATOR, "").default() == TOPIC
    registry.publish_model(MOOD, version_by("j2"))
    assert OwnModels(registry, ACME, "").default() == MOOD
    with pytest.raises(InvalidInput, match="reaches several models"):
        OwnModels(registry, ADMINISTRATOR, "").default()


def test_the_setting_names_the_default_of_those_who_reach_it(registry: Registry) -> None:
    add_tenant(registry, "globex")
    for model in (MOOD, TOPIC):
        registry.publish_model(model, version_by(f"j-{model}"))
    assert OwnModels(registry, ADMINISTRATOR, "globex.topic").default() == TOPIC
    assert OwnModels(registry, ACME, "globex.topic").default() == MOOD, "it reaches another model only"


def test_a_model_out_of_reach_looks_as_one_that_does_not_exist(registry: Registry) -> None:
    add_tenant(registry, "globex")
    registry.publish_model(TOPIC, version_by("j1"))
    assert OwnModels(registry, ADMINISTRATOR, "").live(TOPIC).version == 1
    said = set()
    for model in (TOPIC, ModelId("globex", "none"), ModelId("acme", "none")):
        with pytest.raises(NotFound) as caught:
            OwnModels(registry, ACME, "").live(model)
        assert caught.value.details["field"] == "model"
        said.add(caught.value.message.replace(str(model), ""))
    assert len(said) == 1
