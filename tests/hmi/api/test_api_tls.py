"""HTTPS with real certificates: reloads, wrong pairs, clients with certificates, half-open handshakes."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from pathlib import Path

import pytest

from hmi.api.edge.drain import leave
from hmi.api.edge.tls import SHUTDOWN_S, Certificates, certificates_of
from hmi.api.process.server import _watch
from hmi.cli.framework.client import HttpClient
from hmi.config import Settings
from hmi.errors import InvalidInput, Unavailable
from tests.hmi.labs.door_lab import HEALTH, ask, connect, gone, serving
from tests.hmi.labs.tls_lab import Authority
from tests.waiting import until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "certificates")


async def common_name(port: int, context: ssl.SSLContext) -> str:
    """The name in the certificate that a new connection is shown."""
    _, writer = await connect(port, tls=context)
    shown = writer.get_extra_info("peercert")
    writer.close()
    return str(dict(pair for part in shown["subject"] for pair in part)["commonName"])


async def test_https_answers_and_plain_http_does_not(tmp_path: Path, authority: Authority) -> None:
    cert, key = authority.issue()
    async with serving(tmp_path / "d", tls_cert=cert, tls_key=key) as (_, door, port):
        status, body, _ = await ask(port, tls=authority.context())
        assert (status, body["status"]) == (200, "alive")
        reader, writer = await connect(port, HEALTH)
        await gone(reader)
        writer.close()
        _, old = await connect(port, tls=authority.context())
        assert old.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        old.close()
        await until(lambda: not door._count())


async def test_the_client_trusts_what_it_is_told_to(tmp_path: Path, authority: Authority) -> None:
    cert, key = authority.issue()
    async with serving(tmp_path / "d", tls_cert=cert, tls_key=key) as (_, _, port):
        url = f"https://127.0.0.1:{port}"
        found = await asyncio.to_thread(HttpClient(url, ca=authority.file).request, "GET", "/healthz")
        assert found["status"] == "alive"
        with pytest.raises(InvalidInput, match=r"cannot be trusted.*--ca FILE"):
            await asyncio.to_thread(HttpClient(url).request, "GET", "/healthz")
        with pytest.raises(InvalidInput, match=r"--ca .* cannot be used"):
            HttpClient(url, ca=tmp_path / "none.pem").request("GET", "/healthz")


async def test_a_client_shows_a_certificate_if_asked(tmp_path: Path, authority: Authority) -> None:
    cert, key = authority.issue()
    tls = {"tls_cert": cert, "tls_key": key, "tls_client_ca": authority.file}
    stranger = Authority.create(tmp_path / "stranger")
    async with serving(tmp_path / "d", **tls) as (_, _, port):

        def call(certificate: Path | None) -> object:
            client = HttpClient(f"https://127.0.0.1:{port}", None, authority.file, certificate)
            return client.request("GET", "/healthz")["status"]

        assert await asyncio.to_thread(call, authority.both()) == "alive"
        for wrong in (None, stranger.both()):
            with pytest.raises(Unavailable):
                await asyncio.to_thread(call, wrong)


async def test_a_reload_keeps_connections_and_a_wrong_pair_keeps_the_old(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hmi.api.edge.tls.CHECK_S", 0.05)
    cert, key = authority.issue("first")
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}

    def install(cert: Path, key: Path) -> None:
        files["tls_key"].write_bytes(key.read_bytes())
        files["tls_cert"].write_bytes(cert.read_bytes())

    install(cert, key)
    context = authority.context()
    async with serving(tmp_path / "d", **files) as (_, door, port):
        assert isinstance(door._certificates, Certificates)
        watching = asyncio.create_task(door._certificates.watch())
        reader, writer = await connect(port, HEALTH, tls=context)
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        install(*authority.issue("second"))
        while await common_name(port, context) != "second":
            await asyncio.sleep(0.02)
        other, _ = authority.issue("third")
        files["tls_cert"].write_bytes(other.read_bytes())
        await until(lambda: "the certificate stays as it is" in caplog.text)
        assert "is not the key of the certificate" in caplog.text
        assert await common_name(port, context) == "second"
        writer.write(HEALTH)  # on the connection that has been open all the time
        assert b"200 OK" in await reader.readuntil(b"HTTP/1.1 200 OK")
        writer.close()
        watching.cancel()


async def test_sighup_reads_the_certificate_again(tmp_path: Path, authority: Authority) -> None:
    cert, key = authority.issue()
    held = certificates_of(Settings(data=tmp_path, tls_cert=cert, tls_key=key))
    assert held is not None
    before, loop = held.context, asyncio.get_running_loop()
    watching = _watch(held, loop)
    assert watching is not None
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: held.context is not before)
    finally:
        watching.cancel()
        loop.remove_signal_handler(signal.SIGHUP)


async def test_an_idle_client_does_not_delay_a_stop(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = authority.issue()
    async with serving(tmp_path / "d", tls_cert=cert, tls_key=key) as (_, door, port):
        reader, writer = await connect(port, HEALTH, tls=authority.context())
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        transport = writer.transport
        transport.pause_reading()  # as a client that keeps a connection for later
        loop = asyncio.get_running_loop()
        await leave(door._server, door._listener, door.stop, loop.time() + SHUTDOWN_S)
        assert not door._server.connections
        assert "are read too slowly" not in caplog.text
        transport.abort()


async def test_half_open_handshakes_hold_nothing(tmp_path: Path, authority: Authority) -> None:
    cert, key = authority.issue()
    context = authority.context()
    tls = {"tls_cert": cert, "tls_key": key}
    async with serving(tmp_path / "d", max_connections=8, head_s=2, **tls) as (_, door, port):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        held[0][1].write(b"\x16\x03\x01\x02\x00")  # the beginning of a ClientHello
        for _ in range(3):
            assert (await ask(port, tls=context))[0] == 200, "whoever shakes hands is let in"
        assert door._count() <= 8
        await asyncio.gather(*(gone(reader) for reader, _ in held))
        assert (await ask(port, tls=context))[0] == 200
        for _, writer in held:
            writer.close()
        await until(lambda: not door._all and not door._connecting)


def test_each_wrong_file_is_named(tmp_path: Path, authority: Authority) -> None:
    cert, key = authority.issue()
    other, _ = authority.issue("other")
    empty = tmp_path / "empty"
    empty.write_text("")

    def told(**files: Path) -> str:
        with pytest.raises(InvalidInput) as caught:
            certificates_of(Settings(data=tmp_path, **files))
        return caught.value.message

    assert "tls_cert needs tls_key" in told(tls_cert=cert)
    assert "is not the key of the certificate" in told(tls_cert=other, tls_key=key)
    assert "no PEM certificate" in told(tls_cert=empty, tls_key=key)
    assert "cannot be read" in told(tls_cert=cert, tls_key=tmp_path / "none")
    assert "holds no certificate" in told(tls_cert=cert, tls_key=key, tls_client_ca=empty)
    assert certificates_of(Settings(data=tmp_path)) is None


def test_old_versions_of_tls_are_refused(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue()
    held = certificates_of(Settings(data=tmp_path, tls_cert=cert, tls_key=key))
    assert held is not None
    assert held.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert ssl.OP_NO_COMPRESSION in held.context.options
