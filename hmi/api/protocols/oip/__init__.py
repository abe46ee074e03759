"""The Open Inference Protocol, version 2, as KServe's and Triton's clients speak it. See docs/protocols.md.

`tensors` and `asking` read requests, `answering` makes the outputs, `about` describes models. They serve
HTTP and gRPC (`hmi.api.rpc`) alike. `http` and `schemas` have the form of HTTP.
"""

from __future__ import annotations

from hmi.api.protocols.oip.dialect import OIP

__all__ = ["OIP"]
