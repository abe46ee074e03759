"""What a replica passes on to the primary, over real connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, web

from hmi.api.edge.tls import Certificates
from hmi.api.nodes.forward import Forwarder
from hmi.api.nodes.servers import _reason
from hmi.config import Settings
from hmi.errors import HmiError
from tests.hmi.labs.tls_lab import Authority

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, **tls: ssl.SSLContext) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    taken = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, taken, **tls).start()
    try:
        yield int(taken.getsockname()[1])
    finally:
        await runner.cleanup()


@asynccontextmanager
async def replica(primary: Handler) -> AsyncIterator[int]:
    """The port of a server that passes everything on to `primary`, and answers its own errors by kind."""
    forwarder = Forwarder(Settings(body_idle_s=1))
    async with serving(primary) as there:

        async def pass_on(request: web.Request) -> web.StreamResponse:
            try:
                return await forwarder.pass_on(request, "r", f"http://127.0.0.1:{there}")
            except ConnectionResetError:
                raise
            except Exception as error:  # as `answer_errors` does
                return web.Response(
                    status=500, text=error.kind if isinstance(error, HmiError) else "internal"
                )

        try:
            async with serving(pass_on) as here:
                yield here
        finally:
            await forwarder.close()


async def sent(port: int, request: bytes) -> bytes:
    """All that the server sends back until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


async def echo(request: web.Request) -> web.StreamResponse:
    await request.read()
    return web.Response(text=f"{request.raw_path} {request.headers['Host']}")


async def test_a_request_goes_to_the_primary_whatever_its_target_says() -> None:
    async def other(request: web.Request) -> web.StreamResponse:
        return web.Response(text="a server of the caller's choice")

    async with replica(echo) as port, serving(other) as elsewhere:
        for target, path in (
            (f"http://127.0.0.1:{elsewhere}/manage/models?q=a%2Fb", b"/manage/models?q=a%2Fb "),
            (f"//127.0.0.1:{elsewhere}/manage/models", b"/manage/models "),
            ("/manage/domains/a%2Fb?q=%2F+%26&x", b"/manage/domains/a%2Fb?q=%2F+%26&x "),
        ):
            head = f"GET {target} HTTP/1.1\r\nHost: h.example\r\nConnection: close\r\n\r\n"
            answer = await sent(port, head.encode())
            assert b"caller's choice" not in answer
            assert path in answer


async def test_the_primary_sees_the_host_that_a_browser_asked_for() -> None:
    """By it a server without keys knows a page that rebinds its name to this machine."""
    async with replica(echo) as port:
        answer = await sent(port, b"GET /m HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
    assert answer.endswith(b"/m evil.example")


@pytest.mark.parametrize("headers", [{}, {"Content-Length": "1000"}])
async def test_an_answer_that_breaks_off_gets_no_second_head(headers: dict[str, str]) -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers=headers)
        await answer.prepare(request)
        await answer.write(b"the beginning")
        await asyncio.sleep(0.2)
        assert request.transport is not None
        request.transport.abort()
        return answer

    async with replica(breaks) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /m HTTP/1.1\r\nHost: h\r\n\r\n")
        found = b""
        async with asyncio.timeout(10):
            try:
                while chunk := await reader.read(1000):
                    found += chunk
            except ConnectionResetError:
                pass
        writer.close()
    assert b"the beginning" in found
    assert found.count(b"HTTP/1.1") == 1


async def test_a_body_that_stalls_is_the_callers_fault() -> None:
    async with replica(echo) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /m HTTP/1.1\r\nHost: h\r\nContent-Length: 50\r\n\r\nabc")
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(9) == b"malformed", head
        writer.close()


async def test_many_slow_calls_do_not_hold_up_others() -> None:
    over = asyncio.Event()
    begun = 0

    async def primary(request: web.Request) -> web.StreamResponse:
        nonlocal begun
        if request.path == "/slow":
            begun += 1
            await over.wait()
        return await echo(request)

    async with replica(primary) as port:
        head = b"GET /%s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        slow = [asyncio.create_task(sent(port, head % b"slow")) for _ in range(110)]
        try:
            assert (await sent(port, head % b"quick")).endswith(b"/quick h")
            while begun < 110:
                await asyncio.sleep(0.01)
        finally:
            over.set()
        assert all(answer.endswith(b"/slow h") for answer in await asyncio.gather(*slow))


def strict(authority: Authority, admitted: Authority) -> ssl.SSLContext:
    """What a server needs that has a certificate of one authority, and wants one of another."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=admitted.file)
    context.load_cert_chain(*authority.issue("there"))
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    """From the moment on from which the server's clients see it, too."""
    ours = Authority.create(tmp_path / "ours")
    cert, key = ours.issue("old")
    settings = Settings(tls_cert=cert, tls_key=key, node_ca=ours.file)
    forwarder, certificates = Forwarder(settings), Certificates(settings)
    certificates.on_reload.append(forwarder.renew)
    certificates.reload()  # before the first call

    async def whose(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        shown: Any = request.transport.get_extra_info("peercert")
        names = dict(pair for part in shown["subject"] for pair in part)
        return web.Response(text=names["commonName"], headers={"Connection": "close"})

    async with serving(whose, ssl_context=strict(ours, ours)) as port:

        async def shown() -> str:
            async with forwarder.client().get(f"https://127.0.0.1:{port}/") as answer:
                return await answer.text()

        assert await shown() == "old"
        for file, renewed in zip((cert, key), ours.issue("new"), strict=True):
            renewed.replace(file)
        assert await shown() == "old"
        assert certificates.reload()
        assert await shown() == "new"
        key.write_text("no key")
        assert not certificates.reload()
        assert await shown() == "new"
    await forwarder.close()


@pytest.mark.parametrize("body", [b"", b"x" * 3_000_000])
async def test_a_refused_certificate_is_said_to_be_the_reason(tmp_path: Path, body: bytes) -> None:
    ours, theirs = (Authority.create(tmp_path / name) for name in ("ours", "theirs"))
    cert, key = ours.issue("me")
    forwarder = Forwarder(Settings(tls_cert=cert, tls_key=key, node_ca=theirs.file))
    async with serving(echo, ssl_context=strict(theirs, theirs)) as port:
        url = f"https://127.0.0.1:{port}"
        with pytest.raises(ClientError) as caught:
            await forwarder.client().post(url, data=body)
        assert "see tls_client_ca" in _reason(caught.value, url)
    with pytest.raises(ClientError) as caught:
        await forwarder.client().post(url, data=body)
    assert "tls_client_ca" not in _reason(caught.value, url), "nobody listens there"
    await forwarder.close()
