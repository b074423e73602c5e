"""The two harnesses' own clients of a completions server, against the decoder in process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task
from inspect_ai import eval as inspect_eval
from inspect_ai.log import EvalLog
from inspect_ai.model import Model, get_model
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
from llm.models import load_model
from llm.scoring.plain import make_scorer
from llm.scoring.service import ScoringService
from providers.inspect_decoder import forget_loaded, register_loaded
from providers.inspect_sessions import LoadedDecoder
from providers.serve import main, serving
from tasks.arc_easy import arc_easy

PAIRS = [
    ("The quick", " brown fox"),
    ("Question: what is water?\nAnswer:", " a liquid"),
    ("The dog ", "jumps"),
    ("", "A. B."),
    ("Café ", "é → ü"),
]
DOCUMENT = "The quick brown fox jumps over the lazy dog. Question: what is water?\n"
PROMPTS = [
    ("The quick brown", {"until": ["\n"], "max_gen_toks": 12}),
    ("Question: what is", {"until": ["."], "max_gen_toks": 20}),
    ("A. B.", {"until": ["D"], "max_gen_toks": 5}),
]


@contextmanager
def served(model: Any, tokenizer: Any) -> Iterator[str]:
    service = ScoringService(model, tokenizer, make_scorer(model))
    decoder = LoadedDecoder(model=model, tokenizer=tokenizer, service=service, logits_dtype="float32")
    try:
        with serving(decoder, "served") as url:
            yield url
    finally:
        service.close()


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint: Path) -> Iterator[tuple[str, Any, Any]]:
    """(URL, model, tokenizer) of a served tiny checkpoint."""
    model, tokenizer = load_model(str(tiny_checkpoint), dtype="float32", device="cpu")
    with served(model, tokenizer) as url:
        yield url, model, tokenizer


@pytest.fixture(scope="module")
def tokenizer_folder(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What --write-tokenizer makes of the tiny checkpoint."""
    folder = tmp_path_factory.mktemp("tokenizer") / "tiny"
    assert main(["--model", str(tiny_checkpoint), "--write-tokenizer", str(folder)]) == 0
    return folder


def asked(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=args, idx=index) for index, args in enumerate(arguments)]


# -- lm-eval ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"tokenizer_backend": "huggingface"}, id="by folder"),
        pytest.param({"tokenizer_backend": "huggingface", "num_concurrent": 4}, id="concurrent"),
        pytest.param({"tokenizer_backend": "huggingface", "batch_size": 3}, id="batched"),
        pytest.param({"tokenizer_backend": "huggingface", "tokenized_requests": False}, id="as text"),
        pytest.param({"tokenizer": None}, id="remote tokenizer"),
    ],
)
def test_lm_evals_client_gives_the_lms_own_values(
    tiny: tuple[str, Any, Any], tokenizer_folder: Path, settings: dict[str, Any]
) -> None:
    url, model, tokenizer = tiny
    own = LlamaLmEvalLM(model, tokenizer)
    client = LocalCompletionsAPI(
        model="served",
        base_url=f"{url}/v1/completions",
        max_length=model.max_length,
        max_retries=1,
        **{"tokenizer": str(tokenizer_folder), **settings},
    )
    pairs = asked("loglikelihood", PAIRS)
    for (ours, our_greedy), (theirs, their_greedy) in zip(
        own.loglikelihood(pairs, disable_tqdm=True), client.loglikelihood(pairs, disable_tqdm=True), strict=True
    ):
        assert theirs == pytest.approx(ours, abs=1e-4)
        assert their_greedy == our_greedy
    prompts = asked("generate_until", PROMPTS)
    assert client.generate_until(prompts) == own.generate_until(prompts, disable_tqdm=True)


def test_lm_evals_client_rolls_over_a_long_text(tiny: tuple[str, Any, Any], tokenizer_folder: Path) -> None:
    url, model, tokenizer = tiny
    client = LocalCompletionsAPI(
        model="served",
        base_url=f"{url}/v1/completions",
        tokenizer=str(tokenizer_folder),
        tokenizer_backend="huggingface",
        max_length=64,
        max_retries=1,
    )
    documents = asked("loglikelihood_rolling", [(DOCUMENT * 8,), (DOCUMENT,)])
    own = LlamaLmEvalLM(model, tokenizer, max_length=62)  # it keeps one position for a token and one more for context
    assert client.loglikelihood_rolling(documents, disable_tqdm=True) == pytest.approx(
        own.loglikelihood_rolling(documents, disable_tqdm=True), abs=1e-4
    )


