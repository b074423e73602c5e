"""lm-eval's generation keyword arguments, read as lm-eval reads them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from llm.errors import InputError
from llm.scoring.requests import GenerationRequest

_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # lm-eval's priority
_SETTINGS = ("until", "do_sample", "temperature", "top_p", "top_k", "seed")
_INERT = {"num_beams": 1}  # stock tasks name them; any other value is another decoding


@dataclass(frozen=True, kw_only=True)
class GenSettings:
    """One request's settings. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 do not restrict."""

    until: tuple[str, ...]
    max_gen_toks: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any], *, default_max_gen_toks: int) -> Self:
        """Checks names and values; an argument of another backend is refused by name, never ignored."""
        given = {name: value for name, value in given.items() if (name, value) not in _INERT.items()}
        unknown = sorted(set(given) - set(_LENGTHS) - set(_SETTINGS))
        if unknown:
            raise InputError(f"no generation argument named {unknown[0]!r}: give {', '.join((*_SETTINGS, *_LENGTHS))}")
        lengths = [int(given[name]) for name in _LENGTHS if given.get(name) is not None]
        max_gen_toks = lengths[0] if lengths else default_max_gen_toks
        if max_gen_toks < 1:
            raise InputError(f"max_gen_toks is {max_gen_toks}: give at least 1 token")
        seed = given.get("seed")
        return cls(
            until=_stops(given.get("until")),
            max_gen_toks=max_gen_toks,
            temperature=_temperature(given.get("do_sample"), given.get("temperature")),
            top_p=float(given.get("top_p") or 1.0),
            top_k=int(given.get("top_k") or 0),
            seed=None if seed is None else int(seed),
        )

    def seed_of(self, index: int) -> int | None:
        """The seed of the index-th request: its own where it samples, so that repeats differ and reruns do not."""
        if self.temperature == 0.0:
            return None
        if self.seed is None:
            import torch

            base = torch.initial_seed()  # lm-eval sets it from --seed
        else:
            base = self.seed
        digest = hashlib.blake2b(f"{base}:{index}".encode(), digest_size=7).digest()
        return int.from_bytes(digest, "big")


def generation_request(
    tokenizer: Any,
    prompt_ids: Sequence[int],
    gen_kwargs: Mapping[str, Any],
    *,
    end_token_ids: frozenset[int],
    index: int,
    max_length: int,
    default_max_gen_toks: int,
) -> GenerationRequest:
    """The index-th request of a call: the prompt fitted to the context, stops as lm-eval has them (EOS always one).

    `end_token_ids` end an answer too, as they do in transformers' `generate` behind HFLM.

    A stop string that is a special token stops by its id as well, because decoding strips it from the text.
    """
    settings = GenSettings.parse(gen_kwargs, default_max_gen_toks=default_max_gen_toks)
    prompt, num_new = room(prompt_ids, settings.max_gen_toks, max_length)
    eos_id = int(tokenizer.eos_token_id)
    eos = str(tokenizer.decode([eos_id], skip_special_tokens=False))
    special = [stop for stop in settings.until if stop in tokenizer.all_special_tokens]
    return GenerationRequest(
        prompt_ids=tuple(prompt),
        max_new_tokens=num_new,
        stop=(*settings.until, *([eos] if eos and eos not in settings.until else [])),
        stop_token_ids=end_token_ids | frozenset(tokenizer.convert_tokens_to_ids(special)),
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        seed=settings.seed_of(index),
    )


def room(prompt_ids: Sequence[int], max_gen_toks: int, max_length: int) -> tuple[Sequence[int], int]:
    """The prompt and the number of new tokens that fit together; the prompt is cut from the left, never to nothing.

    As lm-eval, room for max_gen_toks is kept while that leaves any context. A max_gen_toks that fills the context,
    where lm-eval fails, is clamped to what the prompt leaves.
    """
    kept = max_length - max_gen_toks
    if kept > 0:
        return prompt_ids[-kept:], max_gen_toks
    prompt = prompt_ids[-max(1, max_length - 1) :]
    return prompt, max(1, max_length - len(prompt))


def _stops(until: object) -> tuple[str, ...]:
    if until is None:
        return ()
    if isinstance(until, str):
        until = [until]
    if not isinstance(until, list | tuple) or not all(isinstance(stop, str) for stop in until):
        raise InputError(f"until is {until!r}: give a stop string or a list of them")
    return tuple(stop for stop in until if stop)


def _temperature(do_sample: object, temperature: Any) -> float:
    """0 unless sampling is asked for: by do_sample, or by a temperature above 0 where do_sample is not given."""
    if do_sample is False:
        return 0.0
    value = 0.0 if temperature is None else float(temperature)
    if value < 0:
        raise InputError(f"temperature is {value}: give 0 for greedy decoding or a positive number")
    if do_sample and value == 0.0:
        return 0.0 if temperature is not None else 1.0
    return value
