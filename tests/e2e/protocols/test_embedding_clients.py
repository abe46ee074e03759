"""LangChain's and LlamaIndex's embeddings, and LiteLLM as a proxy, unmodified, against a real server.

They need the extra `clients`, which may want other versions of packages than HMI. So they run under an
interpreter of their own, which HMI_CLIENTS names (`make clients`); without it, under this one.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from bench.harness.server import free_port
from tests.e2e.protocols.protocol_lab import EMBED, ProtocolServer
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
PYTHON = os.environ.get("HMI_CLIENTS", sys.executable)
TEXTS = ["the market is good", "cell gene protein", "bad stock price"]
START_S = 180.0
LANGCHAIN = """
import json, sys
from langchain_openai import OpenAIEmbeddings
url, key, model, *texts = sys.argv[1:]
client = OpenAIEmbeddings(base_url=url, api_key=key, model=model, check_embedding_ctx_length=False)
print(json.dumps([*client.embed_documents(texts), client.embed_query(texts[0])]))
"""
LANGCHAIN_TOKENS = """
import sys, tiktoken.registry
from langchain_openai import OpenAIEmbeddings
from openai import BadRequestError
# tiktoken would download its vocabulary: this one has a token for each byte.
ranks = {bytes([i]): i for i in range(256)}
tiktoken.registry.ENCODINGS["cl100k_base"] = tiktoken.Encoding(
    "cl100k_base", pat_str=r"\\S+|\\s+", mergeable_ranks=ranks, special_tokens={}
)
url, key, model, *texts = sys.argv[1:]
try:
    OpenAIEmbeddings(base_url=url, api_key=key, model=model).embed_documents(texts)
except BadRequestError as error:
    print(error.body["message"])
"""
LLAMA_INDEX = """
import json, sys
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
url, key, model, *texts = sys.argv[1:]
client = OpenAILikeEmbedding(model_name=model, api_base=url, api_key=key)
print(json.dumps([*client.get_text_embedding_batch(texts), client.get_query_embedding(texts[0])]))
"""
FIND = "import sys, importlib.util as u; sys.exit(u.find_spec(sys.argv[1]) is None)"
PROXY = """
import sys
from litellm import run_server
sys.exit(run_server())
"""


def needs(package: str) -> None:
    """Skip the test unless the clients' interpreter has a package."""
    found = subprocess.run([PYTHON, "-c", FIND, package], capture_output=True)
    if found.returncode:
        pytest.skip(f"{package} is not installed: the clients of other projects have an extra of their own")


def said_by(script: str, server: ProtocolServer, *texts: str) -> str:
    command = [PYTHON, "-c", script, f"{server.url}/v1", server.key, EMBED, *texts]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


def check_vectors(found: list[list[float]], server: ProtocolServer) -> None:
    """Compare vectors of TEXTS, and of the first text again, with those of POST /infer."""
    wanted = [output["embedding"] for output in server.native(EMBED, TEXTS)["outputs"]]
    for one, other in zip(found, [*wanted, wanted[0]], strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize(
    ("package", "script"),
    [("langchain_openai", LANGCHAIN), ("llama_index.embeddings.openai_like", LLAMA_INDEX)],
)
def test_embeddings_are_those_of_infer(protocol_server: ProtocolServer, package: str, script: str) -> None:
    needs(package)
    check_vectors(json.loads(said_by(script, protocol_server, *TEXTS)), protocol_server)


def test_langchain_as_it_comes_sends_tokens_and_learns_the_cure(protocol_server: ProtocolServer) -> None:
    needs("langchain_openai")
    assert "check_embedding_ctx_length=False" in said_by(LANGCHAIN_TOKENS, protocol_server, *TEXTS)


@contextmanager
def proxying(folder: Path, server: ProtocolServer, key: str) -> Iterator[str]:
    """Run LiteLLM's proxy with a key of its own, whose model `search` is the server's: its address."""
    given = {"model": f"openai/{EMBED}", "api_base": f"{server.url}/v1", "api_key": server.key}
    models = [{"model_name": "search", "litellm_params": given}]
    config: dict[str, Any] = {"model_list": models, "general_settings": {"master_key": key}}
    (folder / "config.yaml").write_text(json.dumps(config))  # which is YAML, too
    port = free_port()
    command = [PYTHON, "-c", PROXY, "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    url, log = f"http://127.0.0.1:{port}", folder / "log"

    def is_alive() -> bool:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            return httpx.get(f"{url}/health/liveliness", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        wait_until(is_alive, START_S)
        yield url
    finally:
        process.kill()
        process.wait()


def test_a_proxy_passes_embeddings_and_errors_on(protocol_server: ProtocolServer, tmp_path: Path) -> None:
    needs("litellm")
    key = f"sk-{secrets.token_hex(32)}"
    with proxying(tmp_path, protocol_server, key) as url:
        with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
            made = client.embeddings.create(model="search", input=[*TEXTS, TEXTS[0]])
            check_vectors([item.embedding for item in made.data], protocol_server)
            with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
                client.embeddings.create(model="search", input=[[1, 2], [3]])
