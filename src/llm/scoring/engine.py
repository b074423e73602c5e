"""The scoring engine behind both doors: every distinct token once, the same bits in any company.

A set of requests becomes a prefix tree; its tokens go through the layers in flat packs; a query's attention depends on
its own position alone (`branches`, or `spans`); only scored positions go through the last layer's second half and the
vocabulary. Why the bits hold: products are row-stable from 16 rows up and packs are never smaller, element-wise steps
see whole vectors because a pack's rows are a multiple of 32 a thread, and attention's order follows positions.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llm.errors import InputError
from llm.models.compiled import compiled_kernels
from llm.models.products import chosen_product, full_precision
from llm.scoring.key_values import KeyValuePool
from llm.scoring.memory import keep_freed_memory
from llm.scoring.pack_run import round_up, row_quantum, run_pack
from llm.scoring.prefix_cache import PrefixCache
from llm.scoring.prefix_tree import PrefixTree, Slots, Tokens
from llm.scoring.readout import LogitsDtype, head_of, read_out
from llm.scoring.requests import ScoreRequest, TokenScores
from llm.scoring.targets import Targets

VERSION = "4"
"""Part of the identity of a stored score; changes whenever the engine's arithmetic does."""

ROWS_TO_READ = 1024
PACKS_TO_READ = 8
"""Scored positions wait for company until there are this many of them, or so many packs have passed."""

MOST_RETAINED = 2**15
"""Tokens kept between calls, whatever the budget."""

OnScored = Callable[[Sequence[int], Sequence[TokenScores]], None]


@dataclass(kw_only=True)
class EngineStats:
    """Totals over an engine's life: tokens computed, tokens the requests hold, positions projected, seconds."""

    num_distinct_tokens: int = 0
    num_total_tokens: int = 0
    num_scored_positions: int = 0
    seconds: float = 0.0


