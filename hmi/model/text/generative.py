"""The tokenizer of a language model: texts and chats to ids, and ids to text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tokenizers import Tokenizer as FastTokenizer

from hmi.errors import InvalidInput
from hmi.model.text.batching import Encoded

if TYPE_CHECKING:
    from jinja2 import Template


class GenerativeTokenizer:
    """Ids are the source's plus one, since 0 means "no token" in HMI. Thread-safe.

    Every text begins with the begin token: the state that it has at position 0, where other tokens put
    attention of which they have no use, is the same in every text.
    """

    window: Final = "causal"
    first_counted: Final = 1
    """The index of the first token that n-grams have: the begin token is in none."""
    unknown_id: Final = None
    """No token stands for unknown characters: what has no token of its own is written in bytes."""

    def __init__(
        self, fast: FastTokenizer, begin: int, ends: Sequence[int], template: str | None = None
    ) -> None:
        """begin, ends: our ids of the token before a text and of those after it. template: in Jinja."""
        fast.no_padding()
        fast.no_truncation()
        self.fast, self.template = fast, template
        self.begin, self.ends = begin, tuple(ends)
        added = fast.get_added_tokens_decoder().items()
        added = {id: token for id, token in added if token.special or id + 1 in (begin, *ends)}
        self.specials = frozenset(id + 1 for id in added)
        """Our ids of the special tokens: those that the source marks so, the begin token and the ends."""
        special = [token.content for token in added.values() if token.content]
        self._special = re.compile("|".join(map(re.escape, special))) if special else None

    def encode(self, texts: Sequence[str], max_length: int, *, specials: bool = False) -> list[Encoded]:
        """Tokenise texts, and cut each to `max_length` tokens, the begin token included.

        The names of special tokens in a text are plain characters, unless `specials` is set, as for a chat.
        """
        out = []
        for text in texts:
            ids = self.begun(self._ids(text, specials))
            kept = ids[:max_length]
            out.append(Encoded(kept, [0] * len(kept), [None] * len(kept), len(kept) < len(ids)))
        return out

    def begun(self, ids: list[int]) -> list[int]:
        """Our ids with the begin token before them, unless they begin with it already."""
        return ids if ids[:1] == [self.begin] else [self.begin, *ids]

    def _ids(self, text: str, specials: bool) -> list[int]:
        named = not specials and self._special is not None and self._special.search(text)
        fast = self.plain if named else self.fast
        return [i + 1 for i in fast.encode(text, add_special_tokens=False).ids]

    @cached_property
    def plain(self) -> FastTokenizer:
        """A copy to which the names of special tokens are plain characters. Made when it is first needed."""
        plain = FastTokenizer.from_str(self.fast.to_str())
        plain.add_special_tokens([self._token(id) for id in self.specials])
        plain.encode_special_tokens = True
        return plain

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""
        return str(self.fast.decode([i - 1 for i in ids if i], skip_special_tokens=True))

    def chat(self, messages: Sequence[Mapping[str, Any]], *, answer: bool = True) -> str:
        """Write a chat as one text, by the model's template. To be encoded with `specials`.

        answer: whether the text ends where the assistant begins to answer. Raises InvalidInput: the model has
        no template, the template refuses the chat, or a message has a field that is not text or that holds
        the name of a special token.
        """
        if self.template is None:
            raise InvalidInput("the root has no chat template: give a prompt instead", field="messages")
        for i, message in enumerate(messages):
            for name, value in message.items():
                where = f"messages[{i}].{name}"
                if not isinstance(value, str):
                    raise InvalidInput(f"{where} is not a text", field=where)
                if found := self._special and self._special.search(value):
                    raise InvalidInput(
                        f"{where} holds the name of a special token, {found[0]}: leave it out", field=where
                    )

        names = {
            "bos_token": self._token(self.begin),
            "eos_token": self._token(self.ends[0]) if self.ends else "",
        }
        try:
            return self._written_out.render(messages=messages, add_generation_prompt=answer, **names)
        except Exception as error:  # a template may raise whatever its expressions do
            raise InvalidInput(
                f"the root's chat template refuses this chat: {error}", field="messages"
            ) from error

    @cached_property
    def _written_out(self) -> Template:
        """The compiled template."""
        # Chats are rare where texts are classified, and this import takes a tenth of a second.
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> NoReturn:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals |= {
            "raise_exception": refuse,
            "strftime_now": lambda form: datetime.now().strftime(form),
        }
        assert self.template is not None
        return environment.from_string(self.template)

    def _token(self, our_id: int) -> str:
        return str(self.fast.id_to_token(our_id - 1))
