"""A server of S3's protocol on the loopback with a bucket "plots": moto's, one request at a time.

moto looks at a put's condition and then stores the object, so only a server without threads does both in one
step, as S3 does.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from urllib.request import Request, urlopen


def credentials(bucket: str, secret: str = "a-secret-never-shown") -> dict[str, str]:
    """The environment in which s3fs finds a server at this address."""
    return {
        "AWS_ENDPOINT_URL": bucket,
        "AWS_ACCESS_KEY_ID": secret,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
    }


def main() -> None:
    """Print the address, and answer until standard input ends."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    urlopen(Request(f"{address}/plots", method="PUT")).close()
    print(address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