class ScoringEngine:
    """Scores (context, continuation) requests on a decoder that exposes `hidden_states` and `project`.

    Calls from several threads take turns.

    Args:
        logits_dtype: the dtype logits are rounded to and their log-softmax is taken in.
        pack_tokens: how many tokens go through the layers together; it bounds activations, and with the longest
            sequence the keys and values.
        retain_bytes: keys and values of shared prefixes that stay held from one call to the next.
    """

    def __init__(
        self,
        model: Any,
        *,
        logits_dtype: LogitsDtype = "float32",
        pack_tokens: int = 1024,
        retain_bytes: int = 128 * 2**20,
    ) -> None:
        if pack_tokens < 1:
            raise InputError(f"pack_tokens is {pack_tokens}: give at least 1")
        if retain_bytes < 0:
            raise InputError(f"retain_bytes is {retain_bytes}: give 0 to keep nothing between calls, or more")
        keep_freed_memory()
        self.model = model
        self.pack_tokens = pack_tokens
        self.stats = EngineStats()
        self._head = head_of(model, logits_dtype)
        self._product = chosen_product(model)
        self._pool = KeyValuePool.for_model(model)
        self._cache = PrefixCache(min(retain_bytes // self._pool.bytes_per_slot, MOST_RETAINED))
        self._lock = threading.Lock()

    @property
    def logits_dtype(self) -> LogitsDtype:
        return self._head.logits_dtype

    @property
    def version(self) -> str:
        """What beside model and dtypes decides a score's last bits: the engine's arithmetic, torch and its kernels."""
        steps = "torch" if compiled_kernels() is None else "compiled"
        return f"engine {VERSION}, torch {torch.__version__}, {self._product} products, {steps} steps"

    @property
    def invariant(self) -> bool | str:
        """True where a score's bits do not depend on its company, else the reason why that is not promised."""
        if self.model.device.type == "cpu":
            return True
        return f"products on {self.model.device.type} may change kernels, and with them last bits, with their shapes"

    def score(
        self, requests: Sequence[ScoreRequest], *, top_k: int = 0, on_scored: OnScored | None = None
    ) -> list[TokenScores]:
        """Scores in request order. `on_scored(indices, scores)` is told of requests as they are done.

        Raises:
            InputError: a request is longer than the model, or holds an id the model has no row for.
        """
        began = time.perf_counter()
        answers = _Answers(requests, on_scored)
        _check(answers.places, self.model)
        with self._lock, torch.inference_mode(), full_precision():
            self._score(answers, top_k)
        self.stats.seconds += time.perf_counter() - began
        return answers.in_order()

    def _score(self, answers: "_Answers", top_k: int) -> None:
        answers.give([(request, _NOTHING) for request in answers.places if not request.continuation_ids])
        requests = [request for request in answers.places if request.continuation_ids]
        sequences: list[Tokens] = [(request.context_ids + request.continuation_ids)[:-1] for request in requests]
        limits = [len(request.context_ids) - 1 for request in requests]
        if not requests:
            return
        try:
            tree = PrefixTree(sequences, self._cache.known(sequences, limits))
            run = _Run(tree, Targets(requests, tree), self._cache.reserve(tree, limits))
            self._count(answers, requests, run)
            self._run(run, answers, top_k)
        except BaseException:
            self._cache.clear()  # it may name keys and values that were not computed
            raise

    def _count(self, answers: "_Answers", requests: list[ScoreRequest], run: "_Run") -> None:
        self.stats.num_distinct_tokens += len(run.tree)
        self.stats.num_scored_positions += len(run.targets.rows)
        for request in requests:
            length = len(request.context_ids) + len(request.continuation_ids) - 1
            self.stats.num_total_tokens += length * len(answers.places[request])

    def _run(self, run: "_Run", answers: "_Answers", top_k: int) -> None:
        tree, targets = run.tree, run.targets
        num_packs = -(-len(tree) // self.pack_tokens)
        pack_tokens = round_up(-(-len(tree) // num_packs), row_quantum())
        num_kept, held = self._cache.capacity, self._cache.extent
        self._pool.resize(num_kept + tree.capacity(pack_tokens), keep=held)
        pending: list[Tensor] = []
        num_read = 0
        packs = tree.packs(pack_tokens, first_slot=num_kept, reserved=run.reserved)
        for number, pack in enumerate(packs, start=1):
            keep = targets.rows_between(pack.first, pack.last) - pack.first
            pending.append(run_pack(self.model, self._pool, pack, keep))
            num_rows = sum(map(len, pending))
            if num_rows >= ROWS_TO_READ or number % PACKS_TO_READ == 0 or pack.last == len(tree):
                pairs = targets.pairs_between(num_read, num_read + num_rows)
                targets.take(read_out(self._head, torch.cat(pending), *pairs, top_k=top_k))
                answers.give(targets.complete(pack.last))
                pending, num_read = [], num_read + num_rows
        self._pool.resize(min(self._pool.capacity, num_kept + self.pack_tokens), keep=held)


_NOTHING = TokenScores(logprobs=(), is_greedy=True)


@dataclass(frozen=True)
class _Run:
    """A tree, what is read from it, and the slots of its tokens that stay."""

    tree: PrefixTree
    targets: Targets
    reserved: dict[int, Slots]


class _Answers:
    """The scores of a call's requests as they come; `places` are the indices of each distinct one."""

    def __init__(self, requests: Sequence[ScoreRequest], on_scored: OnScored | None) -> None:
        self.on_scored = on_scored
        self.places: dict[ScoreRequest, list[int]] = {}
        for index, request in enumerate(requests):
            self.places.setdefault(request, []).append(index)
        self.found: list[TokenScores | None] = [None] * len(requests)

    def give(self, answers: list[tuple[ScoreRequest, TokenScores]]) -> None:
        """Scores of distinct requests."""
        for request, scores in answers:
            for index in self.places[request]:
                self.found[index] = scores
        if answers and self.on_scored is not None:
            indices = [index for request, _ in answers for index in self.places[request]]
            self.on_scored(indices, [scores for request, scores in answers for _ in self.places[request]])

    def in_order(self) -> list[TokenScores]:
        found = [scores for scores in self.found if scores is not None]
        assert len(found) == len(self.found), "every request is answered"
        return found


def _check(requests: dict[ScoreRequest, list[int]], model: Any) -> None:
    vocab_size, max_length = model.config.vocab_size, model.max_length
    for request, places in requests.items():
        length = len(request.context_ids) + len(request.continuation_ids) - 1
        if length > max_length:
            raise InputError(
                f"request {places[0]} needs {length} positions and the model has {max_length}: cut it with `fit`, or "
                "score it in windows"
            )
        ids = request.context_ids + request.continuation_ids
        low, high = min(ids), max(ids)
        if low < 0 or high >= vocab_size:
            wrong = low if low < 0 else high
            raise InputError(f"request {places[0]} holds token id {wrong}: the model has ids 0 … {vocab_size - 1}")
