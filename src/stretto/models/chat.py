"""Chat templates: messages to ids, as ``apply_chat_template`` in Transformers gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from stretto.kernel.errors import ConfigError, DataError, did_you_mean
from stretto.kernel.json import Jsonable
from stretto.models.backend import check_unmarked, marked

if TYPE_CHECKING:
    from stretto.data.trajectory import Ints
    from stretto.models.protocols import ChatTemplates
    from stretto.models.tokenizer import LightTokenizer

Messages = Sequence[Mapping[str, Jsonable]]
Tools = Sequence[Mapping[str, Jsonable]]
_OURS = frozenset({"messages", "tools", "add_generation_prompt"})
_TAKEN = _OURS | {"conversation", "chat_template", "continue_final_message", "tokenize", "sanitize_control_tokens",
                  "padding", "truncation", "max_length", "return_tensors", "return_dict",
                  "return_assistant_tokens_mask", "tokenizer_kwargs"}  # fmt: skip
_FIRST_PLACEHOLDER = 0x100000  # private use, plane 16


def encode_chat(
    tokenizer: LightTokenizer,
    messages: Messages,
    *,
    tools: Tools = (),
    chat_template: str | None = None,
    continue_final_message: bool = True,
    add_generation_prompt: bool = True,
    split_special_tokens: bool = False,
    **variables: Jsonable,
) -> Ints:
    """Ids [n] of ``messages`` as a prompt.

    A last message of the assistant is what the answer begins with, and stays open, if ``continue_final_message``;
    otherwise it is closed. After any other end the template's generation prompt follows, if ``add_generation_prompt``.
    ``chat_template``: Jinja text, or the name of one of several that the tokenizer has; None: the tokenizer's.
    ``variables``: what else the template reads. Control tokens that messages or tools spell out become those tokens,
    unless ``split_special_tokens``. Raises ``DataError`` with what the template raised.
    """
    if tokenizer.chat_template is None and chat_template is None:
        raise DataError("this tokenizer has no chat template; set chat = false for the environment, or give it one")
    goes_on = continue_final_message and messages[-1].get("role") == "assistant"
    controls = control_texts(tokenizer, chat_template, tools) if split_special_tokens else None
    conversation, described, told = [dict(m) for m in messages], [dict(t) for t in tools], variables
    if controls is not None:
        conversation = [_hidden_in(m, controls) for m in conversation]
        described, told = [_hidden_in(t, controls) for t in described], _hidden_in(told, controls)
    blank = goes_on and isinstance(said := conversation[-1].get("content"), str) and not said.strip()
    if blank:  # where a template trims, Transformers would trim the opening of the answer with it
        conversation[-1]["content"] = f"{said}x"
    try:
        text = _templates(tokenizer).apply_chat_template(
            conversation, tools=described or None, chat_template=chat_template, tokenize=False,
            continue_final_message=goes_on, add_generation_prompt=add_generation_prompt and not goes_on, **told,
        )  # fmt: skip
    except Exception as error:  # a template is a program: it raises anything
        reason = str(error).split("Final message to continue:")[0].strip() or "nothing"
        raise DataError(
            f"the chat template can't render the messages ({', '.join(str(m.get('role')) for m in messages)}): "
            f"{type(error).__name__}: {reason[:400]}"
        ) from error
    text = text.removesuffix("x") if blank else text
    if controls is None:
        return tokenizer.encode_rendered(text)
    return tokenizer.encode_rendered(_shown(text, controls), frozenset(controls))


def control_texts(tokenizer: LightTokenizer, chat_template: str | None, tools: Tools) -> tuple[str, ...]:
    """Special tokens, and added tokens that the template writes, longest first: what messages must not spell out."""
    template = template_text(tokenizer, chat_template, tools)
    added = tokenizer.backend.get_added_tokens_decoder().values()
    written = {t.content for t in added if t.content.strip() and t.content in template}
    return tuple(sorted(tokenizer.special_texts | written, key=lambda text: (-len(text), text)))


def _hidden_in(table: Mapping[str, Jsonable], controls: tuple[str, ...]) -> dict[str, Jsonable]:
    return {key: _hidden(entry, controls) for key, entry in table.items()}


def _hidden(value: Jsonable, controls: tuple[str, ...]) -> Jsonable:
    """``value`` with each control token in its texts replaced by a character that stands for it."""
    if isinstance(value, str):
        check_unmarked(value)
        if any(ord(c) >= _FIRST_PLACEHOLDER for c in value):
            raise DataError(
                f"{value[:200]!r} holds a private-use character of plane 16, which split_special_tokens needs for "
                "itself; take it out"
            )
        numbers = {text: k for k, text in enumerate(controls)}
        return _pattern(controls).sub(lambda found: chr(_FIRST_PLACEHOLDER + numbers[found[0]]), value)
    if isinstance(value, Mapping):
        return _hidden_in(value, controls)
    if isinstance(value, list | tuple):
        return [_hidden(entry, controls) for entry in value]
    return value


def _shown(text: str, controls: tuple[str, ...]) -> str:
    """``text`` with the template's own control tokens marked, and those of the messages spelt out again."""
    text = _pattern(controls).sub(lambda found: marked(found[0]), text)
    return re.sub("[\U00100000-\U0010ffff]", lambda found: controls[ord(found[0]) - _FIRST_PLACEHOLDER], text)


