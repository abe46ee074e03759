"""Models of a soak that write: each version's right text for each prompt, and readers of streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from aiohttp import StreamReader

from bench.cases.serve.churn import VARIANTS
from bench.cases.soak.ground import Http, SoakPlan, Standing
from bench.harness.home import Ground, Home, HomeModel, ended, key_of, write_tenants
from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.training.plans.defaults import WRITING_MODULE

WRITING_ROOT = "writing"
PROMPT_WORDS = 12
WRITING_BYTES = 48 << 20
"""The server's memory for keys and values. It is small: texts fill it within minutes, and then old pages must
make room for new ones."""
FIRST_SEED = 2_000_000
CUT_CHARACTER = "\ufffd"
"""The last character of a text whose last token ends within a character."""


@dataclass
class WritingSoil:
    """Models that write, with two versions each. `right` has the text by model, version and prompt."""

    prompts: list[str]
    right: dict[tuple[int, int, int], str] = field(default_factory=dict)
    standing: list[Standing] = field(default_factory=list)

    def key(self, model: int) -> str:
        return key_of(self.standing[model].path.partition(".")[0])

    def fault(
        self, model: int, prompt: int, may: set[int], version: int | None, text: str, *, whole: bool
    ) -> str | None:
        """Return what is wrong with a text, or None.

        may: the versions that may have written it. version: the version that the answer names; None if the
        answer broke off before it named one. whole: False if the text may be only the beginning of the right
        one, or may go on after it.
        """
        path = self.standing[model].path
        if version is not None and version not in may:
            return f"{path} version {version} wrote, {sorted(may)}"
        for number in may if version is None else {version}:
            right = self.right[model, number, prompt]
            short = right.rstrip(CUT_CHARACTER)
            if text == right or (not whole and (right.startswith(text) or text.startswith(short))):
                return None
        return f"{path} version {version or sorted(may)}, prompt {prompt}: wrote {text!r}"

    def told_apart(self) -> float:
        """Return the fraction of prompts to which the two versions of a model write different texts."""
        pairs = [(key, text) for key, text in self.right.items() if key[1] == 1]
        return sum(self.right[m, VARIANTS, p] != text for (m, _, p), text in pairs) / len(pairs)


def add_writers(home: Home, source: str, writers: int) -> None:
    """Import the language model `source`, and make tenants on it, each with two versions of a model.

    Raises HmiError if the import fails, StorageFull.
    """
    with closing(LocalCalls(Settings(data=home.data))) as calls:
        ended(calls, "/manage/roots", {"root": WRITING_ROOT, "source": source})
        manager = calls.services.manager
        ground = Ground.of(manager, WRITING_ROOT)
        for number in range(1, VARIANTS + 1):
            seeds = [FIRST_SEED + VARIANTS * i + number for i in range(writers)]
            made = [HomeModel(writer_of(i), seed, WRITING_MODULE, number) for i, seed in enumerate(seeds)]
            write_tenants(manager, ground, made)


def writer_of(i: int) -> str:
    """Return the name of a tenant with a model that writes."""
    return f"w{i:05}"


async def learn_texts(http: Http, plan: SoakPlan, home: Home) -> WritingSoil:
    """Let every version of every model write to every prompt, one text at a time, and keep the texts."""
    words = home.texts().of(None, plan.prompts)
    soil = WritingSoil([" ".join(text.split()[:PROMPT_WORDS]) for text in words])
    for model in range(plan.writers):
        soil.standing.append(Standing(str(HomeModel(writer_of(model), 0).id)))
        path, key = soil.standing[model].path, soil.key(model)
        for version in (1, VARIANTS):
            await http.json("POST", f"/manage/models/{path}/rollback", {"version": version})
            for prompt, text in enumerate(soil.prompts):
                body = {"prompt": text, "max_tokens": plan.tokens}
                answer = await http.json("POST", f"/generate/{path}", body, key)
                assert answer["version"] == version
                soil.right[model, version, prompt] = answer["text"]
    return soil


@dataclass
class Heard:
    """The part of a stream that a reader has received."""

    text: str = ""
    accepted: bool = False
    """True once the server has answered with a stream."""
    events: int = 0
    version: int | None = None
    end: str = ""
    """"end" after the last event of a whole text. After an error's event, the kind of the error."""
    improper: str = ""
    """The faults of the stream, or an empty text."""
    reason: str | None = None
    """Why the text ended, as the last piece of OpenAI's stream says."""

    def native(self, name: str, data: str) -> None:
        """Take an event of HMI's own stream."""
        told = json.loads(data)
        if name == "text":
            self.text += told["text"]
        elif name == "end":
            self.end, self.version = "end", told["version"]
            if told["text"] != self.text:
                self.improper = f"the end has {told['text']!r}, the pieces {self.text!r}"
        else:
            self.end = told["error"]["kind"]

    def openai(self, _name: str, data: str) -> None:
        """Take a chunk of OpenAI's stream."""
        if data == "[DONE]":
            self.end = "end"
            if self.reason is None:
                self.improper = "[DONE] before a reason"
            return
        told = json.loads(data)
        if "error" in told:
            self.end = str(told["error"].get("code") or told["error"].get("type"))
            return
        self.version = int(told["system_fingerprint"].removeprefix("v"))
        for choice in told["choices"]:
            self.text += choice["text"]
            self.reason = choice["finish_reason"]

    def take(self, way: Way, name: str, data: str) -> None:
        """Take an event. Nothing may follow the last one."""
        if self.end:
            self.improper = f"{name or data[:40]} after the end"
        self.events += 1
        way.take(self, name, data)


@dataclass(frozen=True)
class Way:
    """A way to ask for a stream."""

    path: Callable[[str], str]
    """Returns the path for a model."""
    body: Callable[[str], dict[str, Any]]
    """Returns the body for a model, without prompt and length."""
    take: Callable[[Heard, str, str], None]


WAYS: Mapping[str, Way] = {
    "native": Way(lambda model: f"/generate/{model}", lambda _: {}, Heard.native),
    "openai": Way(
        lambda _: "/v1/completions", lambda model: {"model": model, "temperature": 0}, Heard.openai
    ),
}


async def events(content: StreamReader) -> AsyncIterator[tuple[str, str]]:
    """Yield the name and the data of each event of a stream. Raises one of LOST if it breaks off."""
    name, data = "", ""
    async for line in content:
        field_, _, value = line.decode().rstrip("\n").partition(": ")
        if field_ == "event":
            name = value
        elif field_ == "data":
            data = value
        elif not field_ and not value and data:
            yield name, data
            name, data = "", ""
