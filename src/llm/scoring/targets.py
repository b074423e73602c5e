"""What is read from a tree's tokens: pairs of a flat position and a target token, and the requests they answer."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from llm.scoring.plain import scores_from
from llm.scoring.prefix_tree import PrefixTree
from llm.scoring.readout import Readout, empty_readout
from llm.scoring.requests import ScoreRequest, TokenScores


class Targets:
    """The pairs that `requests` read, each once, sorted by position; request s is sequence s of the tree.

    `rows` are the distinct scored flat positions, ascending: scored row number r is flat position rows[r].
    """

    def __init__(self, requests: Sequence[ScoreRequest], tree: PrefixTree) -> None:
        self.requests = requests
        asked = []
        for number, request in enumerate(requests):
            first = len(request.context_ids) - 1
            flats = tree.flat_indices(number, first, first + len(request.continuation_ids))
            asked.append(list(zip(flats, request.continuation_ids, strict=True)))
        pairs = sorted({pair for own in asked for pair in own})
        number_of = {pair: number for number, pair in enumerate(pairs)}
        self._numbers = [[number_of[pair] for pair in own] for own in asked]
        self._flats = np.array([flat for flat, _ in pairs], dtype=np.int64)
        self._tokens = np.array([token for _, token in pairs], dtype=np.int64)
        self._last = [own[-1][0] for own in asked]
        self._waiting = sorted(range(len(requests)), key=self._last.__getitem__, reverse=True)
        self._found = empty_readout()
        self.rows = np.unique(self._flats)

    def rows_between(self, first: int, last: int) -> np.ndarray:
        """The scored flat positions first … last - 1."""
        low, high = np.searchsorted(self.rows, [first, last])
        return self.rows[low:high]

    def pairs_between(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """(scored row, counted from `first`; target token) of the pairs of the scored rows number first … last - 1."""
        rows = self.rows[first:last]
        low, high = np.searchsorted(self._flats, [rows[0], rows[-1] + 1]) if len(rows) else (0, 0)
        numbers = np.searchsorted(rows, self._flats[low:high])
        return torch.from_numpy(numbers), torch.from_numpy(self._tokens[low:high])

    def take(self, found: Readout) -> None:
        """The scores of the next pairs."""
        self._found.extend(found)

    def complete(self, flat: int) -> list[tuple[ScoreRequest, TokenScores]]:
        """The requests all of whose positions lie before flat index `flat`, and not handed out before."""
        done = []
        while self._waiting and self._last[self._waiting[-1]] < flat:
            number = self._waiting.pop()
            done.append((self.requests[number], scores_from(self._found, self._numbers[number])))
        return done
