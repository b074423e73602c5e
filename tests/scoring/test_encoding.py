"""Text to ids: lm-eval's own conventions, held to lm-eval's own functions, and a meaning for what it leaves open."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from llm.errors import InputError
from llm.models import load_tokenizer
from llm.scoring.encoding import (
    encode_document,
    encode_pair,
    encode_pair_flagged,
    encode_pairs,
    encode_text,
    fit,
    prefix_token_id,
    rolling_windows,
)
from llm.scoring.requests import ScoreRequest


@pytest.fixture(scope="module")
def tokenizer(default_model):
    return default_model[1]


def word_tokenizer(words, *, adds_bos=False, merges=(), dummy_prefix=False):
    """A small BPE over given pieces, with BOS <s> and EOS </s>; `adds_bos` puts BOS before every text."""
    pieces = ["<s>", "</s>", *words]
    bpe = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, list(merges)))
    if dummy_prefix:
        bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
        bpe.decoder = decoders.Metaspace(prepend_scheme="always", split=False)
    if adds_bos:
        bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>")


def request(context, continuation):
    return ScoreRequest(context_ids=tuple(context), continuation_ids=tuple(continuation))


# -- pairs --------------------------------------------------------------------------------------------------------


def test_a_space_at_the_end_of_the_context_scores_the_same_ids_p02(tokenizer):
    moved = encode_pair(tokenizer, "The sky is ", "blue")
    assert moved == encode_pair(tokenizer, "The sky is", " blue")
    assert moved.continuation_ids == (4461,)


@pytest.mark.parametrize(
    ("context", "continuation"),
    [
        ("Question: What is 2+2?\nAnswer:", " 4"),
        ("Question: What is 2+2?\nAnswer:\n\n ", "four"),
        ("naïve café 日本", "語です"),
        ("emoji 👩‍👩‍", "👧 family"),
        ("def f(x):\n    ", "return x"),
        ("foot", "ball"),
        ("a", "b\n"),
    ],
)
def test_pairs_are_cut_as_lm_eval_cuts_them(tokenizer, context, continuation):
    from lm_eval.api.model import TemplateLM

    class Reference:
        backend = "causal"

        def tok_encode(self, string, add_special_tokens=None):
            return tokenizer.encode(string)

    expected = TemplateLM._encode_pair(Reference(), context, continuation)
    assert encode_pair(tokenizer, context, continuation) == request(*expected)


def test_a_token_that_spans_the_join_is_flagged_and_never_scores_nothing_p01():
    tiny = word_tokenizer(["a", "b", "ab"], merges=[("a", "b")])
    swallowed = encode_pair_flagged(tiny, "a", "b")  # jointly one token, "ab": nothing is left behind the context
    assert swallowed.request == request([2], [3])
    assert swallowed.split == "separate"
    merged = encode_pair_flagged(tiny, "a", "bb")  # jointly "ab" "b": lm-eval's cut scores the second b alone
    assert merged.request == request([2], [3])
    assert merged.split == "merged"
    clean = encode_pair_flagged(tiny, "b", "ab")
    assert clean.request == request([3], [4])
    assert clean.split == "joint"


def test_a_dummy_prefix_adds_no_lone_space_piece_p04():
    pieces = ["▁", "x", "y", "▁x", "▁y"]
    tiny = word_tokenizer(pieces, merges=[("▁", "x"), ("▁", "y")], dummy_prefix=True)
    pair = encode_pair(tiny, "x", " y")
    assert tiny.convert_ids_to_tokens(list(pair.continuation_ids)) == ["▁y"]
    pair = encode_pair(tiny, "x", "y")
    assert tiny.convert_ids_to_tokens(list(pair.continuation_ids)) == ["y"]


def test_exactly_one_bos_on_every_path_p05():
    tiny = word_tokenizer(["a", "b"], adds_bos=True)
    assert encode_text(tiny, "ab") == [0, 2, 3]
    assert encode_text(tiny, "<s>ab") == [0, 2, 3]
    assert encode_pair(tiny, "a", "b") == request([0, 2], [3])
    assert encode_pair(tiny, "<s>a", "b") == request([0, 2], [3])
    assert encode_pair(tiny, "", "ab") == request([0], [2, 3])
    assert encode_pair(tiny, "", "<s>ab") == request([0], [2, 3])
    for text in ("ab", "<s>ab"):
        assert rolling_windows(encode_document(tiny, text), 0, 8) == [request([0], [2, 3])]


def test_a_tokenizer_that_adds_no_bos_gets_none_p05(tokenizer):
    assert prefix_token_id(tokenizer) == tokenizer.bos_token_id == 1
    assert encode_pair(tokenizer, "Hello", " world").context_ids == (19556,)
    assert encode_document(tokenizer, "Hello") == [19556]


def test_an_empty_context_becomes_the_prefix_token_p06(tokenizer):
    hello = tuple(tokenizer.encode("Hello"))
    assert encode_pair(tokenizer, "", "Hello") == request([1], hello)
    assert encode_pair(tokenizer, "", "") == request([1], [])
    spaces = encode_pair(tokenizer, " \n", "Hello")  # only white space: it moves, and nothing stays behind
    assert spaces.context_ids == (1,)
    assert tokenizer.decode(list(spaces.continuation_ids)) == " \nHello"


def test_an_empty_continuation_is_a_request_for_nothing(tokenizer):
    pair = encode_pair_flagged(tokenizer, "Hello", "")
    assert pair.request == request([19556], [])
    assert pair.split == "joint"


def test_without_bos_the_prefix_is_eos_and_without_either_a_sentence():
    tiny = word_tokenizer(["a"])
    tiny.bos_token = None
    assert prefix_token_id(tiny) == 1
    tiny.eos_token = None
    with pytest.raises(InputError, match="neither a BOS nor an EOS"):
        prefix_token_id(tiny)


def test_many_pairs_are_what_each_is_alone(tokenizer):
    pairs = [("", "a b"), ("The sky is ", "blue"), ("The sky is", " red"), ("", ""), ("The sky is", " red"), ("x", "")]
    assert encode_pairs(tokenizer, pairs) == [encode_pair_flagged(tokenizer, *pair) for pair in pairs]
    assert encode_pairs(tokenizer, []) == []


@pytest.mark.data
def test_real_prompts_are_cut_as_lm_eval_cuts_them(tokenizer, shared_dir):
    import json

    oracle = json.loads((shared_dir / "oracle" / "arc.json").read_text())
    pairs = [tuple(args) for sample in oracle["samples"]["arc_easy"][:50] for args in sample["args"]]
    for (context, continuation), found in zip(pairs, encode_pairs(tokenizer, pairs), strict=True):
        whole = tokenizer.encode(context + continuation)
        head = tokenizer.encode(context)
        assert found.request == request(head, whole[len(head) :])
        assert found.split == "joint"


# -- truncation ---------------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_fit_keeps_what_hflm_keeps_p08(num_context, num_continuation, max_length):
    ids = tuple(range(num_context + num_continuation))
    whole = request(ids[:num_context], ids[num_context:])
    fitted, num_truncated = fit(whole, max_length)
    kept = fitted.context_ids + fitted.continuation_ids
    assert kept == ids[-(max_length + 1) :]
    assert num_truncated == len(ids) - len(kept)
    assert len(fitted.context_ids) >= 1
    if num_continuation <= max_length:
        assert fitted.continuation_ids == whole.continuation_ids
    else:
        assert fitted.continuation_ids == whole.continuation_ids[-max_length:]


def test_an_exact_fit_loses_nothing():
    whole = request(range(5), range(5, 9))
    assert fit(whole, 8) == (whole, 0)
    assert fit(whole, 7)[1] == 1


def test_a_continuation_longer_than_the_model_is_counted_p09():
    fitted, num_truncated = fit(request([1, 2], [3, 4, 5, 6, 7, 8]), 4)
    assert fitted == request([4], [5, 6, 7, 8])
    assert num_truncated == 3


def test_a_model_of_no_length_is_refused():
    with pytest.raises(InputError, match="max_length is 0"):
        fit(request([1], [2]), 0)
    with pytest.raises(InputError, match="max_length is 0"):
        rolling_windows([1], 1, 0)


# -- rolling windows ----------------------------------------------------------------------------------------------


def test_gold_windows_p15():
    """Written out by hand: disjoint, the prefix on the first only, the last conditioned on a full window's rest."""
    assert rolling_windows([10, 11, 12, 13, 14, 15, 16, 17, 18, 19], 100, 4) == [
        request([100], [10, 11, 12, 13]),
        request([13], [14, 15, 16, 17]),
        request([15, 16, 17], [18, 19]),
    ]
    assert rolling_windows([10, 11], 100, 4) == [request([100], [10, 11])]
    assert rolling_windows([10, 11], 100, 1) == [request([100], [10]), request([10], [11])]
    assert rolling_windows([], 100, 4) == []


@given(st.integers(0, 40), st.integers(1, 12))
def test_windows_are_lm_evals_own_and_score_every_token_once_p17(num_tokens, max_length):
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    ids = list(range(1, num_tokens + 1))
    expected = [
        request(*make_disjoint_window(pair))
        for pair in get_rolling_token_windows(ids, prefix_token=0, max_seq_len=max_length, context_len=1)
    ]
    windows = rolling_windows(ids, 0, max_length)
    assert windows == expected
    assert [token for window in windows for token in window.continuation_ids] == ids
    assert all(len(window.context_ids) + len(window.continuation_ids) <= max_length + 1 for window in windows)


def test_the_default_tokenizer_is_loaded_by_reference():
    assert prefix_token_id(load_tokenizer("smollm2-135m-instruct")) == 1
