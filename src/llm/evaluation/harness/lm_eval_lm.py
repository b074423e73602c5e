"""A decoder as lm-eval's language model: types are translated here, nothing is computed.

Text becomes ids in `llm.scoring.encoding`, ids become scores in a `Scorer`, prompts become text in
`llm.scoring.generation`. lm-eval is optional: without it this module imports and constructing the model raises.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from llm.evaluation.harness.model_args import ModelArgs, batch_rows, context_length
from llm.evaluation.harness.optional import lm_eval_missing
from llm.evaluation.harness.records import Loglikelihood, Trace, TracedRequest
from llm.evaluation.harness.reporting import score_reported
from llm.scoring.requests import GenerationRequest, Scorer, ScoreRequest, TokenScores

_IMPORT_ERROR: ImportError | None = None
try:
    from lm_eval.api.model import TemplateLM
except ImportError as error:
    TemplateLM, _IMPORT_ERROR = object, error

__all__ = ["LlamaLmEvalLM", "Loglikelihood", "Trace", "TracedRequest"]

logger = logging.getLogger(__name__)

DEFAULT_MAX_GEN_TOKS = 256


class LlamaLmEvalLM(TemplateLM):
    """lm-eval's three verbs over a torch decoder and its tokenizer.

    `model` is a `DecoderModel`, or any module from ids (B, T) to logits (B, T, V), scored and decoded row by row.
    `batch_size` (a number, or "auto") bounds generation batches; scores do not depend on it. `max_length` is the
    context in tokens, the model's own by default. `scorer` replaces the engine, a stored one for instance. `trace`
    is called with, or appended, a `TracedRequest` for all that is scored. `name` is the model's name in the logs.

    Raises ImportError when lm-eval is not installed, InputError for a value that cannot be used.
    """

    backend = "causal"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        batch_size: int | str = 8,
        max_length: int | None = None,
        *,
        scorer: Scorer | None = None,
        logits_dtype: str = "float32",
        max_gen_toks: int = DEFAULT_MAX_GEN_TOKS,
        trace: Trace | None = None,
        name: str | None = None,
        chat_template_args: Mapping[str, Any] | None = None,
    ) -> None:
        if _IMPORT_ERROR is not None:
            raise lm_eval_missing(_IMPORT_ERROR)
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_rows(batch_size)
        self.max_gen_toks = max_gen_toks
        self.logits_dtype = logits_dtype
        self.name = name or type(model).__name__
        self.num_truncated: Counter[str] = Counter()
        self._max_length = context_length(max_length, model, tokenizer)
        self._scorer = scorer if scorer is not None else _default_scorer(model, logits_dtype)
        self._trace: Callable[[TracedRequest], object] | None = trace.append if isinstance(trace, list) else trace
        self._chat_template_args = dict(chat_template_args or {})
        self._device = getattr(model, "device", None)
        self._join_ranks()

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> Self:
        """The model that `--model_args KEY=VALUE,…` asks for, with lm-eval's own device and batch size."""
        if _IMPORT_ERROR is not None:
            raise lm_eval_missing(_IMPORT_ERROR)
        from lm_eval.utils import simple_parse_args_string

        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> Self:
        """As `create_from_arg_string`, from a mapping. Raises InputError for an argument that is not known."""
        if _IMPORT_ERROR is not None:
            raise lm_eval_missing(_IMPORT_ERROR)
        given = {name: value for name, value in (additional_config or {}).items() if value is not None}
        arguments = ModelArgs.parse({**given, **arg_dict})
        model, tokenizer = arguments.load()
        return cls(
            model,
            tokenizer,
            arguments.batch_size,
            arguments.max_length,
            logits_dtype=arguments.logits_dtype,
            max_gen_toks=arguments.max_gen_toks,
            name=arguments.model,
        )

    # -- what lm-eval asks about the model -----------------------------------------------------------------------

    @property
    def max_length(self) -> int:
        """The context in tokens."""
        return self._max_length

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The token that stands for an empty context: BOS where there is one, else EOS."""
        from llm.scoring.encoding import prefix_token_id

        return prefix_token_id(self.tokenizer)

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer in lm-eval's request cache."""
        return str(getattr(self.tokenizer, "name_or_path", "") or self.name).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids of a text; by default as the model reads it from the start, with exactly one BOS if any."""
        from llm.scoring.encoding import encode_text

        if add_special_tokens is None:
            return encode_text(self.tokenizer, string)
        return [int(token) for token in self.tokenizer.encode(string, add_special_tokens=add_special_tokens)]

    def tok_decode(self, tokens: Sequence[int] | int, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as the tokenizer's chat template writes it, open for the assistant's turn.

        Without `add_generation_prompt` the last message is the assistant's own beginning, left open.
        Raises InputError for a tokenizer without a template.
        """
        from llm.evaluation.harness.chat import render_chat

        return render_chat(
            self.tokenizer,
            chat_history,
            add_generation_prompt=add_generation_prompt,
            name=self.name,
            **self._chat_template_args,
        )

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes beside its results about the model; asked once the requests are done."""
        parameters = getattr(self.model, "parameters", None)
        return {
            "model_name": self.name,
            "model_fingerprint": getattr(self.model, "fingerprint", None),
            "model_num_parameters": sum(p.numel() for p in parameters()) if parameters is not None else -1,
            "model_dtype": str(getattr(self.model, "dtype", "")).removeprefix("torch."),
            "logits_dtype": self.logits_dtype,
            "prefix_token_id": self.prefix_token_id,
            "max_length": self.max_length,
            "num_truncated_requests": dict(self.num_truncated),
        }

    # -- several processes (the base class has what one needs) -----------------------------------------------------

    def _join_ranks(self) -> None:
        from llm.evaluation.harness.ranks import Ranks

        self._ranks = Ranks.join()
        self._rank, self._world_size = self._ranks.rank, self._ranks.size

    def all_gather(self, tensor: Any) -> Any:
        """The tensors of all ranks."""
        return tensor if self.world_size == 1 else self._ranks.all_gather(tensor)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """The objects of all ranks, on rank `dst`; None elsewhere."""
        return [obj] if self.world_size == 1 else self._ranks.gather_object(obj, dst)

    def barrier(self) -> None:
        """Wait for the other ranks."""
        if self.world_size > 1:
            self._ranks.barrier()

    # -- the three verbs -----------------------------------------------------------------------------------------

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-likelihood in nats, whether it is the greedy continuation) of each (context, continuation)."""
        from llm.scoring.encoding import encode_pairs

        def keep(index: int, scores: TokenScores) -> None:
            self.cache_hook.add_partial("loglikelihood", requests[index].args, _answer(scores))

        pairs = encode_pairs(self.tokenizer, [instance.args for instance in requests])
        scored = self._score([pair.request for pair in pairs], requests, disable_tqdm, "loglikelihood", keep)
        for index, (pair, (request, cut, scores)) in enumerate(zip(pairs, scored, strict=True)):
            context, continuation = requests[index].args
            self._record(
                requests[index],
                kind="loglikelihood",
                index=index,
                context=context,
                continuation=continuation,
                request=request,
                scores=scores,
                num_truncated=cut,
                split=pair.split,
            )
        return [_answer(scores) for _, _, scores in scored]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """As `loglikelihood`, for pairs that are ids already: (key for the cache or None, context, continuation)."""

        def keep(index: int, scores: TokenScores) -> None:
            if requests[index][0] is not None:
                self.cache_hook.add_partial("loglikelihood", requests[index][0], _answer(scores))

        asked = [ScoreRequest(context_ids=tuple(head), continuation_ids=tuple(tail)) for _, head, tail in requests]
        scored = self._score(asked, [None] * len(asked), disable_tqdm, "loglikelihood", keep)
        return [_answer(scores) for _, _, scores in scored]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood (nats) of each whole text: every token once, in lm-eval's disjoint windows."""
        from llm.scoring.encoding import encode_document, rolling_windows

        windows: list[ScoreRequest] = []
        owners: list[int] = []
        for index, instance in enumerate(requests):
            ids = encode_document(self.tokenizer, instance.args[0])
            cut = rolling_windows(ids, self.prefix_token_id, self.max_length)
            windows.extend(cut)
            owners.extend([index] * len(cut))
        instances = [requests[owner] for owner in owners]
        scored = self._score(windows, instances, disable_tqdm, "loglikelihood_rolling")
        totals = [0.0] * len(requests)
        for owner, (request, cut_tokens, scores) in zip(owners, scored, strict=True):
            instance = requests[owner]
            totals[owner] += scores.total
            self._record(
                instance,
                kind="loglikelihood_rolling",
                index=owner,
                context="",
                continuation=instance.args[0],
                request=request,
                scores=scores,
                num_truncated=cut_tokens,
                split="joint",
            )
        for instance, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", instance.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The text generated after each context, cut before the first stop string or the end of text."""
        from llm.scoring.generation import generate

        asked = [self._generation_request(index, *instance.args) for index, instance in enumerate(requests)]
        with self._progress(len(asked), "generate_until", disable_tqdm) as bar:
            done = generate(
                self.model,
                self.tokenizer,
                asked,
                batch_size=self.batch_size,
                max_length=self.max_length,
                progress=lambda count: bar.update(count - bar.n),
            )
        texts = [generation.text for generation in done]
        for instance, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", instance.args, text)
        return texts

    # -- parts ---------------------------------------------------------------------------------------------------

    def _score(
        self,
        asked: Sequence[ScoreRequest],
        instances: Sequence[Any],
        disable_tqdm: bool,
        verb: str,
        keep: Callable[[int, TokenScores], None] | None = None,
    ) -> list[tuple[ScoreRequest, int, TokenScores]]:
        """Each request as it was scored, the number of its tokens that did not fit, and its scores.

        `keep(index, scores)` is called as each one is done, so that an interrupted run has kept what it did.
        """
        from llm.scoring.encoding import fit

        fitted = [fit(request, self.max_length) for request in asked]
        self._count_truncated([cut for _, cut in fitted], instances)
        with self._progress(len(fitted), verb, disable_tqdm) as bar:

            def done(indices: Sequence[int], scores: Sequence[TokenScores]) -> None:
                bar.update(len(indices))
                for index, one in zip(indices, scores, strict=True):
                    if keep is not None:
                        keep(index, one)

            found = score_reported(self._scorer, [request for request, _ in fitted], done)
        return [(request, cut, one) for (request, cut), one in zip(fitted, found, strict=True)]

    def _count_truncated(self, cuts: Sequence[int], instances: Sequence[Any]) -> None:
        """Count the requests that were cut, for each task, and say so once a call."""
        hit = [getattr(instance, "task_name", None) or "" for cut, instance in zip(cuts, instances, strict=True) if cut]
        self.num_truncated.update(hit)
        if hit:
            logger.warning(
                "%d of %d requests are longer than the context of %d tokens: cut from the left, %d tokens at most",
                len(hit),
                len(cuts),
                self.max_length,
                max(cuts),
            )

    def _record(self, instance: Any, **scored: Any) -> None:
        """Hand a `TracedRequest` to whoever traces."""
        if self._trace is not None:
            task, doc_id = getattr(instance, "task_name", None), getattr(instance, "doc_id", None)
            self._trace(TracedRequest(task=task, doc_id=doc_id, **scored))

    def _generation_request(self, index: int, context: str, gen_kwargs: Mapping[str, Any]) -> GenerationRequest:
        from llm.evaluation.harness.gen_kwargs import generation_request
        from llm.scoring.stops import end_token_ids

        return generation_request(
            self.tokenizer,
            self.tok_encode(context) or [self.prefix_token_id],
            gen_kwargs,
            end_token_ids=end_token_ids(self.model, self.tokenizer),
            index=index,
            max_length=self.max_length,
            default_max_gen_toks=self.max_gen_toks,
        )

    def _progress(self, total: int, verb: str, disable: bool) -> Any:
        from tqdm import tqdm  # type: ignore[import-untyped]

        return tqdm(total=total, desc=f"Running {verb} requests", disable=disable or self.rank != 0)


def _answer(scores: TokenScores) -> Loglikelihood:
    """lm-eval's answer to one request."""
    return Loglikelihood((scores.total, scores.is_greedy), len(scores.logprobs))


def _default_scorer(model: Any, logits_dtype: str) -> Scorer:
    from llm.scoring.plain import make_scorer

    return make_scorer(model, logits_dtype=logits_dtype)
