"""Inspect's messages to prompts: what a raw prompt is, what the chat template gets, and what is refused."""

from collections.abc import Sequence
from typing import Any

from inspect_ai.model import ChatMessage, ChatMessageAssistant, GenerateConfig
from inspect_ai.model._model import collapse_consecutive_user_messages
from inspect_ai.model._reasoning import emulate_reasoning_history
from inspect_ai.tool import ToolInfo

from llm.errors import InputError

_IGNORED_WOULD_CHANGE_RESULTS = ("frequency_penalty", "presence_penalty", "logit_bias", "response_schema")
_KNOWN_EXTRA_BODY = ("continuations", "unconditional")
MAX_ALTERNATIVES = 20


def refuse_unsupported(messages: Sequence[ChatMessage], tools: Sequence[ToolInfo], config: GenerateConfig) -> None:
    """Raise InputError, one sentence, for whatever this provider cannot do with a call."""
    if tools:
        raise InputError(
            f"decoder models take no tools, and {len(tools)} were given (first: {tools[0].name!r}): "
            "run the task without tools or with another provider"
        )
    for message in messages:
        _refuse_message(message)
    for name in _IGNORED_WOULD_CHANGE_RESULTS:
        if getattr(config, name) is not None:
            raise InputError(f"decoder models do not support {name}: leave it unset")
    if config.best_of is not None and config.best_of > 1:
        raise InputError(f"decoder models do not support best_of ({config.best_of}): leave it unset")
    for name in config.extra_body or {}:
        if name not in _KNOWN_EXTRA_BODY:
            raise InputError(f"unknown extra_body field {name!r}: decoder models take {', '.join(_KNOWN_EXTRA_BODY)}")
    _check_range("top_logprobs", config.top_logprobs, 0, MAX_ALTERNATIVES)
    _check_range("num_choices", config.num_choices, 1, None)
    _check_range("max_tokens", config.max_tokens, 0, None)


def raw_prompt(messages: Sequence[ChatMessage]) -> str | tuple[int, ...]:
    """The raw prompt of a call: `metadata["prompt_token_ids"]` of its one user message verbatim, else its text.

    The rules are those of Inspect's own raw-completion providers
    (inspect_ai model/_providers/openai_compatible_completions.py:45-93).

    Raises:
        InputError: anything but one user message, ids that are not a list of token ids, or no text.
    """
    if len(messages) != 1 or messages[0].role != "user":
        roles = ", ".join(message.role for message in messages) or "none"
        raise InputError(
            f"a raw prompt is exactly one user message, and the messages given are: {roles}; send one user message, "
            "or use a model with a chat template for ordinary generation"
        )
    ids = (messages[0].metadata or {}).get("prompt_token_ids")
    if ids is None:
        text = messages[0].text
        if not text:
            raise InputError("the prompt is empty: give the user message text or metadata['prompt_token_ids']")
        return text
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise InputError("metadata['prompt_token_ids'] must be a list of token ids, whole numbers from 0")
    if not ids:
        raise InputError("metadata['prompt_token_ids'] is empty: give at least one token id")
    return tuple(ids)


def has_token_ids(messages: Sequence[ChatMessage]) -> bool:
    """Whether a message carries its prompt as token ids, which makes the prompt a raw one."""
    return any((message.metadata or {}).get("prompt_token_ids") is not None for message in messages)


def chat_prompt(tokenizer: Any, messages: Sequence[ChatMessage]) -> str:
    """The text that the tokenizer's chat template makes of the messages, ending where the answer begins.

    As in Inspect's own hf provider, user messages in a row are one, and earlier reasoning is told in the text.

    Raises:
        InputError: the template itself refuses the messages.
    """
    told = emulate_reasoning_history(collapse_consecutive_user_messages(list(messages)))
    plain = [{"role": message.role, "content": message.text} for message in told]
    try:
        text = tokenizer.apply_chat_template(plain, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # Jinja raises what the template's author chose
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        roles = ", ".join(message.role for message in messages)
        raise InputError(f"the chat template refuses the messages ({roles}): {reason}") from error
    return str(text)


def _check_range(name: str, value: int | None, least: int, most: int | None) -> None:
    if value is not None and not (least <= value and (most is None or value <= most)):
        allowed = f"{least} to {most}" if most is not None else f"{least} or more"
        raise InputError(f"{name} is {value}: give {allowed}")


def _refuse_message(message: ChatMessage) -> None:
    if message.role == "tool" or (isinstance(message, ChatMessageAssistant) and message.tool_calls):
        raise InputError("decoder models take no tools, and a message holds a tool call or its result")
    if isinstance(message.content, str):
        return
    for content in message.content:
        if content.type not in ("text", "reasoning"):
            raise InputError(f"decoder models take text only, and a {message.role} message holds {content.type!r}")
