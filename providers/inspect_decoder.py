"""Inspect's door to the decoder: `decoder/<model-ref>`, where ref is what `llm.models.load_model` takes.

A call is one of three kinds, told apart by its configuration:

- `extra_body={"continuations": [...]}`: every continuation is scored after the one user message, raw, in one call;
  the scores stand in the output's `metadata["continuations"]`. `"unconditional": true` beside it adds the score after
  the empty context. Texts are cut into ids as lm-eval cuts them.
- `prompt_logprobs` (1-20): the one user message is the raw prompt and every token of it is scored, as Inspect's
  `perplexity()` and `target_perplexity()` read it. The first token of the sequence is context only: a text begins with
  the prefix token (BOS, else EOS), so all of its own tokens are scored; `metadata["prompt_token_ids"]` gets nothing
  added, so its first id is not. Beyond the context the prompt is scored in lm-eval's disjoint windows. Unless
  max_tokens asks for some, no token is generated.
- anything else generates: through the tokenizer's chat template where there is one, else from the one user message as
  it is (`-M chat_template=auto|true|false`). Unset temperature is greedy.

No model is loaded before the first call. The module imports no torch.
"""

from collections.abc import Sequence
from typing import Any

import anyio
from inspect_ai.model import ChatMessage, GenerateConfig, Logprobs, ModelAPI, ModelOutput
from inspect_ai.tool import ToolChoice, ToolInfo
from typing_extensions import override

from llm.errors import InputError
from llm.scoring.encoding import (
    EncodedPair,
    encode_document,
    encode_pairs,
    encode_text,
    fit,
    prefix_token_id,
    rolling_windows,
)
from llm.scoring.requests import ScoreRequest, TokenScores
from llm.scoring.waiting import wait_for
from providers import inspect_registration  # noqa: F401  (importing this module is enough to name the provider)
from providers.inspect_arguments import DecoderArguments
from providers.inspect_errors import input_errors
from providers.inspect_generation import gather, generation_request, stop_reason
from providers.inspect_outputs import (
    ContinuationScore,
    empty_output,
    generation_output,
    overlong_output,
    prompt_logprobs,
)
from providers.inspect_prompts import chat_prompt, has_token_ids, raw_prompt, refuse_unsupported
from providers.inspect_sessions import LoadedDecoder, Session, find_session, forget_loaded, register_loaded

__all__ = ["DecoderAPI", "forget_loaded", "register_loaded"]

DEFAULT_MAX_TOKENS = 2048


