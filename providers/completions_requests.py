"""The body of a /v1/completions call, checked field by field into one record.

The fields are those of OpenAI's legacy completions and, of vLLM's additions, the ones that scoring needs. A field that
is not known, or that would change the result in a way not offered here, is refused by name. null means unset.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from providers.api_errors import ApiError, bad_field

Prompt = str | tuple[int, ...]

DEFAULT_MAX_TOKENS = 16
MAX_ALTERNATIVES = 20
MAX_CHOICES = 1024
MAX_STOPS = 64
LARGEST = 1e9
"""Numbers beyond this are no setting; neither is JSON's 1e400, which is read as infinity."""

_KNOWN = (
    "model",
    "prompt",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "stop_token_ids",
    "n",
    "echo",
    "logprobs",
    "prompt_logprobs",
    "add_special_tokens",
    "skip_special_tokens",
    "stream",
    "user",
)
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "ignore_eos": (False,),
    "stream_options": (),
}
"""Fields that are taken only with a value that changes nothing."""


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """What a call asks for. A prompt is a text or token ids; `max_tokens` None is 16, or what fits if less.

    `logprobs` and `prompt_logprobs` None mean none; a number, that many alternatives beside each token's own.
    """

    prompts: tuple[Prompt, ...]
    model: str | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    n: int = 1
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool = True
    skip_special_tokens: bool = True

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's own tokens are to be scored."""
        return self.prompt_logprobs is not None or (self.echo and self.logprobs is not None)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """The request in a decoded JSON body; ApiError 400 names the field that is at fault."""
        given = {name: value for name, value in body.items() if value is not None}
        _refuse_unsupported(given)
        request = cls(
            prompts=_prompts(given),
            model=_text(given, "model"),
            max_tokens=_whole(given, "max_tokens", None, least=0),
            temperature=_number(given, "temperature", 1.0, "a number, 0 (greedy) or more", lambda t: t >= 0),
            top_p=_number(given, "top_p", 1.0, "a number above 0 and at most 1", lambda p: 0 < p <= 1),
            top_k=max(0, _whole(given, "top_k", 0, least=-1) or 0),
            seed=_whole(given, "seed", None, least=-(2**63), most=2**63 - 1),
            stop=_stops(given),
            stop_token_ids=frozenset(_ids(given, "stop_token_ids")),
            n=_whole(given, "n", 1, least=1, most=128) or 1,
            echo=_flag(given, "echo", default=False),
            logprobs=_whole(given, "logprobs", None, least=0, most=MAX_ALTERNATIVES),
            prompt_logprobs=_whole(given, "prompt_logprobs", None, least=0, most=MAX_ALTERNATIVES),
            add_special_tokens=_flag(given, "add_special_tokens", default=True),
            skip_special_tokens=_flag(given, "skip_special_tokens", default=True),
        )
        request._check_together()
        return request

    def _check_together(self) -> None:
        if self.max_tokens == 0 and not (self.echo or self.prompt_logprobs is not None):
            raise ApiError(
                400,
                "max_tokens is 0: that is for calls with echo or prompt_logprobs, give 1 or more",
                param="max_tokens",
            )
        if len(self.prompts) * self.n > MAX_CHOICES:
            raise ApiError(
                400,
                f"{len(self.prompts)} prompts with n {self.n} are more than {MAX_CHOICES} choices: send several calls",
                param="prompt",
            )


def parse_ids(body: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The token ids of a field that must be there."""
    if body.get(name) is None:
        raise ApiError(400, f"{name} is missing: give a list of token ids", param=name, code="missing_field")
    return _ids(body, name)


def parse_text(body: Mapping[str, Any], name: str) -> str:
    """The text of a field that must be there."""
    found = _text(body, name)
    if found is None:
        raise ApiError(400, f"{name} is missing: give a text", param=name, code="missing_field")
    return found


def parse_flag(body: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """A field that is true, false or unset."""
    return _flag({key: value for key, value in body.items() if value is not None}, name, default=default)


def _refuse_unsupported(given: Mapping[str, Any]) -> None:
    if given.get("stream", False) is not False:
        raise ApiError(400, "this server does not stream: leave stream out or false", param="stream")
    for name, value in given.items():
        if name in _KNOWN:
            continue
        if name not in _NEUTRAL:
            raise ApiError(400, f"unknown field {name[:60]!r}: use {', '.join(_KNOWN)}", param=name[:60])
        if not any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in _NEUTRAL[name]
        ):
            raise ApiError(400, f"this server does not support {name}: leave it out", param=name)


def _prompts(given: Mapping[str, Any]) -> tuple[Prompt, ...]:
    value = given.get("prompt")
    allowed = "a text, a list of texts, a list of token ids or a list of such lists"
    if value is None:
        raise ApiError(400, f"prompt is missing: give {allowed}", param="prompt", code="missing_field")
    if isinstance(value, str):
        return (_encodable("prompt", value),)
    if not isinstance(value, list) or not value:
        raise bad_field("prompt", value, allowed)
    if all(isinstance(part, str) for part in value):
        return tuple(_encodable("prompt", part) for part in value)
    if _are_ids(value):
        return (tuple(value),)
    if all(isinstance(part, list) and part and _are_ids(part) for part in value):
        return tuple(tuple(part) for part in value)
    raise bad_field("prompt", value, f"{allowed}, none of them empty")


def _stops(given: Mapping[str, Any]) -> tuple[str, ...]:
    value = given.get("stop", [])
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise bad_field("stop", value, f"a text or a list of at most {MAX_STOPS} texts, none of them empty")
    return tuple(_encodable("stop", stop) for stop in stops)


def _ids(given: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = given.get(name, [])
    if not isinstance(value, list) or not _are_ids(value):
        raise bad_field(name, value, "a list of token ids, whole numbers from 0")
    return tuple(value)


def _are_ids(values: list[Any]) -> bool:
    return all(type(value) is int and 0 <= value < 2**31 for value in values)


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise bad_field(name, value, "a text")
    return None if value is None else _encodable(name, value)


def _encodable(name: str, text: str) -> str:
    """The text, if it is one: JSON can spell half a surrogate pair, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ApiError(400, f"{name} holds half a surrogate pair, which is no character", param=name) from None
    return text


def _whole(
    given: Mapping[str, Any], name: str, default: int | None, *, least: int, most: int | None = None
) -> int | None:
    value = given.get(name, default)
    if value is None or (type(value) is int and least <= value and (most is None or value <= most)):
        return value
    raise bad_field(name, value, f"a whole number from {least}" + ("" if most is None else f" to {most}"))


def _number(given: Mapping[str, Any], name: str, default: float, allowed: str, fits: Any) -> float:
    value = given.get(name, default)
    if type(value) not in (int, float) or not abs(value) < LARGEST or not fits(value):
        raise bad_field(name, value, allowed)
    return float(value)


def _flag(given: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise bad_field(name, value, "true or false")
    return value
