"""The model arguments of `decoder/<model-ref>` (`-M name=value`), checked by name before anything is loaded."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from llm.errors import InputError

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
LogitsDtype = Literal["float32", "bfloat16", "float16"]
ChatTemplate = Literal["auto", True, False]
Overlong = Literal["windows", "error"]


@dataclass(frozen=True, kw_only=True)
class DecoderArguments:
    """How a decoder is loaded and how its provider treats prompts.

    `dtype`, `logits_dtype`, `device`: as `llm.models.load_model` and the scoring engine take them.
    `batch_size`: sequences generated at once; scores do not depend on it. `max_length`: positions used, at most the
    model's own. `chat_template`: for ordinary generation, "auto" uses the tokenizer's template where there is one,
    True insists on it, False sends one user message as the raw prompt. `overlong`: a prompt longer than max_length
    is scored in "windows" (a choice's context is cut on the left), or refused with "error". `store`: a file that
    keeps scores between runs; a relative path counts from the shell's directory.

    Raises InputError naming the argument, the value given and what is allowed.
    """

    dtype: Dtype = "auto"
    logits_dtype: LogitsDtype = "float32"
    device: str = "auto"
    batch_size: int = 32
    max_length: int | None = None
    chat_template: ChatTemplate = "auto"
    overlong: Overlong = "windows"
    store: str | None = None

    def __post_init__(self) -> None:
        _check_member("dtype", self.dtype, get_args(Dtype))
        _check_member("logits_dtype", self.logits_dtype, get_args(LogitsDtype))
        _check_member("chat_template", self.chat_template, get_args(ChatTemplate))
        _check_member("overlong", self.overlong, get_args(Overlong))
        _check_positive("batch_size", self.batch_size)
        if self.max_length is not None:
            _check_positive("max_length", self.max_length)
        _check_text("device", self.device)
        if self.store is not None:
            _check_text("store", self.store)

    @classmethod
    def from_model_args(cls, given: Mapping[str, Any]) -> Self:
        """The arguments out of what Inspect passes to a provider's constructor."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise InputError(f"unknown model argument {name!r} for decoder/…: use one of {', '.join(known)}")
        return cls(**given)

    @property
    def loading(self) -> tuple[object, ...]:
        """The arguments that make one loaded decoder another; the rest belong to a provider object."""
        return (self.dtype, self.logits_dtype, self.device, self.batch_size, self.store_path())

    def store_path(self) -> Path | None:
        """The absolute path of the score store, if one was asked for."""
        if self.store is None:
            return None
        base = Path(os.environ.get("PWD") or Path.cwd())
        return Path(os.path.abspath(base / Path(self.store).expanduser()))


def _check_member(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if not any(value is option or (isinstance(value, str) and value == option) for option in allowed):
        listed = ", ".join(str(option).lower() for option in allowed)
        raise InputError(f"model argument {name} is {value!r}: use one of {listed}")


def _check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"model argument {name} is {value!r}: give a whole number, 1 or more")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InputError(f"model argument {name} is {value!r}: give a text that is not empty")
