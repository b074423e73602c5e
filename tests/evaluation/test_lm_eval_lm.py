"""The LM against lm-eval's own HFLM on the same tiny weights, and the conventions both must share."""

import logging
import math
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.models.huggingface import HFLM
from transformers import AutoTokenizer, LlamaForCausalLM

from llm.errors import InputError
from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
from llm.models import load_model

PAIRS = [
    ("The quick brown fox", " jumps over"),
    ("The quick brown fox", " is lazy"),
    ("The quick brown fox", " jumps over"),
    ("Question: what is water?\nAnswer:", " a liquid"),
    ("Question: what is water?\nAnswer:", " A"),
    ("trailing space ", "moves over"),
    ("trailing newline\n\n", "moves too"),
    ("", "Hello there"),
    ("", " a"),
    ("naïve café — 日本語", " ünïcödé 🙂"),
    ("x" * 300, " a long context"),
    ("word " * 120, "exactly the last of it"),
]
DOCUMENTS = [
    "short",
    "The quick brown fox jumps over the lazy dog. " * 40,
    "日本語 and accents é" * 5,
    "a",
]


def instances(verb: str, arguments: list[tuple]) -> list[Instance]:
    return [
        Instance(request_type=verb, doc={}, arguments=args, idx=i, metadata=("probe", i, 1))
        for i, args in enumerate(arguments)
    ]


