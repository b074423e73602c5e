"""Generation: every output is its solo run's, stops are matched on text, settings belong to one request."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from llm.errors import InputError
from llm.models import load_model
from llm.models.decoder import DecoderModel
from llm.scoring.decoding import PACK_TOKENS, DecodingBatch, steady_rows
from llm.scoring.generation import generate
from llm.scoring.requests import Generation, GenerationRequest
from llm.scoring.rows import GenerationError
from llm.scoring.stops import Vocabulary

QUESTIONS = [
    "Which factor will most likely cause a person to develop a fever?",
    "Lichens are symbiotic organisms made of green algae and fungi. What do the green algae supply?",
    "When a switch is used in an electrical circuit, the switch can",
    "Which of the following is an example of an assistive device?",
    "Rocks are classified as igneous, metamorphic, or sedimentary according to",
]


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint):
    """(model, tokenizer) of the tiny checkpoint, float32."""
    return load_model(str(tiny_checkpoint), dtype="float32", device="cpu")


class Parrot(nn.Module):
    """Says the same tokens after any prompt of a given length: a model without layers to look into."""

    def __init__(self, script: list[int], vocab_size: int, prompt_length: int) -> None:
        super().__init__()
        self.script, self.prompt_length = script, prompt_length
        self.unit = nn.Parameter(torch.eye(vocab_size), requires_grad=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        said = input_ids.shape[1] - self.prompt_length
        following = torch.tensor(self.script)[max(0, said) : said + 1].expand(input_ids.shape)
        return 20 * self.unit[following]


class Whole(nn.Module):
    """The same decoder, known only by its forward pass."""

    def __init__(self, model: DecoderModel) -> None:
        super().__init__()
        self.model = model
        self.max_length = model.max_length

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids)


def random_ids(length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, 300, (length,), generator=generator).tolist())


def mixed_requests() -> list[GenerationRequest]:
    """Unlike lengths and settings; beginnings shared within and beyond a tile, one prompt twice."""
    common = random_ids(150, seed=99)
    prompts = [random_ids(length, seed) for seed, length in enumerate([1, 2, 5, 17, 63, 64, 65, 100, 127, 128, 129])]
    prompts += [common[:cut] + random_ids(7, seed=cut) for cut in (3, 64, 70, 130, 150)] + [common, common]
    return [
        GenerationRequest(
            prompt_ids=prompt,
            max_new_tokens=3 + 11 * (index % 8),
            temperature=0.9 if index % 3 == 1 else 0.0,
            top_p=0.9 if index % 2 else 1.0,
            top_k=5 if index % 5 == 4 else 0,
            seed=index,
            num_top_logprobs=index % 4,
        )
        for index, prompt in enumerate(prompts)
    ]


def say(script_text: str, tokenizer, *, extra: list[int] | None = None, prompt: str = "Question:", **settings):
    """What is generated when a model says these words, then `extra` tokens, then a lot of full stops."""
    prompt_ids = tuple(tokenizer(prompt, add_special_tokens=False).input_ids)
    script = tokenizer(script_text, add_special_tokens=False).input_ids + (extra or [])
    dots = tokenizer(".", add_special_tokens=False).input_ids * 80
    parrot = Parrot(script + dots, len(tokenizer), len(prompt_ids))
    request = GenerationRequest(prompt_ids=prompt_ids, max_new_tokens=settings.pop("max_new_tokens", 80), **settings)
    return generate(parrot, tokenizer, [request])[0]


# -- the same in any company ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "num_threads"), [("float32", 1), ("float32", 2), ("bfloat16", 2)])
def test_p10_p37_p45_company_changes_nothing(tiny_checkpoint, dtype, num_threads):
    model, tokenizer = load_model(str(tiny_checkpoint), dtype=dtype, device="cpu")
    requests = mixed_requests()
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        solo = [generate(model, tokenizer, [request])[0] for request in requests]
        together = generate(model, tokenizer, requests)
        few_at_a_time = generate(model, tokenizer, requests[::-1], batch_size=5)[::-1]
    finally:
        torch.set_num_threads(before)
    assert together == solo
    assert few_at_a_time == solo


def test_default_model_solo_equals_batch_and_forward(default_model):
    model, tokenizer = default_model
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]
    requests = [
        GenerationRequest(prompt_ids=tuple(ids), max_new_tokens=3 + index, num_top_logprobs=2)
        for index, ids in enumerate(chats)
    ]
    together = generate(model, tokenizer, requests)
    assert generate(model, tokenizer, [requests[3]]) == [together[3]]
    by_forward = generate(Whole(model), tokenizer, [requests[2]])[0]
    assert by_forward.token_ids == together[2].token_ids
    assert by_forward.logprobs == pytest.approx(together[2].logprobs, abs=2e-4)


def test_greedy_tokens_are_those_of_transformers(tiny, tiny_checkpoint):
    from transformers import AutoModelForCausalLM

    model, tokenizer = tiny
    twin = AutoModelForCausalLM.from_pretrained(tiny_checkpoint)
    prompts = [random_ids(length, seed) for seed, length in enumerate([4, 40, 90])]
    requests = [GenerationRequest(prompt_ids=prompt, max_new_tokens=40) for prompt in prompts]
    for request, found in zip(requests, generate(model, tokenizer, requests), strict=True):
        ids = torch.tensor([request.prompt_ids])
        wanted = twin.generate(ids, max_new_tokens=40, do_sample=False, eos_token_id=None)[0, ids.shape[1] :]
        assert list(found.token_ids) == wanted.tolist()
        logprobs = twin(torch.tensor([[*request.prompt_ids, *found.token_ids]])).logits[0].log_softmax(-1)
        rows = torch.arange(ids.shape[1] - 1, ids.shape[1] + 39)
        assert list(found.logprobs) == pytest.approx(logprobs[rows, wanted].tolist(), abs=1e-5)


def test_a_module_without_layers_decodes_by_whole_passes(tiny):
    model, tokenizer = tiny
    requests = mixed_requests()[:9]
    layered, whole = generate(model, tokenizer, requests), generate(Whole(model), tokenizer, requests)
    for one, other in zip(layered, whole, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert [len(top) for top in one.top] == [len(top) for top in other.top]


@pytest.mark.parametrize("window", [1, 40, 64])
def test_p54_a_sliding_window_is_kept_while_decoding(tiny, window):
    model, tokenizer = tiny
    windowed = DecoderModel(dataclasses.replace(model.config, sliding_window=window))
    windowed.load_state_dict(model.state_dict())
    prompts = [random_ids(length, seed=length) for length in (20, 70, 150)]
    requests = [GenerationRequest(prompt_ids=prompt, max_new_tokens=60) for prompt in prompts]
    found = generate(windowed, tokenizer, requests)
    wanted = generate(Whole(windowed), tokenizer, requests)
    for one, other, full in zip(found, wanted, generate(model, tokenizer, requests), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert one.logprobs != full.logprobs
    assert generate(windowed, tokenizer, [requests[1]]) == [found[1]]


def test_a_shared_beginning_is_computed_once(tiny):
    model, tokenizer = tiny
    common = random_ids(190, seed=5)
    prompts = [common + random_ids(4, seed) for seed in range(6)]
    seen: list[int] = []

    class Counting(Whole):
        config, device, dtype = model.config, model.device, model.dtype

        def hidden_states(self, input_ids, positions, attend):
            seen.append(len(input_ids))
            return self.model.hidden_states(input_ids, positions, attend)

        def project(self, hidden):
            return self.model.project(hidden)

    requests = [GenerationRequest(prompt_ids=prompt, max_new_tokens=1) for prompt in prompts]
    together = generate(Counting(model), tokenizer, requests)
    assert sum(seen) == steady_rows(190 + 6 * 4, model.config.intermediate_size, torch.get_num_threads())
    seen.clear()
    one_by_one = generate(Counting(model), tokenizer, requests, batch_size=1)
    assert sum(seen) <= 208 + 5 * 16
    assert one_by_one == together


def test_prompts_longer_than_a_pack(tiny):
    model, tokenizer = tiny
    long = DecoderModel(dataclasses.replace(model.config, max_position_embeddings=4 * PACK_TOKENS))
    long.load_state_dict(model.state_dict())
    prompt = random_ids(PACK_TOKENS + 700, seed=1)
    requests = [
        GenerationRequest(prompt_ids=prompt, max_new_tokens=3),
        GenerationRequest(prompt_ids=prompt[:-5] + random_ids(5, seed=2), max_new_tokens=3),
        GenerationRequest(prompt_ids=prompt[:30], max_new_tokens=3),
    ]
    together = generate(long, tokenizer, requests)
    assert together == [generate(long, tokenizer, [request])[0] for request in requests]
    assert together[0].logprobs == pytest.approx(generate(Whole(long), tokenizer, requests[:1])[0].logprobs, abs=1e-4)


@pytest.mark.parametrize(
    ("rows", "threads", "wanted"), [(1, 1, 16), (17, 2, 32), (33, 2, 48), (33, 4, 48), (60, 4, 80)]
)
def test_rows_are_filled_up_so_that_no_share_ends_in_a_row(rows, threads, wanted):
    assert steady_rows(rows, 1536, threads) == wanted


# -- what ends a generation ----------------------------------------------------------------------------------------


def test_p42_stop_strings_are_found_in_text_wherever_tokens_end(tiny):
    model, tokenizer = tiny
    request = GenerationRequest(prompt_ids=random_ids(12, seed=3), max_new_tokens=24)
    free = generate(model, tokenizer, [request])[0]
    stops = [
        free.text[start : start + 3]
        for start in range(0, len(free.text) - 3)
        if "\ufffd" not in free.text[start : start + 4]
    ]
    assert len(stops) > 10
    found = generate(model, tokenizer, [dataclasses.replace(request, stop=(stop, "never said")) for stop in stops])
    for stop, one in zip(stops, found, strict=True):
        assert one.text == free.text[: free.text.find(stop)]
        assert one.finish_reason == "stop"
        assert one.token_ids == free.token_ids[: len(one.token_ids)]


def test_p42_the_earliest_match_wins(tiny):
    _, tokenizer = tiny
    found = say(" a liquid. The lazy dog", tokenizer, stop=("lazy", "liquid", "quid", "dog"))
    assert found.text == " a "
    assert found.finish_reason == "stop"
    assert say(" no such thing", tokenizer, stop=("",), max_new_tokens=4).finish_reason == "length"


@pytest.mark.parametrize("skip", [True, False])
def test_p43_a_special_token_named_as_stop_string_stops(tiny, skip):
    _, tokenizer = tiny
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    after = tokenizer(" more", add_special_tokens=False).input_ids
    settings = {"stop": ("<|im_end|>",), "skip_special_tokens": skip}
    found = say(" water", tokenizer, extra=[end, *after], **settings)
    assert (found.text, found.finish_reason, found.token_ids[-1]) == (" water", "stop", end)
    other = tokenizer.convert_tokens_to_ids("<|im_start|>")
    found = say(" wa", tokenizer, extra=[other, *after, end, *after], **settings)
    assert found.text == (" wa more" if skip else " wa<|im_start|> more")
    spanning = say(" wa", tokenizer, extra=[other, *after], stop=("a<|im_start|> m",), skip_special_tokens=skip)
    assert spanning.text == " w"


def test_stop_token_ids_end_a_row_and_only_words_among_them_are_text(tiny):
    """As transformers and vLLM have it: the text of an end token that is no special one belongs to the answer."""
    _, tokenizer = tiny
    dog = tokenizer("g", add_special_tokens=False).input_ids[0]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for last, text in ((dog, " dog"), (end, " do")):
        found = say(" do", tokenizer, extra=[last], stop_token_ids=frozenset([last]), skip_special_tokens=False)
        assert (found.text, found.finish_reason, found.token_ids[-1]) == (text, "stop", last)
        assert len(found.logprobs) == len(found.token_ids)
    cut = say(" do", tokenizer, extra=[dog], stop_token_ids=frozenset([dog]), stop=("og",))
    assert (cut.text, cut.finish_reason) == (" d", "stop")


@pytest.mark.parametrize(
    ("max_new_tokens", "wanted", "reason"), [(64, 12, "context"), (5, 5, "length"), (0, 0, "length")]
)
def test_p44_new_tokens_are_clamped_and_the_prompt_is_not(tiny, max_new_tokens, wanted, reason):
    model, tokenizer = tiny
    request = GenerationRequest(prompt_ids=random_ids(20, seed=0), max_new_tokens=max_new_tokens)
    for engine in (model, Whole(model)):
        found = generate(engine, tokenizer, [request], max_length=32)[0]
        assert (len(found.token_ids), found.finish_reason) == (wanted, reason)


def test_p35_the_model_length_ends_a_generation(tiny):
    model, tokenizer = tiny
    prompts = [random_ids(length, seed=0) for length in (model.max_length, model.max_length - 1)]
    requests = [GenerationRequest(prompt_ids=prompt, max_new_tokens=9) for prompt in prompts]
    found = generate(model, tokenizer, requests)
    assert [(len(one.token_ids), one.finish_reason) for one in found] == [(0, "context"), (1, "context")]


# -- text ----------------------------------------------------------------------------------------------------------


def test_p46_a_leading_space_is_kept(tiny):
    _, tokenizer = tiny
    assert say(" water", tokenizer, max_new_tokens=len(tokenizer(" water").input_ids)).text == " water"


def test_bytes_that_are_no_character_yet(tiny):
    _, tokenizer = tiny
    ids = tokenizer("é€😀", add_special_tokens=False).input_ids
    assert len(ids) > 3, "the tiny tokenizer writes these as bytes"
    whole = say("é€😀", tokenizer, stop=("never",), max_new_tokens=len(ids))
    assert whole.text == "é€😀"
    cut = say("é€😀", tokenizer, stop=("never",), max_new_tokens=len(ids) - 1)
    assert cut.text == tokenizer.decode(ids[:-1]) == "é€\ufffd"
    assert say("é€😀", tokenizer, stop=("😀",)).text == "é€"


# -- choosing ------------------------------------------------------------------------------------------------------


def test_p37_a_seed_draws_the_same_in_any_company_and_seeds_differ(tiny):
    model, tokenizer = tiny
    prompt = random_ids(30, seed=8)
    requests = [
        GenerationRequest(prompt_ids=prompt, max_new_tokens=20, temperature=1.0, seed=seed) for seed in (1, 2, 1, -3)
    ]
    found = generate(model, tokenizer, requests)
    assert found[0] == found[2]
    assert len({one.token_ids for one in found}) == 3
    assert generate(model, tokenizer, [requests[3]]) == [found[3]]


def test_p36_greedy_by_default_and_alternatives_are_best_first(tiny):
    model, tokenizer = tiny
    request = GenerationRequest(prompt_ids=random_ids(9, seed=1), max_new_tokens=5, num_top_logprobs=3)
    found = generate(model, tokenizer, [request, request])
    assert found[0] == found[1]
    for token, logprob, top in zip(found[0].token_ids, found[0].logprobs, found[0].top, strict=True):
        assert top[0] == (token, logprob)
        assert sorted((value for _, value in top), reverse=True) == [value for _, value in top]
        assert logprob <= 0


def test_p51_ids_the_tokenizer_lacks_are_never_chosen(tiny):
    model, tokenizer = tiny
    size = len(tokenizer)
    config = dataclasses.replace(model.config, vocab_size=size + 64, tie_word_embeddings=False)
    padded = DecoderModel(config)
    torch.manual_seed(0)
    for name, weight in padded.state_dict().items():
        weight.copy_(torch.randn_like(weight) * 0.1 if "norm" not in name else torch.ones_like(weight))
    padded.lm_head.weight[size:] *= 100
    requests = [
        GenerationRequest(
            prompt_ids=random_ids(9, seed=1), max_new_tokens=12, temperature=t, seed=0, num_top_logprobs=4
        )
        for t in (0.0, 2.0)
    ]
    for engine in (padded, Whole(padded)):
        for found in generate(engine, tokenizer, requests):
            assert max(found.token_ids) < size
            assert max(token for top in found.top for token, _ in top) < size
            assert min(found.logprobs) < -5, "logprobs are those of the whole vocabulary"


# -- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": ()}, "no tokens"),
        ({"prompt_ids": (5,) * 257}, "257 tokens .* holds 256"),
        ({"prompt_ids": (5, 9999)}, "token id 9999"),
        ({"prompt_ids": (5, -1)}, "token id -1"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"temperature": -0.5}, "temperature is -0.5"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -2}, "top_k is -2"),
        ({"num_top_logprobs": -1}, "num_top_logprobs is -1"),
        ({"stop": "ab"}, "stop is 'ab'"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(tiny, change, message):
    model, tokenizer = tiny
    request = dataclasses.replace(GenerationRequest(prompt_ids=(5, 6), max_new_tokens=2), **change)
    with pytest.raises(InputError, match=message):
        generate(model, tokenizer, [request])


def test_logits_that_are_not_numbers_fail_their_own_request_alone(tiny):
    model, tokenizer = tiny
    broken = DecoderModel(dataclasses.replace(model.config, tie_word_embeddings=False))
    state = {**model.state_dict(), "lm_head.weight": model.embed_tokens.weight.clone()}
    broken.load_state_dict(state)
    broken.embed_tokens.weight[7] = math.nan
    sound = [GenerationRequest(prompt_ids=random_ids(70, seed), max_new_tokens=70) for seed in range(3)]
    sound = [dataclasses.replace(one, prompt_ids=tuple(max(8, i) for i in one.prompt_ids)) for one in sound]
    bad = GenerationRequest(prompt_ids=(9, 7, 12), max_new_tokens=5)
    with pytest.raises(GenerationError, match="3 prompt and 0 new"):
        generate(broken, tokenizer, [sound[0], bad])
    batch = DecodingBatch(broken, Vocabulary(tokenizer), batch_size=2)
    tickets = [batch.submit(request) for request in (bad, *sound)]
    outcomes = {}
    while batch.busy:
        outcomes.update(batch.step())
    assert isinstance(outcomes[tickets[0]], GenerationError)
    wanted = generate(model, tokenizer, sound)
    never_seven = [index for index, one in enumerate(wanted) if 7 not in one.token_ids]
    assert never_seven
    for index in never_seven:
        assert outcomes[tickets[1 + index]] == wanted[index]


def test_out_of_memory_halves_the_batch_and_goes_on(tiny):
    model, tokenizer = tiny

    class Cramped(Whole):
        config, device, dtype = model.config, model.device, model.dtype
        largest = 0

        def hidden_states(self, input_ids, positions, attend):
            if len(input_ids) > 20:
                raise torch.OutOfMemoryError("no room")
            self.largest = max(self.largest, len(input_ids))
            return self.model.hidden_states(input_ids, positions, attend)

        def project(self, hidden):
            return self.model.project(hidden)

    requests = [GenerationRequest(prompt_ids=random_ids(6, seed), max_new_tokens=4) for seed in range(9)]
    done: list[int] = []
    assert generate(Cramped(model), tokenizer, requests, progress=done.append) == generate(model, tokenizer, requests)
    assert done == list(range(1, 10))
    too_long = GenerationRequest(prompt_ids=random_ids(50, seed=1), max_new_tokens=4)
    with pytest.raises(torch.OutOfMemoryError):
        generate(Cramped(model), tokenizer, [too_long])


def test_a_cancelled_row_leaves_the_others_alone(tiny):
    model, tokenizer = tiny
    requests = mixed_requests()[:6]
    batch = DecodingBatch(model, Vocabulary(tokenizer), batch_size=3)
    tickets = [batch.submit(request) for request in requests]
    outcomes: dict[int, object] = {}
    outcomes.update(batch.step())
    batch.cancel(tickets[1])
    batch.cancel(tickets[5])
    while batch.busy:
        outcomes.update(batch.step())
    wanted = generate(model, tokenizer, requests)
    assert outcomes == {tickets[index]: wanted[index] for index in (0, 2, 3, 4)}
    assert all(isinstance(one, Generation) for one in outcomes.values())


def test_a_small_cache_lets_rows_wait(tiny):
    model, tokenizer = tiny
    requests = mixed_requests()
    batch = DecodingBatch(model, Vocabulary(tokenizer), cache_bytes=5 * 2 * 2 * 64 * 2 * 16 * 4)
    tickets = [batch.submit(request) for request in requests]
    outcomes: dict[int, object] = {}
    while batch.busy:
        outcomes.update(batch.step())
    assert [outcomes[ticket] for ticket in tickets] == generate(model, tokenizer, requests)


# -- beside transformers, and without the compiled kernels ----------------------------------------------------------


@pytest.mark.data
def test_greedy_ids_are_those_of_transformers_on_the_default_model(default_model, shared_dir):
    from benchmarks.peers import transformers_twin
    from llm.evaluation.data import load_items

    model, tokenizer = default_model
    twin, _ = transformers_twin("smollm2-135m-instruct", "float32")
    items = load_items("arc_easy", str(shared_dir / "data"), limit=20)
    prompts = [tuple(tokenizer(item.question, add_special_tokens=False).input_ids) for item in items]
    requests = [GenerationRequest(prompt_ids=prompt, max_new_tokens=10) for prompt in prompts]
    found = generate(model, tokenizer, requests)
    for prompt, one in zip(prompts, found, strict=True):
        wanted = twin.generate(torch.tensor([prompt]), max_new_tokens=10, do_sample=False, eos_token_id=None)
        assert list(one.token_ids) == wanted[0, len(prompt) :].tolist()


def test_torchs_kernels_generate_the_same_ids(tiny, monkeypatch):
    from llm.scoring import branches, cached_attention

    model, tokenizer = tiny
    requests = mixed_requests()
    wanted = generate(model, tokenizer, requests)
    for module in (branches, cached_attention):
        monkeypatch.setattr(module, "compiled_kernels", lambda: None)
    found = generate(model, tokenizer, requests)
    assert [one.token_ids for one in found] == [one.token_ids for one in wanted]
    assert generate(model, tokenizer, requests[3:4]) == found[3:4]


def test_p10_the_default_model_in_any_order_and_company(default_model):
    model, tokenizer = default_model
    requests = [
        GenerationRequest(
            prompt_ids=tuple(tokenizer(question, add_special_tokens=False).input_ids),
            max_new_tokens=2 + 3 * index,
            temperature=0.8 if index == 2 else 0.0,
            seed=index,
            num_top_logprobs=1,
        )
        for index, question in enumerate(QUESTIONS)
    ]
    together = generate(model, tokenizer, requests)
    assert generate(model, tokenizer, requests[::-1], batch_size=2)[::-1] == together
    assert [generate(model, tokenizer, [request])[0] for request in requests] == together
