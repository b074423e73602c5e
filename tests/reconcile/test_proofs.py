"""`--prove`: what the runs of one protocol showed stands in every form of the report, and a failed proof is no verdict
of all well.
"""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from reconcile.cli import main
from reconcile.decompose import decompose
from reconcile.options import RunOptions
from reconcile.proof import Proof, SideProof
from reconcile.proving import proof_options
from reconcile.recipe import run_command
from reconcile.report.records import RECORDS_NAME, read_records, write_records
from reconcile.report.writing import print_report, report_parts, write_report

WHOLE = Proof(
    num_items=2,
    num_requests=8,
    num_with_ids=8,
    token_identical=8,
    logprob_identical=8,
    prediction_identical=2,
    max_difference=0.0,
    shared_store=False,
)
HOLDS = SideProof(side="lm_eval", folder="proof/lm_eval_protocol", proof=WHOLE)
APART = replace(WHOLE, logprob_identical=5, max_difference=0.25)
FAILS = SideProof(side="inspect", folder="proof/inspect_protocol", proof=APART)
EMPTY = SideProof(side="inspect", folder="proof/inspect_protocol", proof=None)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def proved(make_recorded, make_questions):
    """`proved(*proofs)`: the records of a run whose proofs showed these."""
    questions = make_questions(12, 2)
    return lambda *proofs: make_recorded(questions, proofs=proofs)


class TestReport:
    @pytest.fixture
    def parts(self, proved):
        def make(*proofs):
            recorded = proved(*proofs)
            return report_parts(decompose(recorded.lm_eval, recorded.inspect), recorded.facts)

        return make

    def test_every_form_tells_of_the_proofs_and_is_made_again_to_the_byte(self, proved, tmp_path):
        recorded = proved(HOLDS, FAILS)
        write_records(tmp_path / RECORDS_NAME, recorded)
        assert read_records(tmp_path / RECORDS_NAME) == recorded
        write_report(tmp_path, decompose(recorded.lm_eval, recorded.inspect), recorded.facts)
        before = files_of(tmp_path)
        document = json.loads(before["reconcile.json"])
        assert [(proof["side"], proof["folder"], proof["holds"]) for proof in document["proofs"]] == [
            ("lm_eval", "proof/lm_eval_protocol", True),
            ("inspect", "proof/inspect_protocol", False),
        ]
        assert document["proofs"][1]["agreement"]["logprob_identical"] == 5
        for name in ("report.md", "report.html"):
            text = before[name].decode()
            for words in ("Proof: both by the protocol of lm-eval", "The proof holds", "The proof FAILED", "5/8"):
                assert words in text, (name, words)
        assert main(["report", str(tmp_path)]) == 0
        assert files_of(tmp_path) == before

    @pytest.mark.parametrize(
        ("proofs", "verdict"),
        [
            ((), "The gap is accounted for: unexplained 0."),
            ((HOLDS,), "The gap is accounted for: unexplained 0."),
            ((HOLDS, FAILS), "PROOF FAILED by Inspect's protocol. The gap is accounted for: unexplained 0."),
            ((EMPTY,), "PROOF FAILED by Inspect's protocol. The gap is accounted for: unexplained 0."),
        ],
    )
    def test_the_verdict_begins_with_a_failed_proof(self, parts, proofs, verdict):
        made = parts(*proofs)
        assert made.verdict == verdict
        assert made.holds is all(proof.holds for proof in proofs)

    def test_the_page_shows_a_failed_proof_as_bad(self, parts):
        from reconcile.report.html import report_page

        assert '<li class="chip good">The gap is accounted for' in report_page(parts(HOLDS))
        assert '<li class="chip bad">PROOF FAILED by Inspect' in report_page(parts(FAILS))

    def test_a_quiet_run_has_a_line_a_proof(self, parts, tmp_path, capsys):
        print_report(parts(HOLDS, FAILS), tmp_path, quiet=True)
        _, holds, fails, verdict, _ = capsys.readouterr().out.splitlines()
        assert holds == (
            "Proof by lm-eval's protocol holds: of 8 requests, 8 token-identical and 8 logprob-identical; "
            "of 2 items, 2 prediction-identical."
        )
        assert fails.startswith("Proof by Inspect's protocol FAILED: of 8 requests, 8 token-identical and 5 logprob")
        assert verdict.startswith("PROOF FAILED")
        print_report(parts(EMPTY), tmp_path, quiet=True)
        assert "Proof by Inspect's protocol FAILED: no request could be compared." in capsys.readouterr().out


def asked(command: str, monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    """The options that a command line is understood as."""
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "reconcile"]
    seen: list[RunOptions] = []
    monkeypatch.setattr("reconcile.ledger_run.run_task", lambda options: seen.append(options) or 0)
    assert main(words[3:]) == 0
    return seen[0]


@pytest.mark.parametrize(
    "words",
    [
        "arc_easy",
        "mmlu --model 'a folder' --data d --subjects anatomy,virology --limit 2 --seed 3 --inspect-seed 0",
        "arc_easy --dtype bfloat16 --logits-dtype bfloat16 --device cpu --num-fewshot 2 --metric acc_norm --numerics 4",
        "arc_easy --inspect-tie-atol 0.5 --inspect-tie-break first --lm-eval-tie-break fractional",
        "arc_easy --lm-eval-model local-completions --lm-eval-model-args base_url=x --inspect-model p/m --tokenizer t",
    ],
)
def test_a_command_of_its_options_asks_for_them_again(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = asked(f"python -m reconcile {words}", monkeypatch)
    assert asked(run_command(options), monkeypatch) == options
    for proof in proof_options(options).values():
        again = asked(run_command(proof), monkeypatch)
        assert replace(again, out=proof.out, metric=proof.metric) == proof


def test_a_proofs_folder_names_the_command_that_reproduces_it(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lm_eval")
    pytest.importorskip("inspect_ai")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out, again = tmp_path / "out", tmp_path / "again"
    words = ["arc_easy", "--limit", "3", "--seed", "2", "--model", str(tiny_checkpoint), "--out", str(out), "--prove"]
    assert main(words) == 0
    told = capfd.readouterr().err
    assert "proving: both sides by lm-eval's protocol, nothing shared" in told
    assert "proving: both sides by Inspect's protocol, nothing shared" in told
    before = files_of(out)
    assert [proof["holds"] for proof in json.loads(before["reconcile.json"])["proofs"]] == [True, True]
    assert main(["report", str(out)]) == 0
    assert files_of(out) == before
    assert main(words) == 0
    assert files_of(out)["reconcile.json"] == before["reconcile.json"]

    proof = json.loads(before["proof/inspect_protocol/reconcile.json"])
    command = shlex.split(proof["command"])
    assert "--prove" not in command
    assert main([*command[3:], "--out", str(again)]) == 0
    twin = json.loads((again / "reconcile.json").read_text())
    differing = {name for name in proof if proof[name] != twin[name]}
    assert differing <= {"command", "settings"}, differing  # the one has a folder of its own
