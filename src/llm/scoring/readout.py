"""From final hidden states to token scores: the vocabulary projection, its log-softmax and what is read from it.

The vocabulary is walked in parts of fixed width, so that logits stay in cache and a long document's never exist at
once. A row's bits depend on nothing but the row: parts, their order and all reductions are fixed.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from llm.models.elementwise import peaks_and_sums

LogitsDtype = Literal["float32", "bfloat16", "float16"]
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

TopTokens = tuple[tuple[int, float], ...]
Project = Callable[[Tensor, int, int], Tensor]
"""(hidden (N, H), first, last) -> logits (N, last - first) of vocabulary ids first … last - 1."""

ROWS = 64
"""Rows are projected in multiples of this many."""
MOST_ROWS = 1024
"""Rows projected together at most."""
PART = 2048
"""Vocabulary ids whose logits exist at once."""


@dataclass(frozen=True, kw_only=True)
class Readout:
    """Scores of P (row, target token) pairs, in the order asked: nats, whether the target is its row's argmax (the
    first index wins ties), its 0-based rank, and the most likely tokens of its row. `ranks` and `top` are empty
    unless asked for.
    """

    logprobs: list[float]
    is_greedy: list[bool]
    ranks: list[int]
    top: list[TopTokens]

    def extend(self, other: "Readout") -> None:
        """Append another readout's pairs."""
        self.logprobs.extend(other.logprobs)
        self.is_greedy.extend(other.is_greedy)
        self.ranks.extend(other.ranks)
        self.top.extend(other.top)


def empty_readout() -> Readout:
    """A readout of no pairs."""
    return Readout(logprobs=[], is_greedy=[], ranks=[], top=[])


@dataclass(frozen=True, kw_only=True)
class Head:
    """A vocabulary of `vocab_size` ids, its projection in parts of `part` ids, and the dtype in which log-softmax is
    taken: logits and logprobs are rounded to it, sums are float32 (as torch's log_softmax does).
    """

    project: Project
    vocab_size: int
    logits_dtype: LogitsDtype
    part: int = PART

    def logits(self, hidden: Tensor, first: int, last: int) -> Tensor:
        """Float32 (N, last - first), rounded to the head's dtype."""
        return self.round(self.project(hidden, first, last))

    def round(self, values: Tensor) -> Tensor:
        """Values as the head's dtype holds them, in float32."""
        return values.to(DTYPES[self.logits_dtype]).float()

    def parts(self) -> list[tuple[int, int]]:
        """(first, last) of each part of the vocabulary."""
        return [(first, min(first + self.part, self.vocab_size)) for first in range(0, self.vocab_size, self.part)]


def head_of(model: Any, logits_dtype: LogitsDtype) -> Head:
    """The head of a decoder. Float32 logits of a narrower model are float32 products of its states and weights,
    where its `project` can compute a part of the vocabulary in the dtype of the states.
    """
    if "first" not in inspect.signature(model.project).parameters:
        whole = model.config.vocab_size
        return Head(project=lambda h, _, __: model.project(h), vocab_size=whole, logits_dtype=logits_dtype, part=whole)
    wide = logits_dtype == "float32"

    def project(hidden: Tensor, first: int, last: int) -> Tensor:
        part: Tensor = model.project(hidden.float() if wide else hidden, first, last)
        return part

    return Head(project=project, vocab_size=model.config.vocab_size, logits_dtype=logits_dtype)


def read_out(head: Head, hidden: Tensor, rows: Tensor, targets: Tensor, *, top_k: int = 0) -> Readout:
    """Score `targets` (P,) at `rows` (P,), ascending row numbers of `hidden` (N, H)."""
    result = empty_readout()
    num_rows = int(rows[-1]) + 1 if len(rows) else 0
    step = MOST_ROWS if head.part < head.vocab_size and not top_k else ROWS
    for first in range(0, num_rows, step):
        low, high = torch.searchsorted(rows, torch.tensor([first, first + step])).tolist()
        if low < high:
            block = _padded(hidden[first : min(first + step, num_rows)])
            pairs = (rows[low:high] - first).to(hidden.device), targets[low:high].to(hidden.device)
            result.extend(_read_block(head, block, *pairs, top_k))
    return result


def _padded(block: Tensor) -> Tensor:
    missing = -len(block) % ROWS
    return torch.nn.functional.pad(block, (0, 0, 0, missing)) if missing else block


def _read_block(head: Head, block: Tensor, rows: Tensor, targets: Tensor, top_k: int) -> Readout:
    peaks, sums, kept = [], [], []
    own = torch.empty(len(rows), device=block.device)
    part_of = torch.empty_like(targets)
    first_best = torch.zeros(len(rows), dtype=torch.bool, device=block.device)
    for number, (first, last) in enumerate(head.parts()):
        logits = head.logits(block, first, last)
        peak, total = peaks_and_sums(logits)
        here = ((targets >= first) & (targets < last)).nonzero()[:, 0]
        own[here] = logits[rows[here], targets[here] - first]
        part_of[here] = number
        best = here[own[here] == peak[rows[here]]]
        first_best[best] = logits[rows[best]].argmax(dim=-1) == targets[best] - first
        peaks.append(peak)
        sums.append(total)
        if top_k:
            kept.append(logits)
    peak, first_part, log_sum = _joined(torch.stack(peaks), torch.stack(sums))
    logprobs = head.round(own - peak[rows] - log_sum[rows]).clamp(max=0.0)
    is_greedy = first_best & (first_part[rows] == part_of)
    found = Readout(logprobs=logprobs.tolist(), is_greedy=is_greedy.tolist(), ranks=[], top=[])
    if top_k:
        logits = torch.cat(kept, dim=1)
        found.ranks.extend(_ranks(logits, rows, targets))
        table = _most_likely(head, logits, peak, log_sum, top_k)
        found.top.extend(table[row] for row in rows.tolist())
    return found


def _joined(peaks: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of rows read in parts, each (parts, N): the peak, the first part that has it, and the log of the sum of
    exp(logit - peak), each (N,).
    """
    peak, part = peaks.max(dim=0)
    shares = sums * (peaks - peak).exp_()
    total = shares[0].clone()
    for share in shares[1:]:
        total.add_(share)
    return peak, part, total.log_()


def _ranks(logits: Tensor, rows: Tensor, targets: Tensor) -> list[int]:
    """Tokens that come before each target in its row's order: the more likely ones, and equals with a lower index."""
    found = []
    for row, target in zip(rows.tolist(), targets.tolist(), strict=True):
        line = logits[row]
        found.append(int((line > line[target]).sum() + (line[:target] == line[target]).sum()))
    return found


def _most_likely(head: Head, logits: Tensor, peak: Tensor, log_sum: Tensor, top_k: int) -> list[TopTokens]:
    """Each row's top_k (token id, logprob), best first; among equals the lower id, and the argmax is always there."""
    values, ids = logits.topk(min(top_k, logits.shape[1]), dim=-1)
    greedy = logits.argmax(dim=-1)
    missing = (ids != greedy[:, None]).all(dim=-1)
    ids[missing, -1] = greedy[missing]  # more ties for best than top_k: all values are equal
    logprobs = head.round(values - peak[:, None] - log_sum[:, None]).clamp(max=0.0)
    table = []
    for line in zip(ids.tolist(), values.tolist(), logprobs.tolist(), strict=True):
        order = sorted(zip(*line, strict=True), key=lambda entry: (-entry[1], entry[0]))
        table.append(tuple((token, logprob) for token, _, logprob in order))
    return table
