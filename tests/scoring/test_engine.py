"""The engine against the plain forward pass, and its promise: the same bits in any company."""

import random

import pytest
import torch

from llm.errors import InputError
from llm.models import elementwise
from llm.models.config import DecoderConfig
from llm.models.decoder import DecoderModel
from llm.scoring import branches
from llm.scoring.encoding import encode_pair, rolling_windows
from llm.scoring.engine import ScoringEngine
from llm.scoring.plain import PlainScorer, make_scorer
from llm.scoring.requests import ScoreRequest

VOCABULARY = 300


def random_decoder(*, dtype=torch.float32, layers=2, heads=4, kv_heads=2, head_dim=16, seed=0, **fields):
    config = DecoderConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=2500,
        **fields,
    )
    torch.manual_seed(seed)
    model = DecoderModel(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model.to(dtype)


def request(context, continuation):
    return ScoreRequest(context_ids=tuple(context), continuation_ids=tuple(continuation))


def tokens(count, seed):
    return tuple(random.Random(seed).choices(range(VOCABULARY), k=count))


def few_shot(num_items, *, prefix=300, item=70, seed=0, choices=((5,), (6,), (7, 8))):
    """Items behind one shared prefix, several continuations each, as multiple choice makes them."""
    head = tokens(prefix, seed)
    return [request(head + tokens(item + n % 40, seed + n + 1), c) for n in range(num_items) for c in choices]


def mixed_requests():
    """Few-shot families, short questions, one long document, nested and equal sequences."""
    document = tokens(1500, 99)
    short = [request(tokens(5 + n, 500 + n), tokens(1 + n % 6, 600 + n)) for n in range(40)]
    return [
        *few_shot(12),
        *few_shot(3, prefix=1020, item=30, seed=50),
        *short,
        request(document[:1], document[1:]),
        request(document[:700], document[700:760]),
        request(document[:700], document[700:710]),
        short[0],
    ]


def largest_difference(found, expected):
    return max(
        abs(a - b)
        for one, other in zip(found, expected, strict=True)
        for a, b in zip(one.logprobs, other.logprobs, strict=True)
    )


# -- right values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"heads": 4, "kv_heads": 4},
        {"heads": 6, "kv_heads": 2, "head_dim": 32, "qk_norm": True, "attention_bias": True},
        {"heads": 3, "kv_heads": 1},
        {"sliding_window": 20},
        {"sliding_window": 700},
    ],
)
def test_scores_are_those_of_the_plain_forward_pass(fields):
    model = random_decoder(**fields)
    requests = mixed_requests()
    found = ScoringEngine(model).score(requests)
    expected = PlainScorer(model).score(requests)
    assert largest_difference(found, expected) <= 1e-4
    assert [one.is_greedy for one in found] == [one.is_greedy for one in expected]


def test_a_readout_in_parts_is_torchs_log_softmax():
    model = random_decoder()
    ids = tokens(40, 3)
    logprobs = model(torch.tensor([ids]))[0].log_softmax(-1)
    expected = [logprobs[place, token].item() for place, token in enumerate(ids[1:])]
    (found,) = ScoringEngine(model).score([request(ids[:1], ids[1:])])
    assert found.logprobs == pytest.approx(expected, abs=1e-5)


def test_the_default_model_scores_text_as_its_forward_pass_does(default_model):
    model, tokenizer = default_model
    pairs = [("The capital of France is", " Paris"), ("Question: What is water?\nAnswer:", " a liquid"), ("", "Hello")]
    requests = [encode_pair(tokenizer, *pair) for pair in pairs]
    found = ScoringEngine(model).score(requests)
    assert largest_difference(found, PlainScorer(model).score(requests)) <= 1e-4
    assert [one.is_greedy for one in found] == [True, False, False]


