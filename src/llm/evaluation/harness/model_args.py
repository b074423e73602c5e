"""lm-eval's `--model_args`, `--device` and `--batch_size`, checked and turned into a loaded model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from llm.errors import InputError

DTYPES = ("auto", "float32", "bfloat16", "float16")
LOGITS_DTYPES = ("float32", "bfloat16", "float16")
AUTO_BATCH_SIZE = 32
DEFAULT_MAX_LENGTH = 2048
_KNOWN = ("model", "dtype", "logits_dtype", "device", "batch_size", "max_length", "max_gen_toks")
_IGNORED = ("max_batch_size", "trust_remote_code")  # lm-eval adds them unasked; neither can change a score here


@dataclass(frozen=True, kw_only=True)
class ModelArgs:
    """What lm-eval says about the model. `model` None is the default model.

    lm-eval's command line passes batch_size 1 where its user asks for nothing; no score depends on it, so it is read
    as "auto".
    """

    model: str | None = None
    dtype: str = "auto"
    logits_dtype: str = "float32"
    device: str = "auto"
    batch_size: int | str = "auto"
    max_length: int | None = None
    max_gen_toks: int = 256

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Checks names and values. Raises InputError naming the argument that is not known or not usable."""
        arguments = {name: value for name, value in given.items() if name not in _IGNORED}
        pretrained = arguments.pop("pretrained", None)
        if pretrained is not None and arguments.setdefault("model", pretrained) != pretrained:
            raise InputError(f"model={arguments['model']} and pretrained={pretrained} name two models: give one")
        unknown = sorted(set(arguments) - set(_KNOWN))
        if unknown:
            raise InputError(f"no model argument named {unknown[0]!r}: give {', '.join(_KNOWN)} (or pretrained)")
        _choice("dtype", arguments, DTYPES)
        _choice("logits_dtype", arguments, LOGITS_DTYPES)
        for name in ("max_length", "max_gen_toks"):
            _positive(name, arguments)
        if "model" in arguments:
            arguments["model"] = str(arguments["model"])
        if str(arguments.get("batch_size")) == "1":
            arguments["batch_size"] = "auto"
        return cls(**{name: value for name, value in arguments.items() if value is not None})

    def load(self) -> tuple[Any, Any]:
        """(model, tokenizer), on the device asked for or, where that is not available, on the CPU with a warning.

        lm-eval asks for cuda:0 where its user asks for nothing.
        """
        from llm.evaluation.harness.ranks import local_device
        from llm.models import DEFAULT_REF, load_model

        return load_model(self.model or DEFAULT_REF, dtype=self.dtype, device=local_device(str(self.device)))


def batch_rows(value: int | str) -> int:
    """A number of rows; lm-eval's "auto" and "auto:N" are this project's own default."""
    text = str(value)
    if text == "auto" or text.startswith("auto:"):
        return AUTO_BATCH_SIZE
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"batch_size is {value!r}: give a positive number or 'auto'")
    return int(text)


def context_length(given: int | None, model: Any, tokenizer: Any) -> int:
    """The context in tokens: as given, else the model's own, else the tokenizer's, else lm-eval's default."""
    if given is not None:
        if int(given) < 1:
            raise InputError(f"max_length is {given}: give at least 1 token, or None for the model's own")
        return int(given)
    candidates = (
        getattr(model, "max_length", None),
        getattr(getattr(model, "config", None), "max_position_embeddings", None),
        getattr(tokenizer, "model_max_length", None),
    )
    return next(
        (int(value) for value in candidates if isinstance(value, int) and 0 < value < 10**9), DEFAULT_MAX_LENGTH
    )


def _choice(name: str, arguments: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    if name in arguments and arguments[name] not in allowed:
        raise InputError(f"{name} is {arguments[name]!r}: give one of {', '.join(allowed)}")


def _positive(name: str, arguments: Mapping[str, Any]) -> None:
    value = arguments.get(name)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise InputError(f"{name} is {value!r}: give a positive number of tokens")
