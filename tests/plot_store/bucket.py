"""A server of S3's protocol on the loopback with a bucket "plots": moto's, one request at a time.

moto looks at a put's condition and then stores the object, so only a server without threads does both in one
step, as S3 does.
"""

from __future__ import annotations

import sys
import threading
from urllib.request import Request, urlopen

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class _Quiet(WSGIRequestHandler):
    def log_request(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    """Print the address, and answer until standard input ends."""
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=False, request_handler=_Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    urlopen(Request(f"{address}/plots", method="PUT")).close()
    print(address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