@lru_cache(maxsize=16)
def _pattern(controls: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, controls)) or "(?!)")


def template_text(tokenizer: LightTokenizer, chat_template: str | None, tools: Tools = ()) -> str:
    """The Jinja text that would render; ``DataError`` if several are there and none is the default."""
    try:
        return _templates(tokenizer).get_chat_template(chat_template, [dict(t) for t in tools] or None)
    except ValueError as error:
        raise DataError(f"{error} Name one: env.chat_template") from error


def _templates(tokenizer: LightTokenizer) -> ChatTemplates:
    return cast("ChatTemplates", tokenizer.full)


def read_template(given: str, tokenizer: LightTokenizer) -> str:
    """The template that the setting ``given`` means: a file's, Jinja text, or the name of one that the tokenizer has.
    ``ConfigError`` if it is none of them."""
    if "{" in given:
        return given
    names = sorted(tokenizer.chat_template) if isinstance(tokenizer.chat_template, dict) else []
    if given in names:
        return given
    file = Path(given).expanduser()
    if not file.is_file():
        known = f" or one of the tokenizer's templates ({', '.join(names)})" if names else ""
        raise ConfigError(f"env.chat_template = {given!r}: no such file; give a Jinja file, its text{known}")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"env.chat_template = {given!r}: not UTF-8 text: {error}") from error


def check_variables(template: str, variables: Mapping[str, Jsonable], tools: bool) -> None:
    """``ConfigError`` for a variable, or for tools, that ``template`` doesn't read: they would change nothing."""
    reads = _variables(template) if variables or tools else frozenset()
    for name in variables:
        if name in _TAKEN:
            raise ConfigError(f"env.chat_template_kwargs.{name}: not the template's to be told; see env's own options")
        if name not in reads:
            known = sorted(reads - _OURS)
            raise ConfigError(
                f"env.chat_template_kwargs.{name}: the chat template doesn't read it; "
                + (did_you_mean(name, known) if known else "it reads nothing but messages and tools")
            )
    if tools and "tools" not in reads:
        raise ConfigError("env.tools is set, but the chat template doesn't read `tools`: put them into a system prompt")


@lru_cache(maxsize=16)
def _variables(template: str) -> frozenset[str]:
    from jinja2 import TemplateSyntaxError, meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    jinja = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    plain = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)  # Transformers' own tag
    try:
        return frozenset(meta.find_undeclared_variables(jinja.parse(plain)))
    except TemplateSyntaxError as error:
        raise ConfigError(f"the chat template is not valid Jinja: {error} (line {error.lineno})") from error