@pytest.mark.data
def test_scores_are_stock_lm_evals(default_model, shared_dir):
    """Against HFLM's own answers: within 1e-3 nat or 1e-5 of their size, greedy flags alike."""
    import json

    model, tokenizer = default_model
    pairs, answers = [], []
    for name, task, count in (("arc", "arc_easy", 25), ("mmlu", "mmlu_marketing", 4), ("mmlu", "mmlu_virology", 2)):
        samples = json.loads((shared_dir / "oracle" / f"{name}.json").read_text())["samples"][task]
        pairs += [tuple(args) for sample in samples[:count] for args in sample["args"]]
        answers += [tuple(answer) for sample in samples[:count] for answer in sample["resps"]]
    found = ScoringEngine(model).score([encode_pair(tokenizer, *pair) for pair in pairs])
    for one, (logprob, is_greedy) in zip(found, answers, strict=True):
        assert one.total == pytest.approx(logprob, abs=1e-3, rel=1e-5)
        assert one.is_greedy == is_greedy


def test_a_document_in_windows_scores_each_token_p14_p17():
    model = random_decoder()
    document = tokens(12, 8)
    scored = ScoringEngine(model).score(rolling_windows(document, 1, 5))
    expected = []
    for first in range(0, 12, 5):
        last = min(first + 5, 12)
        window = (1, *document)[max(0, last - 5) : last + 1]
        logprobs = model(torch.tensor([window[:-1]]))[0].log_softmax(-1)
        places = range(len(window) - 1 - (last - first), len(window) - 1)
        expected += [logprobs[place, window[place + 1]].item() for place in places]
    assert [logprob for one in scored for logprob in one.logprobs] == pytest.approx(expected, abs=1e-4)


def test_continuations_that_share_a_sequence_keep_their_own_scores_p11():
    model = random_decoder()
    pairs = [request((5, 6), (7, 8)), request((5, 6, 7), (8,)), request((5, 6), (7,)), request((5, 6), (7, 9))]
    requests = pairs * 2
    random.Random(1).shuffle(requests)
    found = dict(zip(requests, ScoringEngine(model).score(requests), strict=True))
    alone = {one: ScoringEngine(model).score([one])[0] for one in pairs}
    assert found == alone
    assert found[pairs[0]].logprobs[1:] == found[pairs[1]].logprobs
    assert found[pairs[0]].logprobs[:1] == found[pairs[2]].logprobs


def test_greedy_means_every_token_is_the_argmax_p12():
    model = random_decoder()
    ids = list(tokens(6, 2))
    for _ in range(4):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    own = request(ids[:6], ids[6:])
    altered = request(ids[:6], [*ids[6:9], (ids[9] + 1) % VOCABULARY])
    assert [one.is_greedy for one in ScoringEngine(model).score([own, altered])] == [True, False]


def test_the_first_index_wins_a_tie_for_greedy():
    model = random_decoder()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    scores = ScoringEngine(model).score([request((5,), (0,)), request((5,), (1,))], top_k=2)
    assert [one.is_greedy for one in scores] == [True, False]
    assert [one.ranks for one in scores] == [(0,), (1,)]
    assert all(one.top[0][0][0] == 0 for one in scores)


def test_alternatives_and_ranks():
    model = random_decoder()
    ids = tokens(30, 4)
    (one,) = ScoringEngine(model).score([request(ids[:10], ids[10:])], top_k=5)
    logprobs = model(torch.tensor([ids[:-1]]))[0].log_softmax(-1)[9:]
    for place, token in enumerate(ids[10:]):
        order = logprobs[place].argsort(descending=True)
        assert [entry[0] for entry in one.top[place]] == order[:5].tolist()
        assert [entry[1] for entry in one.top[place]] == pytest.approx(logprobs[place][order[:5]].tolist(), abs=1e-5)
        assert one.ranks[place] == order.tolist().index(token)
    without = ScoringEngine(model).score([request(ids[:10], ids[10:])])[0]
    assert without.logprobs == one.logprobs
    assert without.top == without.ranks == ()


def test_an_empty_continuation_scores_nothing_and_is_greedy():
    (nothing, something) = ScoringEngine(random_decoder()).score([request((1, 2), ()), request((1,), (2,))])
    assert nothing.logprobs == ()
    assert nothing.is_greedy
    assert nothing.total == 0.0
    assert len(something.logprobs) == 1
    assert ScoringEngine(random_decoder()).score([]) == []


