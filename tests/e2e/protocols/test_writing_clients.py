"""LangChain's chats and completions, and LiteLLM as a library and a proxy, unmodified, against a real server
whose models write."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.protocols.client_lab import needs, proxying, said_by
from tests.e2e.protocols.protocol_lab import ProtocolServer
from tests.hmi.labs.writing_lab import PROMPT

pytestmark = pytest.mark.slow
ONE = "acme.one"
CHAT: Any = [{"role": "user", "content": PROMPT}]
DRAWN = {"max_tokens": 20, "temperature": 0.8, "seed": 6}
LANGCHAIN = """
import json, sys
from langchain_openai import ChatOpenAI, OpenAI
url, key, model, prompt = sys.argv[1:]
given = {"base_url": url, "api_key": key, "model": model, "max_tokens": 20, "temperature": 0.8, "seed": 6}
chat, plain = ChatOpenAI(**given), OpenAI(**given)
said = chat.invoke(prompt)
streamed = list(chat.stream(prompt))
print(json.dumps({
    "chat": said.content,
    "tokens": said.usage_metadata["output_tokens"],
    "streamed": "".join(chunk.content for chunk in streamed),
    "pieces": len(streamed),
    "plain": plain.invoke(prompt),
    "plain_streamed": "".join(plain.stream(prompt)),
}))
"""
LANGCHAIN_TOOLS = """
import sys
from langchain_openai import ChatOpenAI
from openai import BadRequestError
url, key, model, prompt = sys.argv[1:]
def add(a: int, b: int) -> int:
    "Add numbers."
    return a + b
try:
    ChatOpenAI(base_url=url, api_key=key, model=model).bind_tools([add]).invoke(prompt)
except BadRequestError as error:
    print(error.body["param"], error.body["message"])
"""
LITELLM = """
import json, sys, litellm
url, key, model, prompt = sys.argv[1:]
given = {"model": f"openai/{model}", "api_base": url, "api_key": key, "max_tokens": 20, "temperature": 0.8}
chat = [{"role": "user", "content": prompt}]
said = litellm.completion(messages=chat, seed=6, **given)
streamed = litellm.completion(messages=chat, seed=6, stream=True, **given)
print(json.dumps({
    "chat": said.choices[0].message.content,
    "tokens": said.usage.completion_tokens,
    "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in streamed),
}))
"""


def test_langchain_writes_what_generate_writes(writing_server: ProtocolServer) -> None:
    needs("langchain_openai")
    chat = writing_server.written(ONE, messages=CHAT, **DRAWN)
    plain = writing_server.written(ONE, prompt=PROMPT, **DRAWN)
    said = json.loads(said_by(LANGCHAIN, writing_server, ONE, PROMPT))
    assert said["pieces"] > 2
    assert said["tokens"] == chat["usage"]["written_tokens"]
    assert (said["chat"], said["streamed"]) == (chat["text"], chat["text"])
    assert (said["plain"], said["plain_streamed"]) == (plain["text"], plain["text"])


def test_langchain_learns_that_there_are_no_tools(writing_server: ProtocolServer) -> None:
    needs("langchain_openai")
    assert said_by(LANGCHAIN_TOOLS, writing_server, ONE, PROMPT).startswith("tools tools: is not served")


def test_litellm_writes_what_generate_writes(writing_server: ProtocolServer) -> None:
    needs("litellm")
    chat = writing_server.written(ONE, messages=CHAT, **DRAWN)
    said = json.loads(said_by(LITELLM, writing_server, ONE, PROMPT).splitlines()[-1])
    assert (said["chat"], said["streamed"]) == (chat["text"], chat["text"])
    assert said["tokens"] == chat["usage"]["written_tokens"]


def test_a_proxy_passes_texts_streams_and_errors_on(writing_server: ProtocolServer, tmp_path: Path) -> None:
    needs("litellm")
    key = f"sk-{secrets.token_hex(32)}"
    chat = writing_server.written(ONE, messages=CHAT, **DRAWN)
    with proxying(tmp_path, writing_server, key, "letters", ONE) as url:
        with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
            asked: Any = {"model": "letters", "messages": CHAT, **DRAWN}
            made = client.chat.completions.create(**asked)
            assert made.choices[0].message.content == chat["text"]
            chunks = client.chat.completions.create(**asked, stream=True)
            found = [part.delta.content or "" for chunk in chunks for part in chunk.choices]
            assert "".join(found) == chat["text"]
            with pytest.raises(openai.BadRequestError, match="do not fit into the 512"):
                client.chat.completions.create(**{**asked, "max_tokens": 511})
