"""What a person sees while a run goes and when it ends: on a terminal of any width, in a pipe, and when quiet."""

import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import time
from dataclasses import replace
from fcntl import ioctl
from fractions import Fraction
from io import StringIO
from pathlib import Path
from termios import TIOCSWINSZ

import pytest
from rich.console import Console

from llm.scoring.requests import ScoreRequest, TokenScores
from llm.scoring.store import ScoreStore
from llm.scoring.stored_scorer import StoredScorer
from reconcile.decompose import decompose
from reconcile.harnesses import CountingScorer, WatchedEngine
from reconcile.ledger import UnexplainedItem
from reconcile.numerics import Numerics
from reconcile.progress import Progress, clock
from reconcile.ranking import ModelCredits, rank_models
from reconcile.report.diff import compare_runs, diff_sections
from reconcile.report.document import write_document
from reconcile.report.ledger_sections import cells_section, unexplained_section
from reconcile.report.names import side_names
from reconcile.report.numbers import difference
from reconcile.report.numerics_section import numerics_section
from reconcile.report.ranking_sections import ranking_sections
from reconcile.report.records import RECORDS_NAME, write_records
from reconcile.report.sections import Table
from reconcile.report.terminal import fitted, print_sections, print_table, widths
from reconcile.report.writing import print_report, report_parts
from reconcile.run_folder import DOCUMENT_NAME

CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


