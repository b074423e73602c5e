"""A conversation as text, by the tokenizer's own chat template."""

import logging
from collections.abc import Sequence
from typing import Any

from llm.errors import InputError

logger = logging.getLogger(__name__)


def render_chat(
    tokenizer: Any, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool, name: str, **arguments: Any
) -> str:
    """The text of `messages`: open for the assistant's turn, or, without `add_generation_prompt`, inside it.

    A template that refuses the conversation gets it without its system message, as lm-eval's own models do, with a
    warning. `arguments` go to the template, which runs in Jinja's sandbox. Raises InputError for a tokenizer without a
    template, or one that refuses the conversation either way or tries what the sandbox forbids.
    """
    if not tokenizer.chat_template:
        raise InputError(
            f"the tokenizer of {name} has no chat template: run without --apply_chat_template, "
            "or set tokenizer.chat_template"
        )
    from jinja2 import TemplateError

    def rendered(conversation: list[dict[str, str]]) -> str:
        text = tokenizer.apply_chat_template(
            conversation,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            **arguments,
        )
        return str(text)

    try:
        return rendered(list(messages))
    except TemplateError:
        logger.warning("the chat template of %s takes no system message: it is left out", name)
    except Exception as error:  # the sandbox and Python raise their own kinds for what a template tries
        raise _refusal(name, error) from error
    try:
        return rendered([message for message in messages if message["role"] != "system"])
    except Exception as error:
        raise _refusal(name, error) from error


def _refusal(name: str, error: Exception) -> InputError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return InputError(f"the chat template of {name} refuses the conversation: {reason}")
