"""How prompts become ids: text or messages, and every choice that Transformers leaves to its user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.data.trajectory import Ints
from stretto.kernel.errors import ConfigError, DataError
from stretto.models.chat import check_variables, control_texts, read_template, template_text
from stretto.models.tokenizer import LightTokenizer, SpecialTokens

Message = dict[str, Any]


@dataclass(kw_only=True)
class PromptOptions:
    """``chat``: render with a chat template (None: when there is one). ``system``: system message of prompts without
    one. ``chat_template``: a Jinja file or its text, or the name of one of the tokenizer's (None: the tokenizer's).
    ``chat_template_kwargs``: variables that it reads, as ``{enable_thinking = false}``; ``tools``: JSON schemas for it.
    ``continue_final_message``: a last message of the assistant is what the answer begins with (default); false closes
    it and opens another. ``add_generation_prompt``: end with the template's opening of an answer.

    ``add_special_tokens``: text without a template gets what the tokenizer adds at the ``start`` (BOS; default: an end
    token before the answer would end it), ``all`` that it adds (as ``tokenizer(text)``), or ``none``.
    ``split_special_tokens``: control tokens that data spell out stay text (true) or become those tokens (false); None:
    as the tokenizer's files say, and false where they say nothing, as in Transformers. ``skip_special_tokens``:
    rewards don't see special tokens (``<think>``) that the policy wrote; by default they see all that it wrote, as the
    samples show it. ``include_stop``: and the token that ended it.
    """

    chat: bool | None = None
    system: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    tools: list[dict[str, Any]] = field(default_factory=list)
    continue_final_message: bool = True
    add_generation_prompt: bool = True
    add_special_tokens: SpecialTokens = "start"
    split_special_tokens: bool | None = None
    skip_special_tokens: bool = False
    include_stop: bool = False

    def choose(self, tokenizer: LightTokenizer) -> None:
        """Settle how ``tokenizer`` renders prompts. ``ConfigError`` for an option that would change nothing."""
        self._tokenizer = tokenizer
        given = self.split_special_tokens
        self._splits = tokenizer.split_special_tokens if given is None else given
        has_one = tokenizer.chat_template is not None or self.chat_template is not None
        self.uses_chat = has_one if self.chat is None else self.chat
        if not self.uses_chat:
            for name, set_ in (
                ("system", self.system is not None), ("chat_template", self.chat_template is not None),
                ("chat_template_kwargs", self.chat_template_kwargs), ("tools", self.tools),
                ("continue_final_message", not self.continue_final_message),
                ("add_generation_prompt", not self.add_generation_prompt),
            ):  # fmt: skip
                if set_:
                    raise ConfigError(
                        f"env.{name} needs a chat template: set env.chat = true, with env.chat_template where the "
                        "model's tokenizer has none, or put the text into the prompts"
                    )
            return
        if not has_one:
            raise ConfigError(
                "env.chat = true, but the model's tokenizer has no chat template: set env.chat_template to a Jinja file"
            )
        if self.add_special_tokens != "start":
            raise ConfigError(
                f"env.add_special_tokens = {self.add_special_tokens!r}: a chat template writes its own special tokens; "
                "leave it out, or set env.chat = false"
            )
        template = self.chat_template
        self._template = None if template is None else read_template(template, tokenizer)
        check_variables(self.template, self.chat_template_kwargs, bool(self.tools))

    @property
    def template(self) -> str:
        """The Jinja text that renders prompts."""
        return template_text(self._tokenizer, self._template, self.tools)

    def prompt_ids(self, prompt: str | Sequence[Message]) -> Ints:
        """Ids [n] of a text or of messages. ``DataError`` if they can't be rendered or read."""
        if not self.uses_chat:
            if not isinstance(prompt, str):
                raise DataError(
                    "chat messages, but no chat template is used; give text prompts, or set env.chat_template to a "
                    "Jinja file"
                )
            return self._tokenizer.encode_prompt(prompt, self.add_special_tokens, split_special_tokens=self._splits)
        return self._tokenizer.chat(
            self.messages(prompt), tools=self.tools, chat_template=self._template,
            continue_final_message=self.continue_final_message, add_generation_prompt=self.add_generation_prompt,
            split_special_tokens=self._splits, **self.chat_template_kwargs,
        )  # fmt: skip

    def messages(self, prompt: str | Sequence[Message]) -> list[Message]:
        """``prompt`` as messages, with the system message."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if self.system is not None and messages[0]["role"] not in ("system", "developer"):
            messages = [{"role": "system", "content": self.system}, *messages]
        return messages

    def spelt_controls(self, prompt: str | Sequence[Message]) -> list[str]:
        """Control tokens that messages spell out, where these become real."""
        if not self.uses_chat or self._splits:
            return []
        texts = [str(message.get("content", "")) for message in self.messages(prompt)]
        return [control for control in self._controls if any(control in text for text in texts)]

    @property
    def _controls(self) -> tuple[str, ...]:
        if not hasattr(self, "_found"):
            self._found = control_texts(self._tokenizer, self._template, self.tools)
        return self._found


def as_messages(prompt: object) -> list[Message] | None:
    """``prompt`` as messages, or None if it isn't a list of them.

    A message has a role and a content (text, or parts that are text) or tool calls. Keys without a value, which data
    sets fill in, go: a template asks whether a key is there.
    """
    if not isinstance(prompt, list) or not prompt:
        return None
    messages = []
    for entry in prompt:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("role"), str):
            return None
        message = {key: value for key, value in entry.items() if value is not None}
        content = message.get("content")
        if isinstance(content, list):
            if not content or not all(_is_text(part) for part in content):
                return None
            message["content"] = "\n".join(part["text"] for part in content)
        elif not isinstance(content, str) and (content is not None or not message.get("tool_calls")):
            return None
        messages.append(message)
    return messages


def _is_text(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)
