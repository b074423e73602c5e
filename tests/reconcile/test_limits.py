"""`--fail-over` counts points wherever it stands, and what has no number never passes for what did not change."""

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from reconcile.cli import main
from reconcile.decompose import decompose
from reconcile.points import gap_points, is_past
from reconcile.report.records import RECORDS_NAME, write_records
from reconcile.report.writing import report_parts, write_report


@pytest.fixture
def folder(tmp_path, make_recorded, make_questions) -> Path:
    """The folder of a finished run."""
    recorded = make_recorded(make_questions(20, 2))
    place = tmp_path / "run"
    place.mkdir()
    write_records(place / RECORDS_NAME, recorded)
    write_report(place, decompose(recorded.lm_eval, recorded.inspect), recorded.facts)
    return place


@pytest.mark.parametrize(
    ("gap", "allowed", "past"),
    [
        (Fraction(1, 100), 1.0, False),
        (Fraction(-1, 100), 1.0, False),
        (Fraction(11, 1000), 1.1, False),
        (Fraction(11, 1000), 1.0, True),
        (Fraction(-1, 10), 9.9, True),
        (Fraction(1, 10**6), 0.0, True),
        (Fraction(0), 0.0, False),
        (Fraction(1), None, False),
    ],
)
def test_a_limit_is_in_points_and_is_itself_allowed(gap, allowed, past, make_recorded, make_questions) -> None:
    recorded = make_recorded(make_questions(8, 2))
    ledger = replace(decompose(recorded.lm_eval, recorded.inspect), gap=gap)
    assert is_past(gap_points(ledger), allowed) is past


def test_a_choice_run_fails_on_the_far_side_of_its_limit(
    tmp_path, make_recorded, make_questions, monkeypatch, capsys
) -> None:
    recorded = make_recorded(make_questions(40, 2))
    ledger = decompose(recorded.lm_eval, recorded.inspect)
    assert float(ledger.gap) == 0.15
    parts = report_parts(ledger, recorded.facts)
    for name, value in (("check", None), ("_load", None), ("_run_into", parts)):
        monkeypatch.setattr(f"reconcile.ledger_run.{name}", lambda *args, value=value, **options: value)
    for allowed, code in (("14.9", 1), ("15", 0), ("16", 0), ("0.16", 1)):
        assert main(["mmlu", "--quiet", "--out", str(tmp_path / allowed), "--fail-over", allowed]) == code
        told = f"The gap, 15 points, is PAST the {allowed} of --fail-over."
        assert (told in capsys.readouterr().out) == bool(code)


def test_a_wikitext_run_fails_on_the_far_side_of_its_limit(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lm_eval")
    pytest.importorskip("inspect_ai")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["wikitext", "--limit", "1", "--model", str(tiny_checkpoint), "--quiet", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    document = json.loads((tmp_path / "out" / "reconcile.json").read_text())
    gap = abs(document["bits_per_byte"]["gap"])
    assert 0 < gap < abs(document["gap"]) / 2, "of units, not of the model"
    assert main([*words, "--fail-over", repr(100 * gap * 1.01)]) == 0
    assert "PAST" not in capfd.readouterr().out
    assert main([*words, "--fail-over", repr(100 * gap * 0.99)]) == 1
    assert "points, is PAST the" in capfd.readouterr().out


def test_the_help_says_what_a_point_is(capsys: pytest.CaptureFixture[str]) -> None:
    for command, said in (("arc_easy", "0.01 of the score"), ("wikitext", "0.01 bit per byte")):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("damage", [{"gap": None}, {"reported": {"lm_eval": None, "inspect": 0.5}}, {"reported": {}}])
@pytest.mark.parametrize("order", [1, -1])
def test_a_score_that_is_no_number_is_one_sentence(damage, order, folder, tmp_path, capsys) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    document = json.loads((damaged / "reconcile.json").read_text())
    (damaged / "reconcile.json").write_text(json.dumps({**document, **damage, "schema_version": "1.0"}))
    runs = [str(folder), str(damaged)][::order]
    assert main(["diff", *runs, "--fail-over", "100"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{damaged} has no number for" in line
    assert main(["diff", str(folder), str(folder), "--fail-over", "0"]) == 0
    shutil.rmtree(damaged)  # it is no document of the published schema


def test_an_agreement_names_the_runs_that_are_not_accounted_for(
    tmp_path, make_recorded, make_questions, capsys
) -> None:
    runs = []
    for seed in (1, 2):
        recorded = make_recorded(make_questions(20, 2), seed=seed, model=f"model-{seed}")
        if seed == 2:
            samples = list(recorded.lm_eval.samples)
            samples[0] = replace(samples[0], credit=1 - samples[0].credit)
            value = float(sum(one.credit for one in samples) / len(samples))
            recorded = replace(
                recorded, lm_eval=replace(recorded.lm_eval, samples=tuple(samples), reported={"acc": value})
            )
        place = tmp_path / f"run-{seed}"
        place.mkdir()
        write_records(place / RECORDS_NAME, recorded)
        write_report(place, decompose(recorded.lm_eval, recorded.inspect), recorded.facts)
        runs.append(str(place))
    other = tmp_path / "run-3"
    shutil.copytree(runs[0], other)
    assert main(["agreement", runs[0], str(other), "--out", str(tmp_path / "fine")]) == 0
    assert "NOT accounted for" not in capsys.readouterr().out
    assert main(["agreement", *runs, "--quiet", "--out", str(tmp_path / "both")]) == 1
    told = [line for line in capsys.readouterr().out.splitlines() if "NOT accounted for" in line]
    assert told == [f"NOT accounted for: model-2 ({runs[1]}): 1 item unexplained."]
