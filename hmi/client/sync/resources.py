# Made by scripts/sync_client.py of hmi/client/aio/resources.py: change that file.
"""Roots, domains, tenants, keys and files."""

from __future__ import annotations

import warnings
from builtins import list as List  # the methods `list` hide the type
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from hmi.client.answers import (
    DeletedTenant,
    Domain,
    KeptFile,
    Key,
    NewKey,
    NewTenant,
    Root,
    RotatedKey,
    Tenant,
    Usage,
)
from hmi.client.calls import change, checked, create, delete, domain_segment, fields, get, segment
from hmi.client.rows import Source
from hmi.client.sync.jobs import Job
from hmi.client.sync.session import Session
from hmi.client.uploads import Data, parts, upload

_FILES = "/v1/files"


class Resource:
    """The base of all resources: one session, and how a job is started."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def start(self, path: str, body: Any, once: str | None = None, **files: Data | None) -> Job:
        """Start the job that a POST to `path` begins, with `files` as parts, and return its handle.

        The methods of the resources are written with it; it serves calls of a newer server, too.
        """
        there, sent = parts(files, self._session.config.compress)
        answer = self._session.send(create(path, {**body, **there}, sent, once))
        return Job(self._session, checked(lambda a: str(a["job"]), answer))


class Roots(Resource):
    def list(self) -> List[Root]:
        answer = self._session.send(get("/manage/roots"))
        return checked(lambda a: [Root.model_validate(root) for root in a["roots"]], answer)

    def create(
        self,
        root: str,
        source: str,
        *,
        text: Data | None = None,
        split: int | None = None,
        alpha: float | None = None,
        options: dict[str, Any] | None = None,
        once: str | None = None,
    ) -> Job:
        """Import a root from `source`: a folder on the server, an installed package or a hub id."""
        body = {"root": root, "source": source, **fields(split=split, alpha=alpha, options=options)}
        return self.start("/manage/roots", body, once, text=text)

    def shard(self, root: str, *, text: Data | None = None, importance: bool = False) -> Job:
        """Cut a root's upper layers into shards. `importance` does nothing, and will be removed."""
        if importance:
            warnings.warn("`importance` of shard() does nothing any more", DeprecationWarning, stacklevel=2)
        return self.start(f"/manage/roots/{segment(root)}/shards", {}, None, text=text)

    def set_priority(self, root: str, priority: Literal["normal", "low"]) -> None:
        self._session.send(change(f"/manage/roots/{segment(root)}", {"priority": priority}))

    def delete(self, root: str) -> None:
        self._session.send(delete(f"/manage/roots/{segment(root)}"))


class Domains(Resource):
    def list(self) -> List[Domain]:
        answer = self._session.send(get("/manage/domains"))
        return checked(lambda a: [Domain.model_validate(domain) for domain in a["domains"]], answer)

    def get(self, domain: str) -> Domain:
        return checked(Domain.model_validate, self._session.send(get(self._path(domain))))

    def create(
        self,
        domain: str,
        corpus: Data,
        *,
        alpha: float | None = None,
        pretrain: bool = False,
        options: dict[str, Any] | None = None,
        once: str | None = None,
    ) -> Job:
        """Create a branch from a corpus: a path, or texts."""
        body = {"domain": domain, "pretrain": pretrain, **fields(alpha=alpha, options=options)}
        return self.start("/manage/domains", body, once, corpus=corpus)

    def update(
        self,
        domain: str,
        corpus: Data,
        *,
        alpha: float | None = None,
        pretrain: bool = False,
        options: dict[str, Any] | None = None,
        once: str | None = None,
    ) -> Job:
        """Build a new version from more text."""
        body = {"pretrain": pretrain, **fields(alpha=alpha, options=options)}
        return self.start(f"{self._path(domain)}/update", body, once, corpus=corpus)

    def grow(self, domain: str, *, min_count: int = 5, once: str | None = None) -> Job:
        """Build a new version with what users' texts missed most."""
        return self.start(f"{self._path(domain)}/grow", {"min_count": min_count}, once)

    def erase(
        self,
        domain: str,
        text: Data | None = None,
        *,
        keep: Data | None = None,
        phrases: List[str] | None = None,
        encoding: str | None = None,
        dry_run: bool = False,
        once: str | None = None,
    ) -> Job:
        """Erase a text's n-grams and passages from all versions, and those that contain a phrase."""
        body = {"dry_run": dry_run, **fields(phrases=phrases, encoding=encoding)}
        return self.start(f"{self._path(domain)}/erase", body, once, text=text, keep=keep)

    def record_misses(self, domain: str, on: bool) -> Domain:
        """Start to record the n-grams that users' texts miss, or stop and delete the record."""
        answer = self._session.send(change(self._path(domain), {"record_misses": on}))
        return checked(Domain.model_validate, answer)

    def rollback(self, domain: str, version: str) -> Domain:
        call = change(f"{self._path(domain)}/rollback", {"version": version}, "POST")
        return checked(Domain.model_validate, self._session.send(call))

    def delete(self, domain: str) -> None:
        self._session.send(delete(self._path(domain)))

    def _path(self, domain: str) -> str:
        return f"/manage/domains/{domain_segment(domain)}"


