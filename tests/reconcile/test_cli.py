"""The command line as users meet it: one sentence and exit 2 for what cannot be run, help without torch."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm.evaluation import rules
from reconcile import options as options_module
from reconcile.cli import main
from reconcile.options import METRICS, RunOptions, native_protocol

REPOSITORY = Path(__file__).resolve().parents[2]


def reconcile(*arguments: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reconcile", *arguments], cwd=cwd, capture_output=True, text=True, timeout=120
    )


def said(stderr: str) -> list[str]:
    """Lines on standard error but those of progress."""
    return [line for line in stderr.splitlines() if not line.startswith("[")]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["nosuch"], "nosuch"),
        (["mmlu", "--model", "no/such/model"], "no/such/model"),
        (["mmlu", "--data", "."], "cais/mmlu"),
    ],
)
def test_what_cannot_be_run_is_one_sentence_and_exit_2(arguments: list[str], names: str) -> None:
    result = reconcile(*arguments)
    assert result.returncode == 2, result.stderr
    (sentence,) = said(result.stderr)
    assert names in sentence
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], "no task given"),
        (["arc_easy", "--data", "nowhere"], "nowhere"),
        (["mmlu", "--subjects", "astrology"], "astrology"),
        (["mmlu", "--limit", "0"], "0 is below 1"),
        (["mmlu", "--metric", "f1"], "f1"),
        (["mmlu", "--inspect-tie-break", "coin"], "coin"),
        (["arc_easy", "--metric", "acc", "--lm-eval-normalisation", "char"], "give one"),
        (["arc_easy", "--inspect-readout", "generate", "--inspect-template", "lm-eval"], "generate"),
        (["wikitext", "--inspect-normalisation", "char"], "--inspect-normalisation"),
        (["mmlu", "--num-fewshot", "6"], "6"),
        (["logs", "--lm-eval", "nowhere"], "1 logs given"),
        (["logs", "--lm-eval", "nowhere", "--inspect", "neither"], "nowhere"),
    ],
)
def test_every_option_is_checked_before_anything_is_loaded(
    arguments: list[str], names: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (sentence,) = said(capfd.readouterr().err)
    assert names in sentence


def test_out_that_holds_something_else_is_not_touched(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("years of work")
    result = reconcile("mmlu", "--out", str(tmp_path))
    assert result.returncode == 2
    assert str(tmp_path) in said(result.stderr)[0]
    assert precious.read_text() == "years of work"


@pytest.mark.parametrize("arguments", [["--help"], ["mmlu", "--help"], ["logs", "--help"]])
def test_help_is_quick_and_loads_neither_torch_nor_a_harness(arguments: list[str]) -> None:
    code = (
        "import sys; from reconcile.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'lm_eval', 'inspect_ai', 'numpy', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    started = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code, *arguments], cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "usage: python -m reconcile" in result.stdout
    assert time.monotonic() - started < 5  # 0.1 s on an idle machine


def test_an_internal_fault_is_exit_3_with_its_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: RunOptions) -> int:
        raise RuntimeError("the ledger does not close")

    monkeypatch.setattr("reconcile.ledger_run.run_task", fail)
    assert main(["arc_easy"]) == 3
    message = capsys.readouterr().err
    assert "RuntimeError: the ledger does not close" in message
    report = Path(message.strip().rsplit(" ", 1)[-1])
    assert "Traceback" in report.read_text()
    report.unlink()


def test_an_interruption_is_exit_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(options: RunOptions) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("reconcile.ledger_run.run_task", interrupt)
    assert main(["arc_easy"]) == 130
    assert "interrupted" in capsys.readouterr().err


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> RunOptions:
    """The options that a command line is understood as."""
    seen: list[RunOptions] = []
    monkeypatch.setattr("reconcile.ledger_run.run_task", lambda options: seen.append(options) or 0)
    assert main(list(arguments)) == 0
    return seen[0]


def test_natives_are_those_of_the_design(monkeypatch: pytest.MonkeyPatch) -> None:
    options = asked(monkeypatch, "mmlu")
    assert (options.lm_eval.template, options.lm_eval.num_fewshot) == ("lm-eval", 5)
    assert (options.lm_eval.normalisation, options.lm_eval.tie_break) == ("none", "first")
    assert (options.inspect.template, options.inspect.num_fewshot) == ("inspect", 5)
    assert (options.inspect.normalisation, options.inspect.tie_break) == ("token", "random")
    assert options.metric == "acc"
    assert options.cache


def test_overrides_reach_the_side_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    options = asked(
        monkeypatch,
        *shlex.split("arc_easy --metric acc_norm --num-fewshot 3 --inspect-num-fewshot 1 --seed 7 --inspect-seed 9"),
        *shlex.split("--inspect-template lm-eval --inspect-normalisation none --inspect-tie-break first --no-cache"),
    )
    assert options.lm_eval.normalisation == "char"
    assert (options.lm_eval.num_fewshot, options.inspect.num_fewshot) == (3, 1)
    assert (options.lm_eval.seed, options.inspect.seed) == (7, 9)
    assert (options.inspect.template, options.inspect.normalisation) == ("lm-eval", "none")
    assert not options.cache


def test_runs_of_unlike_questions_have_unlike_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    one = asked(monkeypatch, "mmlu")
    assert one.folder() == asked(monkeypatch, "mmlu").folder()
    assert one.folder() != asked(monkeypatch, "mmlu", "--limit", "4").folder()
    assert one.folder() != asked(monkeypatch, "mmlu", "--inspect-tie-break", "last").folder()
    assert asked(monkeypatch, "mmlu", "--out", "here").folder() == Path("here")


def test_the_words_offered_are_those_the_rules_know() -> None:
    assert set(options_module.NORMALISATIONS) == set(rules.NORMALISATIONS)
    assert set(options_module.TIE_BREAKS) == set(rules.TIE_BREAKS)
    assert set(METRICS.values()) <= set(rules.NORMALISATIONS)
    for task in options_module.TASKS:
        assert native_protocol(task, "lm_eval").template == "lm-eval"
