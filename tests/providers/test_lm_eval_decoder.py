"""The lm-eval door: its own command line runs our decoder."""

import sys
from importlib import resources
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from providers.lm_eval_decoder import NAME, main, register, with_default_model

GENERATIVE = """
task: colours_probe
dataset_path: json
dataset_kwargs:
  data_files: {file}
test_split: train
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 3
"""


@pytest.fixture
def inside_sample_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stock tasks find their data by relative path: stand where it lies, as a user would."""
    folder = Path(str(resources.files("llm.evaluation").joinpath("sample_data")))
    monkeypatch.chdir(folder)
    return folder


def test_registered_beside_lm_evals_own_models():
    from lm_eval.api.registry import get_model

    register()
    register()
    assert get_model(NAME).__name__ == "LlamaLmEvalLM"
    assert get_model("hf").__name__ == "HFLM"


def test_lm_evals_command_line_runs_scored_and_generated_tasks(
    inside_sample_data, tiny_checkpoint, tmp_path, monkeypatch, capsys
):
    data = tmp_path / "colours.jsonl"
    data.write_text('{"question": "The sky is", "answer": "blue"}\n' * 3)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "probe.yaml").write_text(GENERATIVE.format(file=data))
    monkeypatch.setattr(sys, "argv", ["unused"])
    arguments = ["run", "--model", NAME, "--model_args", f"model={tiny_checkpoint},dtype=float32"]
    tasks = ["--tasks", "arc_easy", "mmlu_astronomy_generative", "colours_probe"]
    places = ["--include_path", str(tmp_path / "tasks"), "--output_path", str(tmp_path / "out"), "--log_samples"]
    assert main([*arguments, *tasks, *places, "--limit", "2", "--batch_size", "auto", "--device", "cpu"]) == 0
    table = capsys.readouterr().out
    for cell in ("|arc_easy", "|acc_norm", "|astronomy", "|colours_probe", "exact_match"):
        assert cell in table
    assert len(list((tmp_path / "out").rglob("samples_*.jsonl"))) == 3


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["run", "--model", "decoder", "--tasks", "x"], True),
        (["run", "--model=decoder", "--tasks", "x"], True),
        (["run", "--model", "decoder", "--model_args", "model=y"], False),
        (["run", "-M", "decoder", "-a", "model=y"], False),
        (["run", "--model", "decoder", "--config", "c.yaml"], False),
        (["run", "--model", "hf"], False),
        (["ls", "tasks"], False),
    ],
)
def test_the_default_model_is_named_where_none_is(given, expected):
    added = ["--model_args", "model=smollm2-135m-instruct"] if expected else []
    assert with_default_model(given) == [*given, *added]


def test_fewer_items_than_processes_is_one_sentence(monkeypatch, capsys):
    import lm_eval.__main__
    from lm_eval.api.task import ConfigurableTask

    def dealt_nothing() -> None:
        """What lm-eval does on a rank that is dealt no item."""
        empty = ConfigurableTask.__new__(ConfigurableTask)
        empty._config = type("Config", (), {"task": "t", "num_fewshot": 0})()
        monkeypatch.setattr(empty, "doc_iterator", lambda **_: iter(()), raising=False)
        empty.build_all_requests(limit=1, rank=1, world_size=2)

    monkeypatch.setattr(sys, "argv", ["unused"])
    monkeypatch.setattr(lm_eval.__main__, "cli_evaluate", dealt_nothing)
    with pytest.raises(ValueError, match="did not find any docs"):
        main(["run"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["run"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "lm-eval decoder: 2 processes share a task with fewer items: start fewer processes, or raise --limit"
    )
