"""The scoring engine behind both doors: every distinct token once, the same bits in any company.

A set of requests becomes a prefix tree; its tokens go through the layers in flat packs; a query's attention is cut
into parts by its own position alone (`spans`); only scored positions go through the last layer's second half and the
vocabulary. Why the bits hold: products are row-stable from 16 rows up and packs are never smaller, element-wise steps
see whole vectors because a pack's rows are a multiple of 32 a thread, and attention's shapes follow positions.
"""

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm.errors import InputError
from llm.models.products import chosen_product, full_precision
from llm.scoring.attention import attend
from llm.scoring.key_values import KeyValuePool
from llm.scoring.memory import keep_freed_memory
from llm.scoring.plain import scores_from
from llm.scoring.prefix_tree import Pack, PrefixTree
from llm.scoring.readout import LogitsDtype, empty_readout, head_of, read_out
from llm.scoring.requests import ScoreRequest, TokenScores
from llm.scoring.spans import Plan, Queries, plan

VERSION = "1"
"""Part of the identity of a stored score; changes whenever the engine's arithmetic does."""

_ROWS_TO_READ = 512
_PACKS_TO_READ = 8
"""Scored positions wait for company until there are this many of them, or so many packs have passed."""

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

    `logits_dtype` is the dtype logits are rounded to and their log-softmax is taken in. `pack_tokens` is how many
    tokens go through the layers together: it bounds activations, and with the longest sequence the keys and values.
    """

    def __init__(self, model: Any, *, logits_dtype: LogitsDtype = "float32", pack_tokens: int = 1024) -> None:
        if pack_tokens < 1:
            raise InputError(f"pack_tokens is {pack_tokens}: give at least 1")
        self.model = model
        self.logits_dtype: LogitsDtype = logits_dtype
        self.pack_tokens = pack_tokens
        self.stats = EngineStats()
        keep_freed_memory()
        self._product = chosen_product(model)

    @property
    def version(self) -> str:
        """What beside model and dtypes decides a score's last bits: the engine's arithmetic, torch and its kernels."""
        return f"engine {VERSION}, torch {torch.__version__}, {self._product} products"

    def score(
        self, requests: Sequence[ScoreRequest], *, top_k: int = 0, on_scored: OnScored | None = None
    ) -> list[TokenScores]:
        """Scores in request order. `on_scored(indices, scores)` is told of requests as they are done.

        Raises:
            InputError: a request is longer than the model, or holds an id the model has no row for.
        """
        began = time.perf_counter()
        job = _Job(self, requests, top_k, on_scored)
        with torch.inference_mode(), full_precision():
            job.run()
        self.stats.seconds += time.perf_counter() - began
        return job.results()


class _Job:
    """One call of `score`."""

    def __init__(
        self, engine: ScoringEngine, requests: Sequence[ScoreRequest], top_k: int, on_scored: OnScored | None
    ) -> None:
        self.engine, self.model, self.top_k = engine, engine.model, top_k
        self.on_scored = on_scored
        self.head = head_of(engine.model, engine.logits_dtype)
        self.places: dict[ScoreRequest, list[int]] = {}
        for index, request in enumerate(requests):
            self.places.setdefault(request, []).append(index)
        _check(self.places, self.model)
        self.found: list[TokenScores | None] = [None] * len(requests)
        self.distinct = [request for request in self.places if request.continuation_ids]
        self._answer([(request, _EMPTY) for request in self.places if not request.continuation_ids])

        sequences = [(request.context_ids + request.continuation_ids)[:-1] for request in self.distinct]
        self.tree = PrefixTree(sequences)
        self.targets = _Targets(self.distinct, self.tree)
        engine.stats.num_distinct_tokens += len(self.tree)
        engine.stats.num_total_tokens += sum(
            len(self.places[r]) * len(s) for r, s in zip(self.distinct, sequences, strict=True)
        )
        engine.stats.num_scored_positions += len(self.targets.rows)

    def results(self) -> list[TokenScores]:
        assert all(scores is not None for scores in self.found)
        return [scores for scores in self.found if scores is not None]

    def run(self) -> None:
        if not len(self.tree):
            return
        quantum = row_quantum()
        num_packs = -(-len(self.tree) // self.engine.pack_tokens)
        pack_tokens = _round_up(-(-len(self.tree) // num_packs), quantum)
        config = self.model.config
        pool = KeyValuePool(
            num_layers=config.num_hidden_layers,
            capacity=self.tree.capacity(pack_tokens),
            num_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            dtype=torch.float32 if self.model.device.type == "cpu" else self.model.dtype,
            device=self.model.device,
        )
        pending: list[Tensor] = []
        num_read = 0
        for number, pack in enumerate(self.tree.packs(pack_tokens), start=1):
            keep = self.targets.rows_between(pack.first, pack.first + len(pack.ids)) - pack.first
            pending.append(_PackRun(self.model, pool, pack, keep, quantum).hidden_states())
            num_rows, computed = sum(map(len, pending)), pack.first + len(pack.ids)
            if num_rows >= _ROWS_TO_READ or number % _PACKS_TO_READ == 0 or computed == len(self.tree):
                self._read(torch.cat(pending), num_read, num_read + num_rows, computed)
                pending, num_read = [], num_read + num_rows

    def _read(self, hidden: Tensor, first: int, last: int, computed: int) -> None:
        """Score the scored rows number first … last - 1, whose states `hidden` are, and answer the requests that are
        complete when the flat indices below `computed` are done.
        """
        rows, targets = self.targets.pairs_between(first, last)
        self.targets.found.extend(read_out(self.head, hidden, rows, targets, top_k=self.top_k))
        self._answer(self.targets.complete(computed))

    def _answer(self, answers: list[tuple[ScoreRequest, TokenScores]]) -> None:
        for request, scores in answers:
            for index in self.places[request]:
                self.found[index] = scores
        if answers and self.on_scored is not None:
            indices = [index for request, _ in answers for index in self.places[request]]
            self.on_scored(indices, [scores for request, scores in answers for _ in self.places[request]])


_EMPTY = TokenScores(logprobs=(), is_greedy=True)


class _Targets:
    """Which (flat position, target token) pairs are read, each once, and which of them make up a request.

    `rows` are the distinct scored flat positions, ascending; pairs are sorted by position, then token.
    """

    def __init__(self, requests: Sequence[ScoreRequest], tree: PrefixTree) -> None:
        self.requests = requests
        flats = [
            tree.flat_indices(number, len(r.context_ids) - 1, len(r.context_ids) + len(r.continuation_ids) - 1)
            for number, r in enumerate(requests)
        ]
        pairs = sorted(
            {
                pair
                for r, flat in zip(requests, flats, strict=True)
                for pair in zip(flat, r.continuation_ids, strict=True)
            }
        )
        number_of = {pair: number for number, pair in enumerate(pairs)}
        self.numbers = [
            [number_of[pair] for pair in zip(flat, r.continuation_ids, strict=True)]
            for r, flat in zip(requests, flats, strict=True)
        ]
        self.flats = np.array([flat for flat, _ in pairs], dtype=np.int64)
        self.tokens = np.array([token for _, token in pairs], dtype=np.int64)
        self.rows = np.unique(self.flats)
        self.waiting = sorted(range(len(requests)), key=lambda number: flats[number][-1], reverse=True)
        self.last_flat = [flat[-1] for flat in flats]
        self.found = empty_readout()

    def rows_between(self, first: int, last: int) -> np.ndarray:
        """The scored flat positions first … last - 1."""
        low, high = np.searchsorted(self.rows, [first, last])
        return self.rows[low:high]

    def pairs_between(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """(scored row, counted from `first`; target token) of the pairs of the scored rows number first … last - 1."""
        rows = self.rows[first:last]
        low, high = (0, 0) if not len(rows) else np.searchsorted(self.flats, [rows[0], rows[-1] + 1])
        numbers = np.searchsorted(rows, self.flats[low:high])
        return torch.from_numpy(numbers), torch.from_numpy(self.tokens[low:high])

    def complete(self, flat: int) -> list[tuple[ScoreRequest, TokenScores]]:
        """The requests all of whose positions lie before flat index `flat`, and not handed out before."""
        done = []
        while self.waiting and self.last_flat[self.waiting[-1]] < flat:
            number = self.waiting.pop()
            done.append((self.requests[number], scores_from(self.found, self.numbers[number])))
        return done


class _PackRun:
    """One pack through the layers. `keep` are the rows whose final hidden states are wanted."""

    def __init__(self, model: Any, pool: KeyValuePool, pack: Pack, keep: np.ndarray, quantum: int) -> None:
        self.model, self.pool, self.pack = model, pool, pack
        self.num_wanted = len(keep)
        self.keep = keep if len(keep) else np.zeros(1, dtype=np.int64)
        self.num_tokens = len(pack.ids)
        self.num_rows = _round_up(self.num_tokens, quantum)
        self.num_kept = _round_up(len(self.keep), quantum)
        self.last_layer = model.config.num_hidden_layers - 1
        self.can_keep = "keep" in inspect.signature(model.hidden_states).parameters
        windows = getattr(model.config, "layer_windows", None)
        self.windows = windows or [model.config.sliding_window] * model.config.num_hidden_layers
        self.plans: dict[tuple[bool, int | None], Plan] = {}
        self.paths = [np.array(chunk.path, dtype=np.int64) for chunk in pack.chunks]
        first, last = min(pack.slots), max(pack.slots)
        together = last - first == self.num_tokens - 1 and list(pack.slots) == list(range(first, last + 1))
        device = model.device
        self.slots = slice(first, last + 1) if together else torch.tensor(pack.slots, device=device)

    def hidden_states(self) -> Tensor:
        """(len(keep), hidden)."""
        device = self.model.device
        padding = [0] * (self.num_rows - self.num_tokens)
        ids = torch.tensor([*self.pack.ids, *padding], device=device)
        positions = torch.tensor([*self.pack.positions, *padding], device=device)
        kept = torch.from_numpy(np.pad(self.keep, (0, self.num_kept - len(self.keep)))).to(device)
        if self.can_keep:
            return self.model.hidden_states(ids, positions, self._attend, keep=kept)[: self.num_wanted]
        return self.model.hidden_states(ids, positions, self._attend)[kept[: self.num_wanted]]

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.pool.store(layer, self.slots, k[: self.num_tokens], v[: self.num_tokens])
        partial = self.can_keep and layer == self.last_layer
        return attend(self._plan(partial, self.windows[layer]), self.pool, layer, q)

    def _plan(self, partial: bool, window: int | None) -> Plan:
        if (partial, window) not in self.plans:
            rows = self.num_kept if partial else self.num_rows
            self.plans[partial, window] = plan(self._queries(partial), rows, window=window, device=self.model.device)
        return self.plans[partial, window]

    def _queries(self, partial: bool) -> list[Queries]:
        found, first = [], 0
        for chunk, path in zip(self.pack.chunks, self.paths, strict=True):
            last = first + chunk.stop - chunk.start
            rows = np.arange(first, last)
            positions = np.arange(chunk.start, chunk.stop)
            if partial:
                low, high = np.searchsorted(self.keep, [first, last])
                rows, positions = np.arange(low, high), self.keep[low:high] - first + chunk.start
            if len(rows):
                found.append(Queries(positions=positions, rows=rows, path=path))
            first = last
        return found


def row_quantum() -> int:
    """Packs hold a multiple of this many rows: at least 64, and 32 for each thread, so that no thread's share of an
    element-wise step ends in the middle of a vector.
    """
    return max(64, 32 * torch.get_num_threads())


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


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