def test_bfloat16_logits_are_a_choice():
    """They tie and they are rounded; float32 logits of the same weights are neither."""
    model = random_decoder(dtype=torch.bfloat16)
    requests = few_shot(4, prefix=40, item=20)
    exact = [x for one in ScoringEngine(model).score(requests) for x in one.logprobs]
    rounded = [x for one in ScoringEngine(model, logits_dtype="bfloat16").score(requests) for x in one.logprobs]
    assert rounded == [torch.tensor(x).bfloat16().item() for x in rounded]
    assert exact != [torch.tensor(x).bfloat16().item() for x in exact]
    assert max(abs(a - b) for a, b in zip(exact, rounded, strict=True)) < 0.1


def test_bfloat16_scores_are_those_of_the_plain_forward_pass():
    model = random_decoder(dtype=torch.bfloat16)
    requests = few_shot(4, prefix=150, item=20)
    exact = PlainScorer(model.float()).score(requests)
    model = random_decoder(dtype=torch.bfloat16)
    ours = largest_difference(ScoringEngine(model).score(requests), exact)
    plain = largest_difference(PlainScorer(model).score(requests), exact)
    assert ours <= 2 * plain


# -- the same bits ------------------------------------------------------------------------------------------------


def assert_same_bits(model, requests, *, batches=(1, 5), shuffles=1, **settings):
    engine = ScoringEngine(model, **settings)
    together = dict(zip(requests, engine.score(requests), strict=True))
    for seed, size in enumerate((*batches, *[len(requests)] * shuffles)):
        order = list(together)
        random.Random(seed).shuffle(order)
        for first in range(0, len(order), size):
            batch = order[first : first + size]
            for one, scores in zip(batch, engine.score(batch), strict=True):
                assert scores == together[one], f"{one} in a batch of {size}"
    return together


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_company_never_changes_a_score_p10(dtype):
    assert_same_bits(random_decoder(dtype=dtype), mixed_requests())


def test_company_never_changes_a_score_where_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(branches, "compiled_kernels", lambda: None)
    monkeypatch.setattr(elementwise, "compiled_kernels", lambda: None)
    assert_same_bits(random_decoder(), mixed_requests())


@pytest.mark.parametrize("fields", [{"heads": 3, "kv_heads": 1}, {"sliding_window": 40}], ids=str)
def test_company_never_changes_a_score_of_other_shapes(fields):
    assert_same_bits(random_decoder(**fields), mixed_requests()[::3], batches=(1,))


def test_company_never_changes_a_score_of_the_default_model(default_model):
    model, _ = default_model
    rng = random.Random(0)

    def ids(count):
        return tuple(rng.choices(range(1000, 40000), k=count))

    head = ids(140)
    requests = [request(head + ids(20 + n), (330 + c,)) for n in range(3) for c in range(2)]
    requests += [request(ids(9), ids(3)), request((1,), ids(150))]
    assert_same_bits(model, requests, batches=(1, 3))


def test_the_size_of_a_pack_never_changes_a_score():
    model = random_decoder()
    requests = mixed_requests()
    first, *others = [ScoringEngine(model, pack_tokens=size).score(requests) for size in (64, 333, 2048)]
    assert all(other == first for other in others)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_the_number_of_threads_never_changes_a_score(threads):
    model = random_decoder()
    requests = mixed_requests()[::2]
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(ScoringEngine(model).score(requests))
    assert found[0] == found[1] == found[2]


def test_a_request_whose_values_are_not_numbers_stays_alone():
    """One token's embedding is NaN: what does not hold it keeps its bits, beside it in a pack or not."""
    model = random_decoder()
    requests = few_shot(6, prefix=200, item=40)
    broken = request((*requests[0].context_ids[:200], 299, *tokens(60, 5)), (3,))
    with torch.no_grad():
        model.embed_tokens.weight[299] = float("nan")
    clean = [one for one in requests if 299 not in one.context_ids]
    assert len(clean) >= 3
    assert ScoringEngine(model).score([*clean, broken])[:-1] == ScoringEngine(model).score(clean)


# -- cost and order -----------------------------------------------------------------------------------------------


