"""The padded reference gives what a sequence alone gives, whatever it is padded to."""

import pytest
import torch

from llm.scoring.padded import PaddedScorer
from llm.scoring.plain import PlainScorer
from llm.scoring.requests import ScoreRequest


def test_padding_changes_nothing_but_last_bits(tiny_checkpoint) -> None:
    from llm.models import load_model

    model, _ = load_model(str(tiny_checkpoint), dtype="float32", device="cpu")
    generator = torch.Generator().manual_seed(0)
    requests = []
    for length in (1, 2, 9, 40, 41):
        ids = torch.randint(0, 300, (length + 3,), generator=generator).tolist()
        requests += [
            ScoreRequest(context_ids=tuple(ids[:length]), continuation_ids=tuple(ids[length : length + many]))
            for many in (0, 1, 3)
        ]
    padded = PaddedScorer(model, batch_size=4).score(requests)
    alone = PlainScorer(model).score(requests)
    assert [len(scores.logprobs) for scores in padded] == [0, 1, 3] * 5
    for one, other in zip(padded, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert one.is_greedy == other.is_greedy
