"""Drawing tokens: the right candidates, in the right proportions, from the row's own stream."""

from collections import Counter

import numpy as np
import pytest
import torch

from llm.scoring.requests import GenerationRequest
from llm.scoring.sampling import NUCLEUS_GUESS, Chooser, choose


def chooser(**settings) -> Chooser:
    return Chooser(request=GenerationRequest(prompt_ids=(1,), max_new_tokens=1, **settings))


def draws(logits: torch.Tensor, count: int, **settings) -> Counter:
    one = chooser(seed=0, **settings)
    logprobs = logits.log_softmax(-1)
    return Counter(one.draw(logprobs) for _ in range(count))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_temperature(temperature):
    logits = torch.tensor([1.0, 3.0, 2.0, -1.0])
    wanted = (logits / temperature).softmax(-1)
    for settings in ({}, {"top_k": 4}, {"top_p": 0.999999}):
        seen = draws(logits, 4000, temperature=temperature, **settings)
        for token in range(4):
            assert seen[token] / 4000 == pytest.approx(float(wanted[token]), abs=0.03)


def test_top_k_and_top_p_leave_the_fewest_likely_tokens():
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    assert set(draws(logits, 200, temperature=1.0, top_k=2)) == {1, 3}
    assert set(draws(logits, 200, temperature=1.0, top_p=0.39)) == {1}
    assert set(draws(logits, 200, temperature=1.0, top_p=0.69)) == {1, 3}
    assert set(draws(logits, 200, temperature=1.0, top_p=0.8)) == {1, 2, 3}
    assert set(draws(logits, 200, temperature=1.0, top_k=2, top_p=0.5)) == {1}
    assert set(draws(logits, 200, temperature=1e-4)) == {1}


def test_a_wide_nucleus_looks_beyond_the_first_guess():
    logits = torch.zeros(4 * NUCLEUS_GUESS)
    logits[7] = 1.0
    seen = draws(logits, 3000, temperature=1.0, top_p=0.9)
    assert len(seen) > NUCLEUS_GUESS
    assert max(seen) < 4 * NUCLEUS_GUESS * 0.91, "equals are taken in order of their ids"


def test_what_may_not_be_chosen_is_not_even_when_it_leads():
    logits = torch.tensor([[5.0, 1.0, 0.0, 2.0]])
    barred = torch.tensor([True, False, False, False])
    for settings in ({}, {"temperature": 1.0}, {"temperature": 5.0, "top_p": 0.9}, {"temperature": 5.0, "top_k": 3}):
        one = chooser(seed=3, num_top_logprobs=3, **settings)
        for _ in range(50):
            (choice,) = choose(logits, [one], barred)
            assert choice.token != 0
            assert choice.logprob == pytest.approx(float(logits.log_softmax(-1)[0, choice.token]))
            assert [token for token, _ in choice.top] == [3, 1, 2]


def test_rows_beyond_the_requests_are_ignored_and_nan_is_kept():
    logits = torch.tensor([[0.0, 1.0], [float("nan"), 0.0], [9.0, 0.0]])
    first, second = choose(logits, [chooser(), chooser(temperature=1.0)], None)
    assert first.token == 1
    assert np.isnan(second.logprob)


def test_without_a_seed_runs_differ():
    logits = torch.zeros(1 << 20)
    one, other = chooser(temperature=1.0), chooser(temperature=1.0)
    assert [one.draw(logits) for _ in range(3)] != [other.draw(logits) for _ in range(3)]