def test_every_distinct_token_is_computed_once():
    model = random_decoder()
    seen = []
    forward = model.hidden_states

    def counting(input_ids, *args, keep=None):
        seen.append(len(input_ids))
        return forward(input_ids, *args, keep=keep)

    model.hidden_states = counting
    engine = ScoringEngine(model, pack_tokens=128)
    requests = few_shot(10, prefix=100, item=20, choices=((5,), (6,), (7,)))
    engine.score(requests)
    distinct = 100 + sum(20 + n for n in range(10))
    assert engine.stats.num_distinct_tokens == distinct
    assert engine.stats.num_total_tokens == 3 * (10 * 100 + distinct - 100)
    assert engine.stats.num_scored_positions == 10
    assert distinct <= sum(seen) <= distinct + 64 * len(seen)


def test_a_prefix_stays_held_from_call_to_call_with_the_same_bits():
    model = random_decoder()
    items = few_shot(9, prefix=320, item=30)
    held, fresh = ScoringEngine(model), ScoringEngine(model, retain_bytes=0)
    for first in range(0, len(items), 9):
        assert held.score(items[first : first + 9]) == fresh.score(items[first : first + 9])
    assert fresh.stats.num_distinct_tokens - held.stats.num_distinct_tokens == 2 * 320


def test_what_a_broken_off_call_left_behind_is_never_read():
    model = random_decoder()
    items = few_shot(4, prefix=320, item=30)
    forward, engine = model.hidden_states, ScoringEngine(model, pack_tokens=64)
    steps = []

    def failing(*args, **kwargs):
        steps.append(1)
        if len(steps) > 3:
            raise RuntimeError("the device is gone")
        return forward(*args, **kwargs)

    model.hidden_states = failing
    with pytest.raises(RuntimeError, match="device is gone"):
        engine.score(items)
    model.hidden_states = forward
    assert engine.score(items) == ScoringEngine(model).score(items)


def test_requests_are_reported_once_as_they_are_done():
    model = random_decoder()
    requests = mixed_requests()
    reported = {}
    calls = []

    def on_scored(indices, scores):
        calls.append(len(indices))
        for index, one in zip(indices, scores, strict=True):
            assert index not in reported
            reported[index] = one

    found = ScoringEngine(model, pack_tokens=256).score(requests, on_scored=on_scored)
    assert [reported[index] for index in range(len(requests))] == found
    assert len(calls) > 3


def test_a_faster_float32_mode_of_the_process_is_not_used_and_left_as_it_was():
    model = random_decoder()
    requests = few_shot(2, prefix=64, item=10)
    expected = ScoringEngine(model).score(requests)
    torch.set_float32_matmul_precision("medium")
    try:
        assert ScoringEngine(model).score(requests) == expected
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_input_that_cannot_be_scored_is_named():
    engine = ScoringEngine(random_decoder())
    with pytest.raises(InputError, match="needs 2501 positions and the model has 2500"):
        engine.score([request((1,), (2,)), request([1] * 2500, (2, 3))])
    with pytest.raises(InputError, match="request 1 holds token id 300: the model has ids 0 … 299"):
        engine.score([request((1,), (2,)), request((1,), (300,))])
    with pytest.raises(InputError, match="holds token id -1"):
        engine.score([request((-1,), (2,))])
    with pytest.raises(InputError, match="pack_tokens is 0"):
        ScoringEngine(random_decoder(), pack_tokens=0)


# -- any other module ---------------------------------------------------------------------------------------------


class Bigrams(torch.nn.Module):
    """A user's own module: ids (B, T) to logits (B, T, V)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(50, 50)

    def forward(self, ids):
        return self.table(ids)


def test_any_module_that_maps_ids_to_logits_is_scored():
    model = Bigrams()
    scorer = make_scorer(model)
    assert isinstance(scorer, PlainScorer)
    scores = scorer.score([request((1, 2), (3, 4)), request((1,), ()), request((1, 2), (3, 4))], top_k=1)
    expected = model.table.weight.log_softmax(-1)
    assert scores[0].logprobs == pytest.approx((expected[2, 3].item(), expected[3, 4].item()), abs=1e-6)
    assert scores[0].top[0][0][0] == int(expected[2].argmax())
    assert scores[1].is_greedy
    assert scores[0] == scores[2]
    assert isinstance(make_scorer(random_decoder()), ScoringEngine)