@pytest.fixture(scope="module")
def decoder(tiny_checkpoint: Path):
    return load_model(str(tiny_checkpoint), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def ours(decoder) -> LlamaLmEvalLM:
    return LlamaLmEvalLM(*decoder, name="tiny")


@pytest.fixture(scope="module")
def stock(tiny_checkpoint: Path) -> HFLM:
    model = LlamaForCausalLM.from_pretrained(tiny_checkpoint, dtype=torch.float32)
    return HFLM(
        pretrained=model,
        tokenizer=AutoTokenizer.from_pretrained(tiny_checkpoint),
        batch_size=4,
        device="cpu",
        max_length=256,
    )


class TestAgainstHFLM:
    def test_loglikelihood(self, ours, stock):
        requests = instances("loglikelihood", PAIRS)
        mine, theirs = ours.loglikelihood(requests), stock.loglikelihood(requests, disable_tqdm=True)
        for pair, (ll, greedy), (stock_ll, stock_greedy) in zip(PAIRS, mine, theirs, strict=True):
            assert ll == pytest.approx(stock_ll, abs=1e-4), pair
            assert greedy == stock_greedy, pair
            assert ll <= 0
            assert isinstance(greedy, bool)

    def test_greedy_continuation_is_seen_and_its_alteration_too(self, ours, stock):
        """P12."""
        (text,) = stock.generate_until(instances("generate_until", [("A. B. C.", {"until": [], "max_gen_toks": 4})]))
        requests = instances("loglikelihood", [("A. B. C.", text), ("A. B. C.", text[:-1] + "Z")])
        flags = [greedy for _, greedy in ours.loglikelihood(requests)]
        assert flags == [greedy for _, greedy in stock.loglikelihood(requests)]
        assert flags[1] is False

    @pytest.mark.parametrize("max_length", [256, 16])
    def test_rolling_sums(self, decoder, stock, max_length):
        requests = instances("loglikelihood_rolling", [(text,) for text in DOCUMENTS])
        stock._max_length = max_length
        try:
            theirs = stock.loglikelihood_rolling(requests, disable_tqdm=True)
        finally:
            stock._max_length = 256
        mine = LlamaLmEvalLM(*decoder, max_length=max_length).loglikelihood_rolling(requests)
        assert mine == pytest.approx(theirs, abs=1e-3, rel=1e-6)

    def test_truncation_by_max_length(self, decoder, stock):
        requests = instances("loglikelihood", PAIRS)
        stock._max_length = 24
        try:
            theirs = stock.loglikelihood(requests, disable_tqdm=True)
        finally:
            stock._max_length = 256
        mine = LlamaLmEvalLM(*decoder, max_length=24).loglikelihood(requests)
        assert [ll for ll, _ in mine] == pytest.approx([ll for ll, _ in theirs], abs=1e-4)

    @pytest.mark.parametrize(
        "gen_kwargs",
        [
            {"until": ["\n"], "max_gen_toks": 12},
            {"until": "e", "max_gen_toks": 12},
            {"until": ["qu", "zz"], "max_gen_toks": 12, "do_sample": False, "temperature": 0.0},
            {"max_new_tokens": 7},
            {"until": ["<|im_end|>"], "max_gen_toks": 12},
            {"until": [], "max_gen_toks": 40},
        ],
    )
    def test_greedy_generation(self, ours, stock, gen_kwargs):
        prompts = ["The quick", "Question: what is water?\nAnswer:", "A. B.", "word " * 100]
        requests = instances("generate_until", [(prompt, dict(gen_kwargs)) for prompt in prompts])
        theirs = [
            stock.generate_until([request], disable_tqdm=True)[0] for request in requests
        ]  # alone: HFLM's left padding moves nothing then
        assert ours.generate_until(requests) == theirs


class TestScores:
    def test_batch_size_and_order_change_nothing(self, decoder):
        """P10: not even a bit."""
        requests = instances("loglikelihood", PAIRS)
        first = LlamaLmEvalLM(*decoder, batch_size=1).loglikelihood(requests)
        for size in (4, 7, "auto", "auto:4"):
            assert LlamaLmEvalLM(*decoder, batch_size=size).loglikelihood(requests) == first
        backwards = LlamaLmEvalLM(*decoder).loglikelihood(requests[::-1])
        assert backwards[::-1] == first

    def test_white_space_belongs_to_the_continuation(self, ours):
        """P02: the same ids, so the same score to the bit."""
        trace = []
        lm = LlamaLmEvalLM(ours.model, ours.tokenizer, trace=trace)
        (one, _), (two, _) = lm.loglikelihood(
            instances("loglikelihood", [("The sky is ", "blue"), ("The sky is", " blue")])
        )
        assert one == two
        assert trace[0].request == trace[1].request

    def test_continuation_longer_than_the_context_is_flagged(self, decoder, caplog):
        """P09: counted for its task, said once with the number."""
        trace = []
        lm = LlamaLmEvalLM(*decoder, max_length=4, trace=trace)
        with caplog.at_level(logging.WARNING):
            lm.loglikelihood(instances("loglikelihood", [("a b c", " d e f g h i j"), ("a", " b")]))
        assert trace[0].num_truncated > 0
        assert trace[1].num_truncated == 0
        assert lm.get_model_info()["num_truncated_requests"] == {"probe": 1}
        assert [record.message for record in caplog.records if "1 of 2 requests" in record.message]

    def test_empty_continuation_is_defined(self, ours):
        """P06."""
        assert ours.loglikelihood(instances("loglikelihood", [("", ""), ("text", "")])) == [(0.0, True), (0.0, True)]

    def test_empty_context_is_the_prefix_token(self, ours):
        """P06: BOS where there is one."""
        trace = []
        lm = LlamaLmEvalLM(ours.model, ours.tokenizer, trace=trace)
        lm.loglikelihood(instances("loglikelihood", [("", "Hello")]))
        assert trace[0].request.context_ids == (ours.tokenizer.bos_token_id,)
        assert lm.get_model_info()["prefix_token_id"] == ours.tokenizer.bos_token_id

    def test_trace_tells_what_was_scored_to_the_token(self, decoder):
        trace = []
        lm = LlamaLmEvalLM(*decoder, trace=trace)
        results = lm.loglikelihood(instances("loglikelihood", PAIRS))
        assert [(record.context, record.continuation) for record in trace] == PAIRS
        assert [record.doc_id for record in trace] == list(range(len(PAIRS)))
        for record, result in zip(trace, results, strict=True):
            assert result[0] == pytest.approx(math.fsum(record.scores.logprobs), abs=1e-12)
            assert result.num_tokens == len(record.request.continuation_ids) == len(record.scores.logprobs)

    def test_rolling_scores_every_token_once(self, decoder):
        """P17: as many tokens as the document has, in windows of max_length."""
        trace = []
        lm = LlamaLmEvalLM(*decoder, max_length=16, trace=trace)
        lm.loglikelihood_rolling(instances("loglikelihood_rolling", [(DOCUMENTS[1],)]))
        scored = [token for record in trace for token in record.request.continuation_ids]
        assert scored == lm.tok_encode(DOCUMENTS[1])
        assert max(len(record.request.continuation_ids) for record in trace) == 16

    def test_a_given_scorer_is_used(self, decoder):
        class Counting:
            def __init__(self, inner):
                self.inner, self.seen = inner, []

            def score(self, requests, *, top_k=0):
                self.seen.extend(requests)
                return self.inner.score(requests, top_k=top_k)

        from llm.scoring.plain import make_scorer

        scorer = Counting(make_scorer(decoder[0]))
        lm = LlamaLmEvalLM(*decoder, scorer=scorer)
        expected = LlamaLmEvalLM(*decoder).loglikelihood(instances("loglikelihood", PAIRS))
        assert lm.loglikelihood(instances("loglikelihood", PAIRS)) == expected
        assert len(scorer.seen) == len(PAIRS)

    def test_a_foreign_module_scores_as_well(self, tiny_checkpoint, ours):
        """Any module from ids to logits will do."""
        model = LlamaForCausalLM.from_pretrained(tiny_checkpoint, dtype=torch.float32)
        lm = LlamaLmEvalLM(model, ours.tokenizer)
        requests = instances("loglikelihood", PAIRS)
        mine = [ll for ll, _ in ours.loglikelihood(requests)]
        assert [ll for ll, _ in lm.loglikelihood(requests)] == pytest.approx(mine, abs=1e-4)
        assert lm.max_length == 256

    def test_token_pairs_that_are_ids_already(self, ours):
        (expected,) = ours.loglikelihood(instances("loglikelihood", [PAIRS[0]]))
        context, continuation = PAIRS[0]
        ids = ours.tok_encode(context), ours.tok_encode(context + continuation)
        (found,) = ours._loglikelihood_tokens([((context, continuation), ids[0], ids[1][len(ids[0]) :])])
        assert found == expected


class TestGeneration:
    def test_max_gen_toks_beyond_the_context_is_clamped(self, decoder):
        """P44: the prompt is never empty; then 5 tokens at most."""
        lm = LlamaLmEvalLM(*decoder, max_length=32)
        prompt = "The quick brown fox jumps over"
        request = lm._generation_request(0, prompt, {"max_gen_toks": 64})
        assert list(request.prompt_ids) == lm.tok_encode(prompt)
        assert len(request.prompt_ids) + request.max_new_tokens == 32
        long = lm._generation_request(0, "word " * 50, {"max_gen_toks": 32})
        assert (len(long.prompt_ids), long.max_new_tokens) == (31, 1)
        assert lm._generation_request(0, prompt, {"max_gen_toks": 5}).max_new_tokens == 5

    def test_a_stop_that_is_a_special_token_stops(self, ours):
        """P43: decoding strips it, so it must stop by its id."""
        request = ours._generation_request(0, "Hi", {"until": ["<|im_start|>"]})
        ids = {ours.tokenizer.convert_tokens_to_ids("<|im_start|>"), ours.tokenizer.eos_token_id}
        assert request.stop_token_ids == ids
        assert "<|im_end|>" in request.stop

    def test_one_stop_string_is_not_its_letters(self, ours):
        """P42."""
        assert ours._generation_request(0, "Hi", {"until": "stop"}).stop[0] == "stop"

    def test_defaults(self, ours):
        request = ours._generation_request(0, "Hi", {})
        assert (request.temperature, request.seed, request.skip_special_tokens) == (0.0, None, True)
        assert (
            LlamaLmEvalLM(ours.model, ours.tokenizer, max_length=1024)._generation_request(0, "Hi", {}).max_new_tokens
            == 256
        )

    def test_sampling_is_seeded_and_repeats_differ(self, ours):
        settings = {"do_sample": True, "temperature": 0.9, "max_gen_toks": 20, "until": []}
        requests = instances("generate_until", [("The", dict(settings))] * 3)
        torch.manual_seed(1234)
        first = ours.generate_until(requests)
        torch.manual_seed(1234)
        assert ours.generate_until(requests) == first
        assert len(set(first)) > 1

    @pytest.mark.parametrize(
        ("gen_kwargs", "named"),
        [
            ({"num_beams": 4}, "'num_beams'"),
            ({"until": 3}, "until is 3"),
            ({"max_gen_toks": 0}, "max_gen_toks is 0"),
            ({"temperature": -1}, "temperature is -1"),
        ],
    )
    def test_settings_of_another_kind_are_named(self, ours, gen_kwargs, named):
        with pytest.raises(InputError, match=named):
            ours.generate_until(instances("generate_until", [("Hi", gen_kwargs)]))


class TestHarnessConventions:
    def test_progress_can_be_silenced(self, ours, capsys):
        ours.loglikelihood(instances("loglikelihood", PAIRS[:1]), disable_tqdm=True)
        ours.loglikelihood_rolling(instances("loglikelihood_rolling", [("a",)]), disable_tqdm=True)
        ours.generate_until(instances("generate_until", [("a", {"max_gen_toks": 1})]), disable_tqdm=True)
        assert capsys.readouterr().err == ""
        ours.loglikelihood(instances("loglikelihood", PAIRS[:1]))
        assert "Running loglikelihood requests" in capsys.readouterr().err

    def test_cache_answers_without_the_model(self, decoder, tmp_path):
        class Refusing:
            def score(self, requests, *, top_k=0):
                raise AssertionError("the model was asked")

        asked = {
            "loglikelihood": instances("loglikelihood", PAIRS[:4]),
            "loglikelihood_rolling": instances("loglikelihood_rolling", [(DOCUMENTS[0],)]),
            "generate_until": instances("generate_until", [("The", {"until": ["\n"], "max_gen_toks": 3})]),
        }
        cache = str(tmp_path / "cache.db")
        filled = CachingLM(LlamaLmEvalLM(*decoder), cache)
        first = {verb: getattr(filled, verb)(requests) for verb, requests in asked.items()}
        filled.dbdict.close()
        again = CachingLM(LlamaLmEvalLM(decoder[0], decoder[1], scorer=Refusing()), cache)
        assert {verb: getattr(again, verb)(requests) for verb, requests in asked.items()} == first
        assert again.loglikelihood(asked["loglikelihood"])[0].num_tokens > 0

    def test_every_verb_fills_the_hook(self, decoder):
        class Hook:
            def __init__(self):
                self.seen = []

            def add_partial(self, attr, req, res):
                self.seen.append((attr, tuple(req)))

        lm = LlamaLmEvalLM(*decoder)
        lm.set_cache_hook(hook := Hook())
        kwargs = {"until": ["\n"], "max_gen_toks": 1}
        lm.loglikelihood(instances("loglikelihood", PAIRS[:2]))
        lm.loglikelihood_rolling(instances("loglikelihood_rolling", [("a",)]))
        lm.generate_until(instances("generate_until", [("a", kwargs)]))
        assert sorted(hook.seen[:2]) == sorted(("loglikelihood", pair) for pair in PAIRS[:2])
        assert hook.seen[2:] == [
            ("loglikelihood_rolling", ("a",)),
            ("generate_until", ("a", kwargs)),
        ]

    def test_an_interrupted_run_has_cached_what_it_scored(self, decoder, tmp_path):
        class Breaking:
            def score(self, requests, *, top_k=0):
                if self.calls:
                    raise KeyboardInterrupt
                self.calls += 1
                return LlamaLmEvalLM(*decoder)._scorer.score(requests)

        scorer = Breaking()
        scorer.calls = 0
        requests = instances("loglikelihood", [("The quick", f" fox {i}") for i in range(100)])
        broken = CachingLM(LlamaLmEvalLM(*decoder, scorer=scorer), str(tmp_path / "cache.db"))
        with pytest.raises(KeyboardInterrupt):
            broken.loglikelihood(requests)
        assert 0 < len(broken.dbdict) < 100

    def test_what_lm_eval_reads(self, ours):
        assert (ours.rank, ours.world_size) == (0, 1)
        assert ours.eot_token_id == ours.tokenizer.eos_token_id
        assert (ours.max_length, ours.max_gen_toks) == (256, 256)
        assert ours.tokenizer_name
        assert "/" not in ours.tokenizer_name
        assert ours.tok_decode(ours.tok_encode("The quick fox")) == "The quick fox"

    def test_chat_template_is_the_tokenizers(self, decoder, stock):
        model, tokenizer = decoder
        template = (
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )
        lm = LlamaLmEvalLM(model, tokenizer)
        history = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
        tokenizer.chat_template = stock.tokenizer.chat_template = template
        try:
            assert lm.apply_chat_template(history) == stock.apply_chat_template(history)
            prefilled = [*history, {"role": "assistant", "content": "Answer:"}]
            text = lm.apply_chat_template(prefilled, add_generation_prompt=False)
            assert text == stock.apply_chat_template(prefilled, add_generation_prompt=False)
            assert text.endswith("Answer:")
            assert lm.chat_template(True) == template
            assert lm.tok_encode(lm.apply_chat_template(history)).count(tokenizer.bos_token_id) == 3
        finally:
            tokenizer.chat_template = stock.tokenizer.chat_template = None

    def test_a_template_without_system_role_gets_none(self, decoder, caplog):
        model, tokenizer = decoder
        tokenizer.chat_template = (
            "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
            "{{ m['content'] }};{% endfor %}"
        )
        try:
            history = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
            assert LlamaLmEvalLM(model, tokenizer).apply_chat_template(history) == "U;"
        finally:
            tokenizer.chat_template = None
        assert "takes no system message" in caplog.text

    def test_no_chat_template_is_one_sentence(self, ours):
        with pytest.raises(InputError, match="tiny has no chat template"):
            ours.apply_chat_template([{"role": "user", "content": "U"}])

    @pytest.mark.parametrize("value", [0, -3, "many", "0"])
    def test_batch_size_is_checked(self, decoder, value):
        with pytest.raises(InputError, match="batch_size is"):
            LlamaLmEvalLM(*decoder, batch_size=value)


class TestModelArguments:
    def test_from_a_string(self, tiny_checkpoint):
        lm = LlamaLmEvalLM.create_from_arg_string(
            f"model={tiny_checkpoint},dtype=float32,max_length=64",
            {"batch_size": "auto", "max_batch_size": None, "device": "cpu"},
        )
        assert (lm.max_length, lm.name, lm.device.type) == (64, str(tiny_checkpoint), "cpu")

    def test_pretrained_is_the_same_argument(self, tiny_checkpoint, ours):
        lm = LlamaLmEvalLM.create_from_arg_obj({"pretrained": str(tiny_checkpoint), "dtype": "float32"})
        requests = instances("loglikelihood", PAIRS[:3])
        assert lm.loglikelihood(requests) == ours.loglikelihood(requests)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
    def test_an_unavailable_device_falls_back_with_a_notice(self, tiny_checkpoint):
        with pytest.warns(UserWarning, match="cuda:0"):
            lm = LlamaLmEvalLM.create_from_arg_obj({"model": str(tiny_checkpoint)}, {"device": "cuda:0"})
        assert lm.device.type == "cpu"

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ("parallelize=True", "'parallelize'"),
            ("dtype=int4", "dtype is 'int4'"),
            ("logits_dtype=auto", "logits_dtype is 'auto'"),
            ("max_length=-1", "max_length is -1"),
            ("model=a,pretrained=b", "model=a and pretrained=b"),
        ],
    )
    def test_others_are_refused_by_name(self, arguments, named):
        with pytest.raises(InputError, match=named):
            LlamaLmEvalLM.create_from_arg_string(arguments)
