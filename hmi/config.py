"""Settings of one process. Only `Settings.from_env` reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hmi.errors import InvalidInput
from hmi.sizes import FORMS, parse_bytes

MIB = 1 << 20
PREFIX = "HMI_"
PRECISIONS = ("auto", "fp32", "bf16", "int8")
DEVICES = ("auto", "cpu", "cuda")
STAGES = ("exits", "cascades", "tokens", "shards")
"""The execution stages that a server may run, by the names that `Settings.stages` gives them."""
_MIN: dict[str, int] = {
    "port": 0,
    "job_workers": 0,
    "pool_bytes": 0,
    "plot_max_bytes": 0,
    "plot_min_free_bytes": 0,
    "compact_segments": 0,
    "compact_small_bytes": 1 << 14,
    "max_connections": 0,
    "max_address_connections": 0,
    "max_uploads": 2,
    "upload_bytes": 0,
    "root_bytes": 0,
    "io_bytes_per_s": 0,
    "tenant_requests_per_s": 0,
    "tenant_tokens_per_s": 0,
    "tenant_models": 0,
    "tenant_bytes": 0,
    "audit_days": 0,
}
_MAX: dict[str, int] = {"port": 65535, "job_workers": 64, "streams": 1024}


@dataclass(frozen=True)
class Settings:
    """Settings of a server or command. Sizes are in bytes. Raises InvalidInput that names a wrong value.

    `hmi settings` and docs/settings.md show the text under each field. After a change run
    `python -m hmi settings --markdown --out docs/settings.md`.
    """

    data: Path = Path("hmi-data")
    """The data folder. The server stores everything below it."""
    host: str = "127.0.0.1"
    """The address to listen on. Before the server listens on any address other than loopback, it needs an
    administrator's key."""
    port: int = 8080
    """The port to listen on; 0 = any free port."""
    job_workers: int = 1
    """The number of jobs that run at once; 0 = start none, and leave them to another process."""
    streams: int = 1
    """The number of batches that are computed at a time, one thread each. As many short batches of other
    tenants may run beside them, on threads of their own."""
    precision: str = "auto"
    """Numbers that the upper layers multiply: `fp32`; `bf16` or `int8`, where the processor can; or `auto`,
    the fastest of fp32 and bf16 on this machine (`hmi profile`). Requests with `exact` always run in fp32."""
    device: str = "auto"
    """Where the upper layers run: `cpu`; `cuda`, a CUDA device; or `auto`, a CUDA device if torch finds one
    and it agrees with the CPU. With a device, set `streams` to 2: one batch is then retrieved while another
    is computed."""
    device_bytes: int = 1024 * MIB
    """Memory for modules on the device, for each root in memory. Others are copied there when needed."""
    stages: str = "auto"
    """The execution stages that may spend less on a text: `auto`, all of them, each only for models that it
    was profiled for and whose objective allows it; `none`; or a list of `exits`, `cascades`, `tokens` and
    `shards` with commas between them. Answers without a stage are those of the full model."""
    root_bytes: int = 0
    """Memory for the upper layers of roots. A root that does not fit runs on its shards (`hmi root shards`),
    which are read as they are needed; what fits stays in memory. 0 = no limit."""
    io_bytes_per_s: int = 0
    """The most bytes a second that are read from the disk for roots, shards and modules together; 0 = no
    limit."""
    batch_ms: int = 20
    """Target time of one batch, and so about how long a text waits for the batch before it. Longer batches
    raise throughput a little. While a single tenant's texts wait, its batch may take twice as long. A window
    of a text that takes longer than this runs alone."""
    max_batch_tokens: int = 2048
    """The most tokens in one batch. Larger batches are slightly faster overall, but others wait longer."""
    queue_tokens: int = 65536
    """If more tokens than this are waiting, new requests get `unavailable`. A tenant may fill a quarter of
    it, and gets `quota_exceeded` beyond that."""
    queue_s: int = 30
    """The same limit as a time: the most seconds of work that may be waiting, by the engine's prediction."""
    pool_bytes: int = 0
    """Memory for the modules of recently used models, about 500 kB each. Other modules are read from the disk
    when needed. A model whose module is larger than this gets `too_large`. 0 = a quarter of the memory that
    the process may use."""
    max_text_bytes: int = 100_000
    """The largest size of one text of a request, in UTF-8."""
    max_inputs: int = 1024
    """The most texts in one request."""
    # The default fits max_inputs texts of the most tokens that a model reads at once: 1024 · 512 tokens · 8
    # bytes. English with its white space takes 5 bytes a token, Chinese 3.
    max_body_bytes: int = 4 * MIB
    """The largest JSON body of one call to infer, after decompression. The default fits `max_inputs` texts of
    512 tokens."""
    body_bytes: int = 128 * MIB
    """Memory for request bodies in flight. A tenant may hold as much of it as it leaves free for others."""
    body_idle_s: int = 30
    """A body that pauses for longer than this is refused."""
    head_s: int = 20
    """A new connection is closed if it has not sent the whole head of a request after this time."""
    idle_s: int = 75
    """A connection is closed after this time without a request, or if the client does not read its answer for
    this time."""
    max_connections: int = 0
    """The most open connections; 0 = half of the files that the process may open, at most 4096."""
    max_address_connections: int = 0
    """The most open connections from one address other than this machine's own; 0 = half of
    `HMI_MAX_CONNECTIONS`."""
    max_upload_bytes: int = 256 * MIB
    """The largest size of one uploaded file, after decompression."""
    max_uploads: int = 32
    """The most requests with files that are in flight at once. A tenant may have as many as it leaves free
    for others."""
    upload_bytes: int = 0
    """Disk space for the files of requests in flight, both as sent and decompressed. A tenant may hold as
    much of it as it leaves free for others. 0 = 16 times `max_upload_bytes`."""
    default_model: str = ""
    """The model of calls that name none, in protocols that allow this (`/embed`, `/predict`), as
    `tenant.model`. Empty: the only model that the caller's key reaches."""
    max_files: int = 100
    """The most files that a tenant may keep for later jobs (`/v1/files`)."""
    files_bytes: int = 1024 * MIB
    """The most bytes that the files of one tenant may take together."""
    plot_max_bytes: int = 0
    """The largest size of the PLOT store; 0 = no limit."""
    plot_min_free_bytes: int = 256 * MIB
    """Free disk space that the PLOT store leaves untouched."""
    plot_keep_versions: int = 8
    """The number of each domain's newest versions that garbage collection keeps."""
    compact_segments: int = 8
    """The server merges a domain's small segments when one order of n-grams has more than this; 0 = never."""
    compact_small_bytes: int = 32 * MIB
    """A segment below this size counts as small."""
    backup_location: str = ""
    """The place for backups that are asked for over HTTP: a folder, or a URL such as `s3://bucket/hmi`, which
    needs the package of its protocol. Without it such calls are refused (docs/operations/backup.md)."""
    tenant_requests_per_s: int = 0
    """Calls to infer a second that a tenant may make in the long run, unless it has a limit of its own
    (`hmi tenant set`); 0 = no limit."""
    tenant_tokens_per_s: int = 0
    """Tokens a second that a tenant may send in the long run, unless it has a limit of its own; 0 = no
    limit."""
    tenant_burst_s: int = 10
    """A tenant that has sent nothing for this many seconds may send as much at once as its limits allow in
    this time."""
    tenant_models: int = 0
    """The most models of a tenant, unless it has a limit of its own; 0 = no limit."""
    tenant_bytes: int = 0
    """The most bytes that a tenant's models and files may take on the disk, unless it has a limit of its
    own; 0 = no limit."""
    audit_days: int = 365
    """Days for which the audit log is kept; 0 = forever."""

    def __post_init__(self) -> None:
        # A job runs in another process, perhaps after a restart from another folder: the path must not
        # depend on the working directory.
        object.__setattr__(self, "data", Path(self.data).expanduser().absolute())
        if not self.host:
            raise InvalidInput("host is empty: give an address such as 127.0.0.1", field="host")
        if self.precision not in PRECISIONS:
            raise InvalidInput(
                f"precision = {self.precision!r} is unknown: use auto, fp32, bf16 or int8", field="precision"
            )
        if self.device not in DEVICES:
            raise InvalidInput(f"device = {self.device!r} is unknown: use auto, cpu or cuda", field="device")
        object.__setattr__(self, "stages", _stages(self.stages))
        for field in fields(self):
            if isinstance(field.default, int):
                _check_number(field.name, getattr(self, field.name))

    def runs(self, stage: str) -> bool:
        """Return whether a server with these settings may run a stage of `STAGES`."""
        return self.stages == "auto" or stage in self.stages.split(",")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Read HMI_DATA, HMI_PORT, …; `overrides` that are not None win. Raises InvalidInput."""
        environ = os.environ if environ is None else environ
        given: dict[str, Any] = {}
        for field in fields(cls):
            text = environ.get(PREFIX + field.name.upper())
            if overrides.get(field.name) is not None:
                given[field.name] = overrides.pop(field.name)
            elif text:
                given[field.name] = _parsed(field.name, field.default, text)
        unknown = sorted(name for name, value in overrides.items() if value is not None)
        if unknown:
            known = ", ".join(field.name for field in fields(cls))
            raise InvalidInput(f"unknown setting {unknown[0]!r}: use one of {known}", field=unknown[0])
        return cls(**given)


def _stages(given: str) -> str:
    """Return the setting `stages` without spaces and repeats. Raises InvalidInput for an unknown name."""
    names = [name.strip() for name in given.split(",")]
    if names in (["auto"], ["none"]):
        return names[0]
    for name in names:
        if name not in STAGES:
            why = f"{name!r} stands alone" if name in ("auto", "none") else f"{name!r} is unknown"
            raise InvalidInput(
                f"stages = {given!r}: {why}; use auto, none, or some of {', '.join(STAGES)} with commas "
                "between them",
                field="stages",
            )
    return ",".join(dict.fromkeys(names))


def _parsed(name: str, default: Any, text: str) -> Any:
    if not isinstance(default, int):
        return text
    size = name.endswith("_bytes")
    try:
        return parse_bytes(text) if size else int(text)
    except ValueError as error:
        what = f"a size: give {FORMS}" if size else "a whole number"
        raise InvalidInput(f"{PREFIX}{name.upper()}={text!r} is not {what}", field=name) from error


def bounds(name: str) -> tuple[int, int]:
    """The smallest and the largest value of a numeric setting."""
    return _MIN.get(name, 1), _MAX.get(name, 1 << 50)


def _check_number(name: str, value: Any) -> None:
    least, most = bounds(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(
            f"{name} = {value!r} is impossible: give a whole number from {least} to {most}", field=name
        )
