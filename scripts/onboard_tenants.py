"""Creates many tenants, keys and models; see --help. It is `hmi tenant onboard`, by default on the server at
127.0.0.1:8080."""

from __future__ import annotations

import os
import sys

from hmi.cli import main

os.environ.setdefault("HMI_URL", "http://127.0.0.1:8080")
main(["tenant", "onboard", *sys.argv[1:]])
