"""Runs on engines that the harnesses reach themselves: a completions server on the loopback stands for a cluster."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llm.evaluation.data import load_items
from llm.models import load_model, load_tokenizer
from llm.scoring.encoding import encode_text
from llm.scoring.plain import make_scorer
from llm.scoring.service import ScoringService
from providers.inspect_sessions import LoadedDecoder
from providers.serve import main as serve_main
from providers.serve import serving
from reconcile.cli import main
from reconcile.engines import without_secrets
from tasks.rendering import render_inspect

pytest.importorskip("lm_eval")
pytest.importorskip("inspect_ai")


def checkpoint(tiny: Path, folder: Path, positions: int) -> Path:
    """The tiny checkpoint with another context length."""
    folder.mkdir()
    for file in tiny.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((tiny / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
    return folder


@contextmanager
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The options that put a served checkpoint behind both harnesses."""
    model, tokenizer = load_model(str(folder), dtype="float32", device="cpu")
    service = ScoringService(model, tokenizer, make_scorer(model))
    decoder = LoadedDecoder(model=model, tokenizer=tokenizer, service=service, logits_dtype="float32")
    tokens = folder.with_name(folder.name + "-tokenizer")
    assert serve_main(["--model", str(folder), "--write-tokenizer", str(tokens)]) == 0
    try:
        with serving(decoder, "served") as url:
            monkeypatch.setenv("BRIDGE_BASE_URL", f"{url}/v1")
            monkeypatch.setenv("BRIDGE_API_KEY", "none")
            arguments = {
                "model": "served",
                "base_url": f"{url}/v1/completions",
                "tokenizer": str(tokens),
                "tokenizer_backend": "huggingface",
                "num_concurrent": "4",
                "max_length": str(model.max_length),
                "auth_token": "hush",
            }
            yield [
                *("--lm-eval-model", "local-completions"),
                *("--lm-eval-model-args", ",".join(f"{name}={value}" for name, value in arguments.items())),
                *("--inspect-model", "openai-api-completions/bridge/served"),
            ]
    finally:
        service.close()


def reconciled(arguments: list[str], out: Path) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--out", str(out)])
    return code, json.loads((out / "reconcile.json").read_text())


def test_one_protocol_through_the_server_and_through_the_decoder_agrees_to_the_bit(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = checkpoint(tiny_checkpoint, tmp_path / "roomy", 2048)
    same = ["--inspect-template", "lm-eval", "--inspect-normalisation", "none", "--inspect-tie-break", "first"]
    with cluster(folder, monkeypatch) as engines:
        own = ["--model", str(folder), "--tokenizer", str(folder), *engines[4:]]
        code, document = reconciled(["arc_easy", "--limit", "5", "--no-cache", *same, *own], tmp_path / "out")
    assert code == 0
    assert document["agreement"]["holds"]
    assert document["agreement"]["token_identical"] == document["agreement"]["num_requests"] == 20
    assert document["model"]["fingerprint"]


def test_a_server_pair_closes_and_what_an_engine_refuses_is_coverage(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(str(tiny_checkpoint))
    prompts = [render_inspect(item, ()) for item in load_items("arc_easy", "sample", limit=6)]
    lengths = sorted(len(encode_text(tokenizer, prompt.context + prompt.continuations[0])) for prompt in prompts)
    assert lengths[3] < lengths[4]
    folder = checkpoint(tiny_checkpoint, tmp_path / "narrow", lengths[3] + 1)  # one position for a generated token
    with cluster(folder, monkeypatch) as engines:
        code, document = reconciled(["arc_easy", "--limit", "6", *engines], tmp_path / "out")
    assert code == 0
    assert document["num_items"]["errored"] == 2
    assert document["num_items"]["common"] == document["num_items"]["replayed"] == 4
    assert document["components"]["unexplained"] == 0
    assert document["items_unexplained"] == []
    assert document["gap"] == pytest.approx(sum(document["components"].values()), abs=1e-12)
    assert "local-completions" in document["model"]["ref"]
    assert "openai-api-completions/bridge/served" in document["model"]["ref"]
    assert document["shared_store"] is False
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [path for path in written if b"hush" in path.read_bytes()]


def test_pages_whose_text_and_windows_both_differ_are_scored_crosswise_too(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's prompt logprobs leave out a page's first token; lm-eval's windows score it after a prefix token."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = checkpoint(tiny_checkpoint, tmp_path / "roomy", 8192)
    with cluster(folder, monkeypatch) as engines:
        arguments = ["wikitext", "--limit", "1", "--model", str(folder), *engines[4:]]
        code, document = reconciled(arguments, tmp_path / "out")
    assert code == 0
    assert document["gap"] == pytest.approx(sum(document["components"].values()), abs=1e-12)
    assert document["components"]["window"] != 0
    assert document["gross"]["template"]["status"] == "acts"
    cells = {(cell["text"], cell["window"]): cell for cell in document["cells"]}
    assert len(cells) == 4
    assert {place for place, cell in cells.items() if cell["off_path"]} == {
        ("raw", "rolling"),
        ("detokenised", "inspect"),
    }
    for text in ("raw", "detokenised"):
        assert cells[text, "rolling"]["num_tokens"] == cells[text, "inspect"]["num_tokens"] + 1
        assert cells[text, "rolling"]["nats"] > cells[text, "inspect"]["nats"]
    again = tmp_path / "again"
    assert main(["report", str(tmp_path / "out"), "--format", "json", "--out", str(again)]) == 0
    assert json.loads((again / "reconcile.json").read_text()) == document


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--lm-eval-model", "nonsense"], "nonsense"),
        (["--lm-eval-model-args", "a=b"], "--lm-eval-model"),
        (["--inspect-model", "nonsense/x"], "nonsense"),
        (["--inspect-model", "openai-api-completions/nokey/x"], "NOKEY_API_KEY"),
        (["--tokenizer", "x"], "--inspect-model"),
        (["--inspect-model", "openai-api-completions/nokey/x", "--inspect-normalisation", "pmi"], "pmi"),
    ],
)
def test_engines_that_cannot_be_had_are_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], names: str
) -> None:
    assert main(["arc_easy", "--out", str(tmp_path / "out"), *arguments]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("reconcile:")]
    assert len(said) == 1
    assert names in said[0]
    assert not (tmp_path / "out").exists()


def test_secrets_are_taken_out_of_model_arguments() -> None:
    assert without_secrets("model=x,auth_token=abc,base_url=http://h") == "model=x,auth_token=***,base_url=http://h"
    assert without_secrets("api_key=abc") == "api_key=***"
    assert without_secrets("tokenizer=folder") == "tokenizer=folder"
