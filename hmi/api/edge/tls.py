"""The server's certificate: read at the start, and again when its files change. Connections stay open."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path

from hmi.config import Settings
from hmi.errors import InvalidInput

log = logging.getLogger("hmi.api")
CHECK_S = 2.0
"""Interval at which the certificate's files are looked at."""
SHUTDOWN_S = 10.0
"""Longest time in which a closed connection may take the rest of its answer and agree to the end of TLS."""
Stamp = tuple[tuple[int, int, int], ...]
"""For each file, numbers that change when it is written or replaced."""


class Certificates:
    """The TLS context that new connections use. Used on the event loop's thread only.

    A reload makes a new context, so a connection keeps the one that it began with.
    """

    def __init__(self, settings: Settings) -> None:
        """Read the files. Raises InvalidInput that names the setting at fault."""
        self._settings = settings
        self._files = [
            f for f in (settings.tls_cert, settings.tls_key, settings.tls_client_ca) if f is not None
        ]
        self._stamp = self._now()
        self.context = context_of(settings)
        self.on_reload: list[Callable[[], None]] = []
        """Called when the files have been read again and are in use."""

    def reload(self) -> bool:
        """Read the files again; return whether they are in use. If they are wrong, the old ones stay."""
        self._stamp = self._now()
        try:
            self.context = context_of(self._settings)
        except InvalidInput as error:
            log.error("the certificate stays as it is: %s", error.message)
            return False
        for call in self.on_reload:
            call()
        log.info("the certificate was read again: new connections use it")
        return True

    async def watch(self) -> None:
        """Reload whenever a file changes, forever."""
        while True:
            await asyncio.sleep(CHECK_S)
            if self._now() != self._stamp:
                await asyncio.sleep(CHECK_S / 4)  # the other file of the pair may be written next
                self.reload()

    def _now(self) -> Stamp:
        return tuple(_stamp(file) for file in self._files)


def certificates_of(settings: Settings) -> Certificates | None:
    """Return the certificate that the settings name; None without one. Raises InvalidInput."""
    return None if settings.tls_cert is None else Certificates(settings)


def context_of(settings: Settings) -> ssl.SSLContext:
    """Create the context of a server: TLS 1.2 or newer, HTTP/1.1. Raises InvalidInput."""
    assert settings.tls_cert is not None
    assert settings.tls_key is not None
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        _check_readable(name, getattr(settings, name))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # A passphrase would be asked for at the terminal; an empty one makes an encrypted key an error.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")
    except ssl.SSLError as error:
        raise _wrong_pair(settings, error) from error
    if settings.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except ssl.SSLError as error:
            message = f"tls_client_ca: {settings.tls_client_ca} holds no certificate: give a PEM file"
            raise InvalidInput(message, field="tls_client_ca") from error
    return context


def _check_readable(name: str, file: Path | None) -> None:
    if file is None:
        return
    try:
        file.open("rb").close()
    except OSError as error:
        message = f"{name}: {file} cannot be read ({error.strerror}): check the path and who may read it"
        raise InvalidInput(message, field=name) from error


def _wrong_pair(settings: Settings, error: ssl.SSLError) -> InvalidInput:
    if error.reason == "KEY_VALUES_MISMATCH":
        message = f"tls_key: {settings.tls_key} is not the key of the certificate {settings.tls_cert}"
        return InvalidInput(f"{message}: give the two files that were made together", field="tls_key")
    return InvalidInput(
        f"tls_cert: {settings.tls_cert} and {settings.tls_key} are no PEM certificate with its key "
        f"({error.reason or error}): the key must have no passphrase",
        field="tls_cert",
    )


def _stamp(file: Path) -> tuple[int, int, int]:
    """Return the stamp of the files. A symbolic link is followed, since some systems replace only the link. A
    missing file gives zeros.
    """
    try:
        found = os.stat(file)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)
