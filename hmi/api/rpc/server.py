"""The port of gRPC."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

# Jobs are started by fork and exec, which needs none of gRPC's handlers around a fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from hmi.api.edge.capacity import most_connections
from hmi.api.http.services import Services
from hmi.api.rpc.admission import AdmissionGate
from hmi.api.rpc.service import handlers
from hmi.config import Settings
from hmi.errors import Conflict

log = logging.getLogger("hmi.api")
LEAVE_S = 2.0
"""Time that clients have at the end to read their answers."""
MOST_CALLS = 256
"""Most calls at once on one connection."""


class RpcServer:
    """Serves gRPC beside HTTP, on a port of its own, with the same services and limits."""

    def __init__(self, services: Services) -> None:
        """Take the port of the settings. Raises Conflict if that is not possible."""
        settings = services.settings
        self.gate = AdmissionGate(services)
        self._server = grpc.aio.server(
            handlers=(handlers(services, self.gate),),
            options=_options(settings),
            maximum_concurrent_rpcs=most_connections(settings),
        )
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.address = f"{host}:{settings.grpc_port}"
        try:
            if settings.tls_cert is None:
                taken = self._server.add_insecure_port(self.address)
            else:
                taken = self._server.add_secure_port(self.address, _credentials(settings))
        except RuntimeError as error:
            raise _cannot_bind(self.address) from error
        if taken != settings.grpc_port:
            raise _cannot_bind(self.address)

    async def start(self) -> None:
        """Accept connections. Calls are refused until the services serve."""
        await self._server.start()

    async def stop(self) -> None:
        """Accept no more calls, and close the connections. Accepted calls must have been answered."""
        await self._server.stop(LEAVE_S)


def _options(settings: Settings) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", MOST_CALLS),
        ("grpc.max_connection_idle_ms", settings.idle_s * 1000),
        # HTTP's connections may have half of the files that the process may open.
        ("grpc.max_allowed_incoming_connections", max(1, most_connections(settings) // 2)),
        ("grpc.so_reuseport", 0),
        # Else a fast client makes gRPC buffer whole messages of streams that nobody reads yet.
        ("grpc.http2.bdp_probe", 0),
    ]


def _credentials(settings: Settings) -> Any:
    """The certificate, which is read again when a connection comes after its files have changed."""
    used: list[Any] = [_stamps(settings), _certificate(settings)]

    def fetch() -> Any:
        """The certificate if it has changed, else None, for one new connection."""
        now = _stamps(settings)
        if now == used[0]:
            return None
        try:
            used[:] = [now, _certificate(settings)]
        except OSError as error:
            log.error("the certificate for gRPC stays as it is: %s", error)
            return None
        return used[1]

    return grpc.dynamic_ssl_server_credentials(
        used[1], fetch, require_client_authentication=settings.tls_client_ca is not None
    )


def _certificate(settings: Settings) -> Any:
    assert settings.tls_key is not None
    assert settings.tls_cert is not None
    pair = settings.tls_key.read_bytes(), settings.tls_cert.read_bytes()
    authorities = None if settings.tls_client_ca is None else settings.tls_client_ca.read_bytes()
    return grpc.ssl_server_certificate_configuration([pair], authorities)


def _stamps(settings: Settings) -> tuple[tuple[Path, int], ...]:
    """The files of the certificate, with the times of their last change."""
    files = (settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    return tuple((file, _modified_ns(file)) for file in files if file is not None)


def _modified_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # it is being replaced
        return 0


def _cannot_bind(address: str) -> Conflict:
    return Conflict(
        f"cannot listen on {address} for gRPC: stop what listens there, or choose another grpc_port",
        field="grpc_port",
    )
