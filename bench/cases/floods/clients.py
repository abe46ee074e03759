"""`bench.cases.floods.clients NAME PORT`: runs one flood until it is killed.

The key is read from standard input. The flood has a process of its own at the lowest priority, so that the
cost of sending does not distort the measurement.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import sys
import threading
import time

from bench.cases.floods.kinds import FLOODS, Flood, FloodRequest

PAUSE_S = 0.05
"""Seconds between a failed connection and the next, so that a refused client does not loop."""
PIECE = 1 << 16


def main() -> None:
    name, port = sys.argv[1], int(sys.argv[2])
    key = sys.stdin.readline().strip()
    os.nice(19)
    flood = FLOODS[name]
    request = flood.make()
    print("ready", flush=True)
    for _ in range(flood.clients):
        threading.Thread(target=_for_ever, args=(flood, request, port, key), daemon=True).start()
    sys.stdin.read()  # the parent process closes it


def _for_ever(flood: Flood, request: FloodRequest, port: int, key: str) -> None:
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
                _send(flood, request, key, connection)
        time.sleep(PAUSE_S)


def _send(flood: Flood, request: FloodRequest, key: str, connection: socket.socket) -> None:
    head = request.head(key)
    if flood.half_sent:
        connection.sendall(head[: len(head) // 2])
        connection.recv(PIECE)
        return
    while True:
        connection.sendall(head)
        body = memoryview(request.body)[: -1 if flood.unfinished else None]
        for start in range(0, len(body), PIECE):
            connection.sendall(body[start : start + PIECE])
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        while answer.read(PIECE):
            pass
        if answer.will_close:
            return


if __name__ == "__main__":
    main()