class Screen(StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def parts(make_recorded, make_questions):
    recorded = make_recorded(make_questions(60, 5), limit=12)
    return report_parts(decompose(recorded.lm_eval, recorded.inspect), recorded.facts)


def on_terminal(words: list[str], columns: int, **environment: str) -> tuple[str, int]:
    """What a command writes to a terminal of a width, and its exit code."""
    process, descriptor = pty.fork()
    if process == 0:
        os.environ.update({"TERM": "xterm-256color", **environment})
        os.environ.pop("COLUMNS", None)
        os.execv(sys.executable, [sys.executable, *words])
    ioctl(descriptor, TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    written, deadline = b"", time.monotonic() + 120
    while time.monotonic() < deadline and select.select([descriptor], [], [], 120)[0]:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # Linux's way of saying that the other end is closed
            break
        if not part:
            break
        written += part
    return written.decode(), os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
def test_tables_fit_from_sixty_columns_up(parts, columns):
    stream = StringIO()
    print_sections(Console(file=stream, width=columns), parts.title, parts.sections)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    text = " ".join(stream.getvalue().split())
    assert "length normalisation" in text
    for row in ("template", "tie-break", "coverage", "rounding", "unexplained", "sum = gap"):
        assert any(line.startswith(row) for line in lines), row
    assert ("picks changed" in text or "changed" in text) == (columns >= 80)


@pytest.fixture(scope="module")
def wide_sections(make_recorded, make_questions, tmp_path_factory):
    """Sections whose names, reasons and numbers are as long as they get, by what they show."""
    recorded = [
        make_recorded(make_questions(60, 5), seed=seed, model_fingerprint=f"{seed}" * 64, data_fingerprint="d" * 64)
        for seed in (1, 2, 3)
    ]
    ledgers = [decompose(one.lm_eval, one.inspect) for one in recorded]
    names = ("smollm2-135m-instruct bfloat16", "Qwen/Qwen2.5-0.5B-Instruct", "four-bit")
    ranking = rank_models([ModelCredits.of(name, one) for name, one in zip(names, ledgers, strict=True)])
    folders = [tmp_path_factory.mktemp(f"run-{number}") for number in (0, 1)]
    for folder, one, ledger in zip(folders, recorded, ledgers, strict=False):
        write_records(folder / RECORDS_NAME, one)
        write_document(folder / DOCUMENT_NAME, report_parts(ledger, one.facts).document)
    ledger = ledgers[0]
    item = UnexplainedItem(
        key="0123456789abcdef" * 4, occurrence=0, subject="high_school_european_history", side="both",
        logged_lm_eval=Fraction(1, 3), logged_inspect=Fraction(0), derived_lm_eval=None, derived_inspect=None,
        reason="no logprob of any choice is logged, so the step between the two protocols cannot be " + "seen " * 20,
    )  # fmt: skip
    cells = tuple(
        replace(cell, readout="generate" if place % 2 else "loglikelihood") for place, cell in enumerate(ledger.cells)
    )
    numerics = tuple(
        Numerics(
            side=side, way="one request a batch, float64", num_requests=14_042, max_difference=1.25e-05,
            median_difference=2.5e-07, num_items=3_500, picks_changed=12, noise=0.5, typical_noise=0.25,
            num_predictions=3_499, within_noise=1_234, within_typical=987,
        )
        for side in ("lm_eval", "inspect")
    )  # fmt: skip
    return {
        "ranking": ranking_sections(ranking),
        "diff": diff_sections(compare_runs(*folders)),
        "unexplained": [unexplained_section(replace(ledger, unexplained=(item,)))],
        "cells": [cells_section(replace(ledger, cells=cells))],
        "numerics": [numerics_section(replace(recorded[0].facts, numerics=numerics), side_names(ledger.harnesses))],
    }


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize("name", ["ranking", "diff", "unexplained", "cells", "numerics"])
def test_no_number_and_no_name_is_cut(wide_sections, name, columns):
    tables = [section.table for section in wide_sections[name] if section.brief and section.table is not None]
    assert tables
    for table in tables:
        stream = StringIO()
        print_table(Console(file=stream, width=columns), table)
        lines = stream.getvalue().splitlines()
        assert max(map(len, lines)) <= columns
        if table.headers[-1] == "why":
            said = " ".join(stream.getvalue().split())
            assert all(f"{row[0]}: {' '.join(row[-1].split())}" in said for row in table.rows)
            *headers, _ = table.headers
            table = replace(
                table, headers=tuple(headers), align=table.align[:-1], rows=tuple(row[:-1] for row in table.rows)
            )
            lines = lines[: next(at for at, line in enumerate(lines) if line.startswith(f"  {table.rows[0][0]}: "))]
        shown = fitted(table, columns)
        assert set(table.headers) - set(shown.headers) <= set(table.spare)
        places = widths(shown, columns)
        if sum(places) + 2 * (len(places) - 1) > columns:  # a list of each row
            assert {word for row in shown.rows for cell in row for word in cell.split()} <= set(" ".join(lines).split())
            continue
        start = 0
        for place, width in enumerate(places):  # each column by itself, its wrapped lines joined
            found = "".join("".join(line[start : start + width].split()) for line in lines)
            assert found == "".join("".join(row[place].split()) for row in (shown.headers, *shown.rows)), place
            start += width + 2


def test_numbers_never_wrap_and_what_is_too_wide_becomes_lists():
    table = Table(headers=("name", "one", "two"), align="lrr", rows=(("a model", "1" * 30, "2" * 30),))
    stream = StringIO()
    print_table(Console(file=stream, width=60), table)
    assert [line.split() for line in stream.getvalue().splitlines()] == [
        ["a", "model"],
        ["one", "1" * 30],
        ["two", "2" * 30],
    ]


def test_a_remainder_too_small_for_four_decimals_is_told_from_zero():
    assert [difference(value) for value in (0, Fraction(-1, 10**6), 2e-5, -0.00006)] == [
        "0",
        "-1.0e-06",
        "+2.0e-05",
        "-0.0001",
    ]


def test_a_table_gives_up_what_it_can_spare_and_no_more():
    table = Table(headers=("name", "one", "two"), align="lrr", rows=(("a", "1" * 20, "2" * 20),), spare=("two", "one"))
    assert fitted(table, 80).headers == ("name", "one", "two")
    assert fitted(table, 40).headers == ("name", "one")
    assert fitted(table, 20).headers == ("name",)
    assert sum(widths(table, 80)) <= 80


def test_a_pipe_gets_the_same_text_without_codes_or_spaces_at_line_ends(parts, tmp_path, capsys):
    print_report(parts, tmp_path)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert not re.search(r"[ \t]\n", out)
    said = " ".join(out.split())
    assert "the protocols differ in template, length normalisation and tie-break" in said
    assert "makes every item's credit agree" in said or "no item's credit differs" in said
    assert "\n  python -m reconcile mmlu --model" in out
    assert "The gap is accounted for: unexplained 0.\nFull report: " in out


def test_quiet_is_three_lines(parts, tmp_path, capsys):
    print_report(parts, tmp_path, quiet=True)
    scores, verdict, place = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"MMLU-format sample: lm-eval 0\.\d{4}, Inspect 0\.\d{4}, gap \S+", scores)
    assert verdict == "The gap is accounted for: unexplained 0."
    assert place.startswith("Full report: ")
    stream = Screen()
    with Progress(stream, quiet=True) as progress:
        progress.plan("lm-eval")
        progress.begin("scoring", row="lm-eval")
        progress.advance(1, 2, "requests")
        progress.say("done")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color_is_honoured(tmp_path, environment, coloured):
    script = (
        "from rich.text import Text\nfrom reconcile.report.terminal import make_console\n"
        "make_console().print(Text('verdict', style='bold green'))"
    )
    written, code = on_terminal(["-c", script], 80, **environment)
    assert code == 0
    assert bool(COLOUR.search(written)) == coloured
    assert "verdict" in CONTROL.sub("", written)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_one_display_shows_both_harnesses(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("reconcile.progress._BAR_EVERY_SECONDS", 0.0)
    stream = Screen()
    with Progress(stream) as progress:
        progress.plan("lm-eval", "Inspect")
        progress.begin("lm-eval is scoring", row="lm-eval")
        progress.advance(30, 160, "requests", tokens=9_000, seconds=2.0, stored=10)
        progress.say("a line said meanwhile")
        progress.begin("Inspect is scoring", row="Inspect")
        progress.advance(160, 160, "requests", stored=160)
    frames = CONTROL.sub("", stream.getvalue())
    assert "waiting" in frames
    unit = " requests" if columns >= 80 else ""
    assert f"30/160{unit} · 4,500 tok/s · 10 cached · 0:13 left" in frames
    assert f"160/160{unit} · 160 cached" in frames.splitlines()[-1]
    assert "a line said meanwhile" in frames
    assert max(len(line.rstrip()) for frame in frames.split("\r") for line in frame.splitlines()) <= columns
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h")  # the cursor comes back


def test_the_counter_tells_what_was_computed_from_what_was_found(tmp_path):
    class Engine:
        version = "1"

        def score(self, requests, *, top_k=0, on_scored=None):
            scores = [TokenScores(logprobs=(-1.0,), is_greedy=False) for _ in requests]
            for place, one in enumerate(scores):
                on_scored([place], [one])
            return scores

    asked = [ScoreRequest(context_ids=(1, 2), continuation_ids=(3 + number,)) for number in range(8)]
    counter = CountingScorer(Progress(StringIO()))
    counter.scorer = StoredScorer(WatchedEngine(Engine(), counter), ScoreStore(tmp_path / "scores.sqlite"), "m")
    counter.expect(6)
    counter.score(asked[:6])
    assert (counter.done, counter.stored, counter.tokens) == (6, 0, 18)
    counter.expect(9)
    counter.score([*asked, asked[0]])
    assert (counter.done, counter.stored, counter.tokens) == (9, 7, 6)


def test_times_are_written_as_a_clock_shows_them():
    assert [clock(seconds) for seconds in (0.4, 65, 3661)] == ["0:00", "1:05", "1:01:01"]


@pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="no pdflatex here: apt-get install texlive-latex-recommended"
)
def test_the_latex_table_compiles_and_fits_a_page(parts, tmp_path, make_recorded, hostile_questions):
    from reconcile.report.latex import latex_table

    recorded = make_recorded(hostile_questions, model="\\end{table} 50 % & $x$ #1 ~^_ <b> ε 👩 \x00")
    hostile = report_parts(decompose(recorded.lm_eval, recorded.inspect), recorded.facts)
    body = "\n".join(map(latex_table, (parts, hostile)))
    text = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}{body}\\end{{document}}"
    (tmp_path / "t.tex").write_text(text, encoding="utf-8")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, errors="replace")
    assert result.returncode == 0, result.stdout[-2000:]
    assert "Overfull" not in result.stdout
    assert (Path(tmp_path) / "t.pdf").stat().st_size > 10_000