class Tenants(Resource):
    def list(self) -> List[Tenant]:
        answer = self._session.send(get("/manage/tenants"))
        return checked(lambda a: [Tenant.model_validate(tenant) for tenant in a["tenants"]], answer)

    def get(self, tenant: str) -> Tenant:
        return checked(Tenant.model_validate, self._session.send(get(f"/manage/tenants/{segment(tenant)}")))

    def create(self, tenant: str, *, once: str | None = None, **settings: Any) -> NewTenant:
        """Create a tenant and its first key. `settings` are those of `set`."""
        call = create("/manage/tenants", {"tenant": tenant, **settings}, once=once)
        return checked(NewTenant.model_validate, self._session.send(call))

    def set(self, tenant: str, **settings: Any) -> Tenant:
        """Change a tenant's settings, such as `weight` and `limits`: docs/http.md lists them."""
        answer = self._session.send(change(f"/manage/tenants/{segment(tenant)}", settings))
        return checked(Tenant.model_validate, answer)

    def usage(self, tenant: str) -> Usage:
        answer = self._session.send(get(f"/manage/tenants/{segment(tenant)}/usage"))
        return checked(Usage.model_validate, answer)

    def delete(self, tenant: str) -> DeletedTenant:
        """Delete a tenant and all it owns."""
        answer = self._session.send(delete(f"/manage/tenants/{segment(tenant)}"))
        return checked(DeletedTenant.model_validate, answer)


class Keys(Resource):
    def list(self, tenant: str) -> List[Key]:
        answer = self._session.send(get(self._path(tenant)))
        return checked(lambda a: [Key.model_validate(key) for key in a["keys"]], answer)

    def create(
        self,
        tenant: str,
        scopes: List[Literal["infer", "manage"]] | None = None,
        *,
        once: str | None = None,
        **settings: Any,
    ) -> NewKey:
        """Issue a key, with `infer` and `manage` unless `scopes` says otherwise. See also expires, label."""
        call = create(self._path(tenant), {**fields(scopes=scopes), **settings}, once=once)
        return checked(NewKey.model_validate, self._session.send(call))

    def rotate(
        self, tenant: str, key_id: str, *, overlap_s: float = 3600.0, once: str | None = None
    ) -> RotatedKey:
        """Issue a key that follows another one, which works for `overlap_s` seconds more."""
        call = create(f"{self._path(tenant)}/{segment(key_id)}/rotate", {"overlap_s": overlap_s}, once=once)
        return checked(RotatedKey.model_validate, self._session.send(call))

    def revoke(self, tenant: str, key_id: str) -> None:
        self._session.send(delete(f"{self._path(tenant)}/{segment(key_id)}"))

    def _path(self, tenant: str) -> str:
        return f"/manage/tenants/{segment(tenant)}/keys"


class Files(Resource):
    """Files of rows that the server keeps for fine-tuning jobs, as OpenAI's protocol has them."""

    def upload(self, file: Source, *, once: str | None = None) -> KeptFile:
        """Keep a file of rows: a path, rows, or a data frame. It belongs to the key's tenant."""
        part = upload("file", file, self._session.config.compress)
        call = replace(create(_FILES, {"purpose": "fine-tune"}, {"file": part}, once), form=True)
        return checked(KeptFile.model_validate, self._session.send(call))

    def list(self, *, tenant: str | None = None) -> Iterator[KeptFile]:
        """Yield files, newest first, page by page."""
        after: str | None = None
        more = True
        while more:
            page = self._session.send(get(_FILES, after=after, tenant=tenant))
            for file in page["data"]:
                yield checked(KeptFile.model_validate, file)
            after, more = page["last_id"], page["has_more"]

    def get(self, file: str) -> KeptFile:
        return checked(KeptFile.model_validate, self._session.send(get(f"{_FILES}/{segment(file)}")))

    def content(self, file: str) -> bytes:
        """Return the content of a file, in memory as a whole."""
        return self._session.content(get(f"{_FILES}/{segment(file)}/content"))

    def delete(self, file: str) -> None:
        self._session.send(delete(f"{_FILES}/{segment(file)}"))