class DecoderAPI(ModelAPI):
    """Inspect's `ModelAPI` over a torch decoder; see the module for what a call may ask.

    Model arguments are those of `DecoderArguments`. Provider objects of the same reference and arguments share one
    loaded decoder. Raises InputError, one sentence, for arguments and calls that cannot be served.
    """

    scores_continuations = True
    """Told to the tasks: one call scores all choices of an item."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008  (Inspect's own signature)
        **model_args: Any,
    ) -> None:
        super().__init__(model_name=model_name, base_url=base_url, api_key=api_key, config=config)
        with input_errors():
            self.arguments = DecoderArguments.from_model_args(model_args)

    def check(self) -> None:
        """Raise InputError if the model reference names nothing; nothing is loaded."""
        from llm.models import resolve_ref

        if self._session().loaded is None:
            with input_errors():
                resolve_ref(self.model_name)

    # -- what Inspect asks about the provider --------------------------------------------------------------------

    @override
    def max_tokens(self) -> int:
        return DEFAULT_MAX_TOKENS

    @override
    def max_tokens_for_config(self, config: GenerateConfig) -> int | None:
        """0 for a call that scores: it generates only what it is asked for."""
        return 0 if _continuations(config) is not None or config.prompt_logprobs is not None else None

    @override
    def max_connections(self) -> int:
        """Calls in flight at once; what arrives together is computed together."""
        return 256

    @override
    def connection_key(self) -> str:
        return f"{self.model_name} {self.arguments}"

    @override
    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        with input_errors():
            tokenizer = await anyio.to_thread.run_sync(self._session().tokenizer)
            return [int(i) for i in tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]]

    @override
    async def count_text_tokens(self, text: str) -> int:
        """Tokens of a text by the model's own tokenizer; nothing is downloaded."""
        return len(await self.tokenize(text))

    # -- calls ---------------------------------------------------------------------------------------------------

    @override
    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        with input_errors():
            refuse_unsupported(input, tools, config)
            continuations = _continuations(config)
            scoring = continuations is not None or config.prompt_logprobs is not None
            prompt = raw_prompt(input) if scoring or has_token_ids(input) else None
            decoder = await self._decoder()
            if continuations is not None:
                assert prompt is not None
                return await self._score_continuations(decoder, prompt, continuations, config)
            if config.prompt_logprobs is not None:
                assert prompt is not None
                return await self._score_prompt(decoder, prompt, config)
            return await self._complete(decoder, self._prompt_ids(decoder, input, prompt), config)

    async def _score_continuations(
        self,
        decoder: LoadedDecoder,
        prompt: str | tuple[int, ...],
        continuations: list[str],
        config: GenerateConfig,
    ) -> ModelOutput:
        if not isinstance(prompt, str):
            raise InputError("continuations are texts, so the prompt must be a text too: leave out prompt_token_ids")
        pairs = encode_pairs(decoder.tokenizer, [(prompt, text) for text in continuations])
        fitted = [fit(pair.request, self._max_length(decoder)) for pair in pairs]
        if self.arguments.overlong == "error" and any(num_truncated for _, num_truncated in fitted):
            return self._overlong(decoder, max(_length(pair.request) for pair in pairs))
        requests = [request for request, _ in fitted]
        bare = self._unconditional(decoder, continuations) if (config.extra_body or {}).get("unconditional") else []
        scores = await decoder.service.score([*requests, *bare])
        results = [
            _continuation_score(text, pair, request, num_truncated, score)
            for text, pair, (request, num_truncated), score in zip(continuations, pairs, fitted, scores, strict=False)
        ]
        num_tokens = len(requests[0].context_ids) + sum(len(request.continuation_ids) for request in requests)
        unconditional: Sequence[float | None] = (
            [score.total for score in scores[len(requests) :]] if bare else [None] * len(results)
        )
        return empty_output(
            self.model_name,
            num_tokens=num_tokens,
            metadata=self._about(decoder)
            | {
                "continuations": [
                    result.as_metadata() | {"unconditional_logprob": logprob}
                    for result, logprob in zip(results, unconditional, strict=True)
                ]
            },
        )

    def _unconditional(self, decoder: LoadedDecoder, continuations: list[str]) -> list[ScoreRequest]:
        pairs = encode_pairs(decoder.tokenizer, [("", text) for text in continuations])
        return [fit(pair.request, self._max_length(decoder))[0] for pair in pairs]

    async def _score_prompt(
        self, decoder: LoadedDecoder, prompt: str | tuple[int, ...], config: GenerateConfig
    ) -> ModelOutput:
        max_length = self._max_length(decoder)
        if isinstance(prompt, str):
            prefix, ids = prefix_token_id(decoder.tokenizer), encode_document(decoder.tokenizer, prompt)
        else:
            prefix, ids = prompt[0], list(prompt[1:])
        windows = rolling_windows(ids, prefix, max_length)
        if self.arguments.overlong == "error" and len(windows) > 1:
            return self._overlong(decoder, len(ids) + 1)
        asked = config.prompt_logprobs or 0
        scores = await decoder.service.score(windows, top_k=asked if asked > 1 else 0)
        found = prompt_logprobs(decoder.tokenizer, windows, scores)
        metadata = self._about(decoder) | {
            "windowed": len(windows) > 1,
            "num_windows": len(windows),
            "first_token": f"context only: id {prefix}" + (" (prefix)" if isinstance(prompt, str) else " (as given)"),
            "request_digests": [window.digest for window in windows],
        }
        if config.max_tokens:
            return await self._complete(decoder, (prefix, *ids), config, found, metadata)
        output = empty_output(self.model_name, num_tokens=len(ids) + 1, metadata=metadata)
        output.choices[0].prompt_logprobs = found
        return output

    async def _complete(
        self,
        decoder: LoadedDecoder,
        prompt_ids: tuple[int, ...],
        config: GenerateConfig,
        scored: Logprobs | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> ModelOutput:
        wanted = config.max_tokens if config.max_tokens is not None else DEFAULT_MAX_TOKENS
        room = self._max_length(decoder) - len(prompt_ids)
        if room < 1:
            return self._overlong(decoder, len(prompt_ids), scored, metadata)
        requests = [
            generation_request(decoder, prompt_ids, config, min(wanted, room), choice)
            for choice in range(config.num_choices or 1)
        ]
        generations = await gather([decoder.service.generate(request) for request in requests])
        return generation_output(
            self.model_name,
            generations,
            [stop_reason(generation, cut=room < wanted) for generation in generations],
            tokenizer=decoder.tokenizer,
            num_prompt=len(prompt_ids),
            with_logprobs=bool(config.logprobs),
            prompt_logprobs=scored,
            metadata=metadata or self._about(decoder),
        )

    # -- helpers -------------------------------------------------------------------------------------------------

    def _session(self) -> Session:
        return find_session(self.model_name, self.arguments)

    async def _decoder(self) -> LoadedDecoder:
        session = self._session()
        return session.loaded if session.loaded is not None else await wait_for(session.start_loading())

    def _max_length(self, decoder: LoadedDecoder) -> int:
        asked = self.arguments.max_length
        if asked is not None and asked > decoder.max_length:
            raise InputError(
                f"model argument max_length is {asked}: {self.model_name} has {decoder.max_length} positions"
            )
        return asked or decoder.max_length

    def _prompt_ids(
        self, decoder: LoadedDecoder, messages: Sequence[ChatMessage], prompt: str | tuple[int, ...] | None
    ) -> tuple[int, ...]:
        """The ids that ordinary generation continues; `prompt` holds ids given verbatim, if any."""
        if isinstance(prompt, tuple):
            return prompt
        return tuple(encode_text(decoder.tokenizer, self.render(decoder.tokenizer, messages))) or (
            prefix_token_id(decoder.tokenizer),
        )

    def render(self, tokenizer: Any, messages: Sequence[ChatMessage]) -> str:
        """The text of an ordinary prompt: the chat template's, or the one user message as it is."""
        wish = self.arguments.chat_template
        if wish is True and not tokenizer.chat_template:
            raise InputError(f"chat_template is true, and the tokenizer of {self.model_name} has no chat template")
        if wish is False or not tokenizer.chat_template:
            text = raw_prompt(messages)
            assert isinstance(text, str)
            return text
        return chat_prompt(tokenizer, messages)

    def _about(self, decoder: LoadedDecoder) -> dict[str, Any]:
        """What a log must say to replay scores: whose they are, and in what arithmetic."""
        return {
            "model_fingerprint": getattr(decoder.model, "fingerprint", None),
            "dtype": str(decoder.model.dtype).removeprefix("torch."),
            "logits_dtype": decoder.logits_dtype,
            "max_length": self._max_length(decoder),
            "prefix_token_id": prefix_token_id(decoder.tokenizer),
            "bos_token": _special(decoder.tokenizer, "bos"),
            "eos_token": _special(decoder.tokenizer, "eos"),
        }

    def _overlong(
        self,
        decoder: LoadedDecoder,
        num_tokens: int,
        scored: Logprobs | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> ModelOutput:
        """The output of a prompt that leaves no room; what was scored of it before stays."""
        output = overlong_output(self.model_name, num_tokens=num_tokens, max_length=self._max_length(decoder))
        output.choices[0].prompt_logprobs = scored
        output.metadata = (metadata or {}) | (output.metadata or {})
        return output


def _continuations(config: GenerateConfig) -> list[str] | None:
    """The continuations that a call asks about; None where it asks about none."""
    body = config.extra_body or {}
    if "continuations" not in body:
        return None
    texts = body["continuations"]
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise InputError("extra_body['continuations'] must be a list of texts, at least one")
    return texts


def _continuation_score(
    text: str, pair: EncodedPair, request: ScoreRequest, num_truncated: int, score: TokenScores
) -> ContinuationScore:
    return ContinuationScore(
        text=text,
        logprob=score.total,
        num_tokens=len(score.logprobs),
        is_greedy=score.is_greedy,
        num_truncated=num_truncated,
        split=pair.split,
        request_digest=request.digest,
    )


def _length(request: ScoreRequest) -> int:
    return len(request.context_ids) + len(request.continuation_ids)


def _special(tokenizer: Any, name: str) -> list[str] | None:
    """A special token's text and id, spelled as lm-eval logs it; None where the tokenizer has none."""
    token_id = getattr(tokenizer, f"{name}_token_id")
    return None if token_id is None else [getattr(tokenizer, f"{name}_token"), str(token_id)]
