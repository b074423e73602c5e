"""The report of a run over pages: what differs, how sure its numbers are, and what to type."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reconcile.page_ledger import PageLedger
from reconcile.perplexity import decompose_pages
from reconcile.report.facts import RunFacts
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
