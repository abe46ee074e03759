"""LangChain's and LlamaIndex's embeddings, and LiteLLM as a proxy, unmodified, against a real server."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import openai
import pytest

from tests.e2e.protocols.client_lab import needs, proxying, said_by
from tests.e2e.protocols.protocol_lab import EMBED, ProtocolServer

pytestmark = pytest.mark.slow
TEXTS = ["the market is good", "cell gene protein", "bad stock price"]
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
    check_vectors(json.loads(said_by(script, protocol_server, EMBED, *TEXTS)), protocol_server)


def test_langchain_as_it_comes_sends_tokens_and_learns_the_cure(protocol_server: ProtocolServer) -> None:
    needs("langchain_openai")
    assert "check_embedding_ctx_length=False" in said_by(LANGCHAIN_TOKENS, protocol_server, EMBED, *TEXTS)


def test_a_proxy_passes_embeddings_and_errors_on(protocol_server: ProtocolServer, tmp_path: Path) -> None:
    needs("litellm")
    key = f"sk-{secrets.token_hex(32)}"
    with proxying(tmp_path, protocol_server, key, "search", EMBED) as url:
        with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
            made = client.embeddings.create(model="search", input=[*TEXTS, TEXTS[0]])
            check_vectors([item.embedding for item in made.data], protocol_server)
            with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
                client.embeddings.create(model="search", input=[[1, 2], [3]])