def test_the_tokenizer_written_for_lm_eval_is_the_models_own(default_model: tuple[Any, Any], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    assert main(["--write-tokenizer", str(tmp_path / "tokenizer")]) == 0
    written, own = AutoTokenizer.from_pretrained(tmp_path / "tokenizer"), default_model[1]
    text = "In 2024, café № 5\n\n<|im_start|>user  1234 don't\t→ 東京"
    assert written(text).input_ids == own(text).input_ids
    assert (written.bos_token_id, written.eos_token_id) == (own.bos_token_id, own.eos_token_id)
    assert written.chat_template == own.chat_template


# -- Inspect ---------------------------------------------------------------------------------------------------------


def run(task: Task, model: str | Model, folder: Path, limit: int) -> EvalLog:
    log = inspect_eval(task, model=model, limit=limit, log_dir=str(folder), display="none")[0]
    assert log.status == "success", log.error.message if log.error else None
    return log


def client_of(url: str, monkeypatch: pytest.MonkeyPatch) -> Model:
    """Inspect's client, told of the server as its users tell it; a new one, since another test's server is gone."""
    monkeypatch.setenv("BRIDGE_BASE_URL", f"{url}/v1")
    monkeypatch.setenv("BRIDGE_API_KEY", "none")
    return get_model("openai-api-completions/bridge/served", memoize=False)


def choices(log: EvalLog) -> dict[str, list[dict[str, Any]]]:
    return {
        str(sample.id): (sample.scores or {})["likelihood_choice"].metadata["choices"]  # type: ignore[index]
        for sample in log.samples or []
    }


@pytest.mark.parametrize(
    ("protocol", "with_ids"),
    [
        ({"template": "inspect"}, False),
        ({"template": "inspect"}, True),
        ({"template": "lm-eval", "normalisation": "pmi"}, True),
    ],
)
def test_inspects_client_gives_the_providers_own_scores(
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    protocol: dict[str, str],
    with_ids: bool,
) -> None:
    config = (tiny_checkpoint / "config.json").read_text()
    roomy = tmp_path / "roomy"
    roomy.mkdir()
    for file in tiny_checkpoint.iterdir():
        (roomy / file.name).write_bytes(file.read_bytes())
    assert '"max_position_embeddings": 256' in config
    (roomy / "config.json").write_text(
        config.replace('"max_position_embeddings": 256', '"max_position_embeddings": 2048')
    )
    model, tokenizer = load_model(str(roomy), dtype="float32", device="cpu")
    name = register_loaded("roomy", model=model, tokenizer=tokenizer, scorer=make_scorer(model))
    try:
        own = run(arc_easy(**protocol), name, tmp_path, limit=3)
    finally:
        forget_loaded("roomy")
    with served(model, tokenizer) as url:
        task = arc_easy(**protocol, tokenizer=str(roomy) if with_ids else None)
        other = run(task, client_of(url, monkeypatch), tmp_path, limit=3)
    assert choices(own).keys() == choices(other).keys()
    for sample_id, mine in choices(own).items():
        for ours, theirs in zip(mine, choices(other)[sample_id], strict=True):
            assert theirs["logprob"] == pytest.approx(ours["logprob"], abs=1e-4)
            assert theirs["num_tokens"] == ours["num_tokens"]
            assert theirs["split"] == ours["split"]
            if protocol.get("normalisation") == "pmi":
                assert theirs["unconditional_logprob"] == pytest.approx(ours["unconditional_logprob"], abs=1e-4)
    assert own.results is not None
    assert other.results is not None
    assert own.results.scores[0].metrics["accuracy"].value == other.results.scores[0].metrics["accuracy"].value


def test_the_default_model_serves_both_harnesses(
    default_model: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = default_model
    pairs = asked("loglikelihood", [("The capital of France is", " Paris"), ("The sky is ", "blue")])
    with served(model, tokenizer) as url:
        client = LocalCompletionsAPI(model="served", base_url=f"{url}/v1/completions", max_retries=1)
        theirs = client.loglikelihood(pairs, disable_tqdm=True)
        log = run(arc_easy(), client_of(url, monkeypatch), tmp_path, limit=2)
    ours = LlamaLmEvalLM(model, tokenizer).loglikelihood(pairs, disable_tqdm=True)
    assert [value for value, _ in theirs] == pytest.approx([value for value, _ in ours], abs=1e-4)
    assert [greedy for _, greedy in theirs] == [greedy for _, greedy in ours] == [True, False]
    name = register_loaded("default", model=model, tokenizer=tokenizer, scorer=make_scorer(model))
    try:
        own = run(arc_easy(), name, tmp_path, limit=2)
    finally:
        forget_loaded("default")
    for sample_id, mine in choices(own).items():
        for ours_choice, other in zip(mine, choices(log)[sample_id], strict=True):
            assert other["logprob"] == pytest.approx(ours_choice["logprob"], abs=1e-4)
