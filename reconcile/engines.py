"""Models of the harnesses' own in place of the decoder: any that lm-eval's registry names, any that Inspect knows.

They are made here and run by `harnesses`. lm-eval's are watched at `_loglikelihood_tokens`, through which every
`TemplateLM` scores, so that their runs leave the same trace of token ids as the decoder's.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from llm.errors import InputError
from llm.scoring.requests import ScoreRequest

Trace = Callable[["SentRequest"], object]

_SECRET = re.compile(r"((?:auth_token|api_key|token|password|header)=)[^,\s]+", re.IGNORECASE)

_SECRET_NAME = re.compile(r"(?:key|token|secret|password|credential)s?$", re.IGNORECASE)
_LEAST_SECRET = 8
"""Characters: a shorter value is no secret and stands in other words too."""

MAX_RETRIES = 4
"""Of a call that Inspect makes to a server: it would go on for ever."""


@dataclass(frozen=True, kw_only=True)
class SentRequest:
    """What an lm-eval model of its own was asked to score, with the fields of `lm_eval_lm.TracedRequest` that the
    trace keeps. `split` is not known: the model cut the text itself.
    """

    index: int
    context: str
    continuation: str
    request: ScoreRequest
    num_truncated: int
    kind: Literal["loglikelihood"] = "loglikelihood"
    split: None = None


def without_secrets(text: str) -> str:
    """Model arguments, a command line or a message with the values of tokens and keys taken out, those that the
    environment holds included.
    """
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name) and len(value) >= _LEAST_SECRET:
            text = text.replace(value, "***")
    return _SECRET.sub(r"\1***", text)


@contextmanager
def faults_of(what: str) -> Iterator[None]:
    """Turns whatever a model of a harness's own raises into an InputError that names it."""
    try:
        yield
    except (InputError, KeyboardInterrupt):
        raise
    except Exception as error:  # a server that is not there, a wrong argument: each engine has its own exceptions
        said = re.sub(r"\[/?\w+\]", "", " ".join(str(error).split()))  # Inspect marks words up as [bold]…[/bold]
        reason = without_secrets(said)[:300] or "no reason given"
        raise InputError(f"{what} failed, {type(error).__name__}: {reason}") from error


def check_engines(lm_eval_model: str | None, inspect_model: str | None) -> None:
    """Whether the harnesses know the models named; nothing is loaded.

    Raises:
        InputError: one is unknown, or Inspect lacks its address or key.
    """
    if lm_eval_model is not None:
        _lm_eval_class(lm_eval_model)
    if inspect_model is not None:
        open_inspect(inspect_model)


def open_lm_eval(name: str, arguments: str, trace: Trace) -> Any:
    """The lm-eval model that `--model NAME --model_args ARGUMENTS` makes, telling `trace` of what it scores.

    Raises:
        InputError: lm-eval has no such model, or it cannot be made so.
    """
    with faults_of(f"lm-eval's model {name}"):
        lm = _lm_eval_class(name).create_from_arg_string(arguments)
    if hasattr(lm, "_loglikelihood_tokens"):
        _watch(lm, trace)
    return lm


def _lm_eval_class(name: str) -> Any:
    import lm_eval.models  # noqa: F401  (fills the registry)
    from lm_eval.api.registry import get_model, model_registry

    if name not in model_registry:
        raise InputError(f"lm-eval has no model {name!r}: it has {', '.join(sorted(model_registry.keys()))}")
    with faults_of(f"lm-eval's model {name}"):
        return get_model(name)


def _watch(lm: Any, trace: Trace) -> None:
    from lm_eval.models.api_models import TemplateAPI

    score = lm._loglikelihood_tokens
    most = getattr(lm, "max_length", None)
    room = None if most is None else most if isinstance(lm, TemplateAPI) else most + 1

    def watched(requests: Any, *args: Any, **kwargs: Any) -> Any:
        for index, (texts, context, continuation) in enumerate(requests):
            if texts is not None and context:
                trace(
                    SentRequest(
                        index=index,
                        context=texts[0],
                        continuation=texts[1],
                        request=ScoreRequest(context_ids=tuple(context), continuation_ids=tuple(continuation)),
                        num_truncated=0 if room is None else max(0, len(context) + len(continuation) - room),
                    )
                )
        return score(requests, *args, **kwargs)

    lm._loglikelihood_tokens = watched


def open_inspect(name: str) -> Any:
    """The model that Inspect's `--model NAME` makes.

    Raises:
        InputError: Inspect knows no such provider, or its settings (an address, a key) are missing.
    """
    from inspect_ai.model import get_model

    with faults_of(f"Inspect's model {name}"):
        return get_model(name, memoize=False)
