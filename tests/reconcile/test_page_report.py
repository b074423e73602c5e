"""The report of a run over pages: what differs, how sure its numbers are, and what to type."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reconcile.page_ledger import PageLedger
from reconcile.page_statistics import measure_pages
from reconcile.perplexity import decompose_pages
from reconcile.report.facts import RunFacts
from reconcile.report.ledger_figures import page_figures
from reconcile.report.numbers import interval, unsigned_interval
from reconcile.report.parts import Parts
from reconcile.report.writing import print_report, report_parts, write_report
from reconcile.runs import HarnessRun, ItemKey, PageRecord, Protocol, Status

SETTINGS = {
    "lm_eval": {"defined_by": "lm-eval task wikitext", "dtype": "float32", "bos_token": "['<s>', '1']", "stop": "none"},
    "inspect": {
        "defined_by": "Inspect's perplexity()",
        "dtype": "bfloat16",
        "bos_token": "['<s>', '1']",
        "epochs": "1",
    },
}


def facts(**changes: Any) -> RunFacts:
    about = RunFacts(
        task="wikitext",
        model="a/model",
        model_fingerprint="f",
        dtype="float32",
        logits_dtype="float32",
        data="sample",
        data_fingerprint="d",
        limit=None,
        seed=0,
        shared_store=True,
        command="python -m reconcile wikitext",
        settings=SETTINGS,
    )
    return replace(about, **changes)


def page_run(harness: Any, nats: list[float], text: Any) -> HarnessRun:
    """A run over as many pages of 100 bytes and more, 20 words and 30 tokens as there are nats."""
    pages = tuple(
        PageRecord(
            key=ItemKey(digest=f"{place:02d}" * 8),
            sample_id=str(place),
            nll=value,
            num_tokens=30,
            num_words=20,
            num_bytes=100 + place,
            text=text,
            window="rolling",
            status=Status.SCORED,
        )
        for place, value in enumerate(nats)
    )
    name, units = ("word_perplexity,none", 20) if harness == "lm_eval" else ("perplexity_per_token", 30)
    return HarnessRun(
        harness=harness,
        task="wikitext",
        headline=name,
        protocol=Protocol(
            template="lm-eval" if harness == "lm_eval" else "inspect",
            num_fewshot=0,
            normalisation="none",
            tie_break="first",
        ),
        pages=pages,
        reported={name: math.exp(sum(nats) / (units * len(nats)))},
    )


def page_ledger(num_pages: int = 12, *, same_text: bool = False) -> PageLedger:
    ours = [70.0 + 3 * place % 11 for place in range(num_pages)]
    theirs = ours if same_text else [value + 4 + place % 3 for place, value in enumerate(ours)]
    text = "detokenised" if same_text else "raw"
    return decompose_pages(page_run("lm_eval", ours, "detokenised"), page_run("inspect", theirs, text))


def section(parts: Parts, title: str) -> Any:
    return next(one for one in parts.sections if one.title == title)


def test_protocols_stand_side_by_side_with_what_differs_first_and_in_every_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = write_report(tmp_path, page_ledger(), facts())
    rows = {row[0]: row[1:] for row in section(parts, "Protocols").table.rows}
    assert rows == {
        "text scored": ("detokenised", "raw", "differs"),
        "metric": ("word_perplexity,none", "perplexity_per_token", "differs"),
        "nats per": ("word", "token", "differs"),
        "defined-by": ("lm-eval task wikitext", "Inspect's perplexity()", "differs"),
        "dtype": ("float32", "bfloat16", "differs"),
    }
    rest = {row[0]: row[3] for row in section(parts, "Protocols: the same, or in one log only").table.rows}
    assert rest == {"window": "", "bos-token": "", "stop": "one log only", "epochs": "one log only"}
    print_report(parts, tmp_path)
    printed = capsys.readouterr().out
    for text in (printed, (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()):
        assert "defined-by" in text
        assert "bfloat16" in text


def test_pages_under_one_protocol_are_said_to_be_the_same() -> None:
    same = {"lm_eval": {"dtype": "float32"}, "inspect": {"dtype": "float32"}}
    ledger = page_ledger(same_text=True)
    one_unit = replace(ledger, metric=dict.fromkeys(ledger.metric, "m"), units=dict.fromkeys(ledger.units, "byte"))
    found = section(report_parts(one_unit, facts(settings=same)), "Protocols")
    assert found.table is None
    assert found.sentences[-1] == "In all that both logs say, the two sides are the same."


def test_intervals_are_those_of_whole_corpora_redrawn_page_by_page() -> None:
    ledger = page_ledger()
    found = measure_pages(ledger, seed=3)
    ours = np.array([page.nats["lm_eval"] for page in ledger.pages])
    theirs = np.array([page.nats["text"] for page in ledger.pages])
    num_bytes = np.array([page.num_bytes for page in ledger.pages])
    drawn = np.random.default_rng(0).integers(len(ours), size=(10_000, len(ours)))
    rates = [side[drawn].sum(1) / num_bytes[drawn].sum(1) / math.log(2) for side in (ours, theirs)]
    for name, values in (("lm_eval", rates[0]), ("inspect", rates[1]), ("gap", rates[0] - rates[1])):
        low, high = np.quantile(values, [0.025, 0.975])
        shown = found.intervals[name]
        assert (shown.low, shown.high) == (pytest.approx(low, abs=0.003), pytest.approx(high, abs=0.003))
    assert found.intervals["gap"].low < ledger.bits_per_byte.gap < found.intervals["gap"].high < 0
    assert measure_pages(ledger, seed=3) == found


def test_copies_of_a_page_are_redrawn_together() -> None:
    ledger = page_ledger(2)
    doubled = replace(ledger, pages=(*ledger.pages, *ledger.pages))
    assert measure_pages(doubled).intervals == measure_pages(ledger).intervals
    assert measure_pages(doubled).num_pages == 2


def test_intervals_stand_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = write_report(tmp_path, page_ledger(), facts())
    assert parts.page_statistics is not None
    gap = interval(parts.page_statistics.intervals["gap"])
    ours = unsigned_interval(parts.page_statistics.intervals["lm_eval"])
    print_report(parts, tmp_path)
    for text in (capsys.readouterr().out, *((tmp_path / name).read_text() for name in ("report.md", "report.html"))):
        assert gap in text
        assert ours in text
        assert "for other pages like these" in text.replace("\n", " ")
    assert gap.replace("-", "$-$") in (tmp_path / "table.tex").read_text()
    document = json.loads((tmp_path / "reconcile.json").read_text())
    shown = document["intervals"]["bits_per_byte_gap"]["interval"]
    assert shown["low"] == parts.page_statistics.intervals["gap"].low
    assert document["statistics"]["num_pages"] == 12


def test_one_page_alone_has_no_interval_and_is_told_why(tmp_path: Path) -> None:
    parts = write_report(tmp_path, page_ledger(1), facts())
    assert "there are no intervals: an interval needs 2 different pages" in (tmp_path / "report.md").read_text()
    assert parts.document["intervals"] == {}
    assert "2 different pages" in parts.document["statistics"]["reason"]


def test_few_pages_are_called_few() -> None:
    assert "too narrow" in section(report_parts(page_ledger(9), facts()), "Bits per byte").after[0]
    assert "too narrow" not in section(report_parts(page_ledger(10), facts()), "Bits per byte").after[0]


def test_the_figures_caption_says_n_and_both_protocols(tmp_path: Path) -> None:
    write_report(tmp_path, page_ledger(), facts())
    said = (
        "n = 12 pages that both scored. One unit on both sides; lower is better. "
        "lm-eval: detokenised text, rolling window, printed per word. Inspect: raw text, rolling window, "
        "printed per token."
    )
    assert page_figures(page_ledger())["waterfall"].caption == said
    assert said in (tmp_path / "report.html").read_text()


def test_the_recipe_is_in_every_form_and_one_text_on_both_sides_needs_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = write_report(tmp_path, page_ledger(), facts(limit=4, folder="runs/x"))
    first = "python -m reconcile wikitext --model a/model --data sample --limit 4 --dtype float32"
    first += " --lm-eval-text raw --inspect-text raw --no-cache"
    print_report(parts, tmp_path)
    printed = capsys.readouterr().out
    assert "To make the two agree, in bits per byte" in printed
    for text in (printed, (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()):
        assert first in text
    assert section(report_parts(page_ledger(same_text=True), facts()), "Recipe").is_empty


DECODER = {"lm_eval": {"model_fingerprint": "f"}, "inspect": {"model_fingerprint": "f", "provider": "decoder"}}


def test_logs_of_the_decoder_get_the_recipe_without_files_that_no_run_left() -> None:
    logs = facts(name="wikitext", data="EleutherAI/wikitext_document_level", settings=DECODER)
    commands = section(report_parts(page_ledger(), logs), "Recipe").commands
    proofs = [one for one in commands if one.startswith("python -m reconcile wikitext --model a/model --data hub ")]
    assert [one.split(" --lm-eval-text ")[1] for one in proofs] == [
        "raw --inspect-text raw --no-cache",
        "detokenised --inspect-text detokenised --no-cache",
    ]
    assert len([one for one in commands if one.startswith("inspect eval ")]) == 2
    assert not [one for one in commands if "--include_path" in one]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "wikitext", "settings": {**DECODER, "inspect": {"model": "vllm/m"}}},
        {"name": "wikitext", "data": "not named", "settings": DECODER},
        {"name": "paloma", "task": "paloma", "settings": DECODER},
        {"folder": "runs/x", "model": "hf (lm-eval) and vllm/m (Inspect)"},
    ],
)
def test_other_runs_over_pages_are_told_that_no_command_is_known(changes: dict[str, Any]) -> None:
    found = section(report_parts(page_ledger(), facts(**changes)), "Recipe")
    assert not found.commands
    assert "No command is known" in found.sentences[0]
    assert "lm-eval's is detokenised, Inspect's raw" in found.sentences[1]
