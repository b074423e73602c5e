"""report.html in a real browser: it works, asks for nothing, fits a phone, and runs nothing that data says."""

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from reconcile.cli import main
from reconcile.decompose import decompose
from reconcile.report.html import report_page
from reconcile.report.writing import report_parts
from reconcile.run_folder import DOCUMENT_NAME

REPOSITORY = Path(__file__).resolve().parents[3]

MOST_BYTES, MOST_SECONDS = 15_000_000, 2.0


def page_of(recorded, path: Path) -> Path:
    """The page of two recorded runs."""
    parts = report_parts(decompose(recorded.lm_eval, recorded.inspect), recorded.facts)
    path.write_text(report_page(parts), encoding="utf-8", newline="\n")
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory, make_recorded, make_questions) -> Path:
    return page_of(make_recorded(make_questions(120, 6)), tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def opened(browser, page):
    """The browser on the page, at a desk's size."""
    return opened_at(browser, page, 1280, 900)


def opened_at(browser, page: Path, width: int, height: int, *, phone: bool = False):
    browser.resize(width, height, phone=phone)
    browser.open("about:blank")
    browser.console()
    browser.requests()
    browser.open(page.as_uri())
    return browser


def problems(browser) -> list[str]:
    return [entry["message"] for entry in browser.console() if entry["level"] in ("SEVERE", "WARNING")]


def shown(browser) -> str:
    return browser.run("return document.querySelector('#shown').textContent")


def choose(browser, name: str, text: str) -> None:
    """Picks the option of a filter whose text begins so."""
    found = browser.run(
        "const [name, text] = arguments; const select = document.querySelector('#filters')[name];"
        "const option = [...select.options].find((one) => one.textContent.startsWith(text));"
        "if (!option) return false; select.value = option.value;"
        "select.dispatchEvent(new Event('input', {bubbles: true})); return option.textContent",
        name,
        text,
    )
    assert found, (name, text)


def test_it_opens_from_a_file_without_a_request_or_a_complaint(opened, page):
    assert opened.run("return document.documentElement.dataset.ready") == "yes"
    assert opened.requests() == [page.as_uri()]
    assert problems(opened) == []
    assert shown(opened) == "120 of 120 items"


def test_what_a_reader_decides_by_is_on_the_first_screen(opened):
    inside = "return document.querySelector(arguments[0]).getBoundingClientRect().top < innerHeight"
    wanted = (".lead", ".board figure", ".gap-line", "#gap figure", ".cells tbody tr", "#prompts", "[data-copy]")
    for selector in wanted:
        assert opened.run(inside, selector), selector


@pytest.mark.parametrize(("width", "height", "phone"), [(1280, 900, False), (390, 844, True)])
def test_nothing_overflows(browser, page, width, height, phone, tmp_path):
    browser = opened_at(browser, page, width, height, phone=phone)
    measure = "return [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"
    assert browser.run(measure) == [width] * 3
    browser.screenshot(tmp_path / f"page-{width}.png", whole=True)
    assert (tmp_path / f"page-{width}.png").stat().st_size > 50_000
    browser.run("document.querySelector('[data-item]').click()")
    assert browser.run("const d = document.querySelector('.inner'); return d.scrollWidth <= d.clientWidth")
    assert browser.run(measure) == [width] * 3
    sticking_out = (
        "const outer = document.querySelector('.inner').getBoundingClientRect();"
        "return [...document.querySelectorAll('.inner > *, .inner .prompt, .inner .scroll')]"
        ".filter((e) => e.getBoundingClientRect().right > outer.right + 1).map((e) => e.className)"
    )
    assert browser.run(sticking_out) == []


def test_filters_narrow_the_list_and_add_up(opened):
    counts = opened.run(
        "return [...document.querySelector('#filters').outcome.options].slice(1).map((o) => o.textContent)"
    )
    assert sum(int(text.rsplit("(", 1)[1][:-1]) for text in counts) == 120
    choose(opened, "outcome", "only lm-eval right")
    only = int(shown(opened).split()[0])
    assert 0 < only < 120
    choose(opened, "subject", "subject_03")
    assert 0 < int(shown(opened).split()[0]) < only
    choose(opened, "outcome", "any")
    assert shown(opened) == "20 of 120 items"
    choose(opened, "subject", "any")
    choose(opened, "component", "template: changes the pick")
    changed = opened.run("return document.querySelector('#filters').component.selectedOptions[0].textContent")
    assert shown(opened) == f"{changed.rsplit('(', 1)[1][:-1]} of 120 items"


def test_the_items_that_tie_can_be_told_from_the_others(browser, tmp_path, make_recorded, make_questions):
    recorded = make_recorded(make_questions(12, 1))
    tying = [with_tie(one) if place in (2, 5, 7) else one for place, one in enumerate(recorded.lm_eval.samples)]
    recorded = replace(recorded, lm_eval=replace(recorded.lm_eval, samples=tuple(tying)))
    opened = opened_at(browser, page_of(recorded, tmp_path / "report.html"), 1280, 900)
    options = opened.run("return [...document.querySelector('#filters').ties.options].map((o) => o.textContent)")
    assert options == ["any", "lm-eval: best choices tie (3)"]
    choose(opened, "ties", "lm-eval")
    assert shown(opened) == "3 of 12 items"
    assert opened.run("return [...document.querySelectorAll('.row .no')].map((e) => e.textContent)") == ["3", "6", "8"]
    choose(opened, "ties", "any")
    assert shown(opened) == "12 of 12 items"


def test_without_a_tie_there_is_no_filter_for_ties(opened):
    assert opened.run("return document.querySelector('#filters').ties.parentElement.hidden")


def with_tie(sample):
    """The sample with its first two choices level above the others."""
    return replace(
        sample,
        scores=tuple(
            replace(score, logprob=-0.001 if place < 2 else -9.0) for place, score in enumerate(sample.scores)
        ),
    )


def test_search_finds_a_question(opened):
    opened.type("[name=search]", "77:")
    assert shown(opened) == "1 of 120 items"
    assert opened.run("return document.querySelector('.row .what').textContent").startswith("77:")
    opened.type("[name=search]", " nosuchword")
    assert shown(opened) == "0 of 120 items"


def test_an_item_opens_by_keyboard_with_prompts_numbers_and_what_flips_it(opened):
    choose(opened, "outcome", "only lm-eval right")
    opened.run("document.querySelector('#list').focus()")
    opened.keys("Down", "Enter")
    assert opened.run("return document.querySelector('#item').open")
    text = opened.run("return document.querySelector('.inner').innerText")
    assert "From lm-eval's protocol" in text
    assert "right answer" in text
    assert "5-shot beginning of the sub-task's prompts" in text
    assert opened.run("return document.querySelectorAll('.inner mark.ins').length") > 0
    assert opened.run("return document.querySelectorAll('.inner mark.del').length") > 0
    assert opened.run("return document.querySelectorAll('.inner table').length") == 3
    assert "#item=" in opened.run("return location.hash")
    first = opened.run("return document.querySelector('#item-title').textContent")
    opened.keys("Right")
    assert opened.run("return document.querySelector('#item-title').textContent") != first
    opened.keys("Escape")
    assert not opened.run("return document.querySelector('#item').open")
    assert opened.run("return document.activeElement.id") == "list"


def test_the_numbers_of_an_item_are_the_ledgers(browser, tmp_path, make_recorded, make_questions):
    recorded = make_recorded(make_questions(8, 1))
    opened = opened_at(browser, page_of(recorded, tmp_path / "report.html"), 1280, 900)
    for place, (left, right) in enumerate(zip(recorded.lm_eval.samples, recorded.inspect.samples, strict=True)):
        opened.run("document.querySelectorAll('.row')[arguments[0]].click()", place)
        tables = opened.run(
            "return [...document.querySelectorAll('.inner table')].slice(0, 2).map((table) =>"
            "[...table.tBodies[0].rows].map((row) => [...row.cells].slice(1).map((cell) => cell.textContent)))"
        )
        for rows, sample, by_tokens in zip(tables, (left, right), (False, True), strict=True):
            scores = [score.logprob / (score.num_tokens if by_tokens else 1) for score in sample.scores]
            ranks = [str(1 + sum(other > score for other in scores)) for score in scores]
            assert [row[0] for row in rows] == [f"{score.logprob:.4f}" for score in sample.scores]
            assert [row[4] for row in rows] == [f"{score:.4f}" for score in scores]
            assert [row[5] for row in rows] == ranks
        assert ("lm-eval picks " + "ABCD"[left.pick]) in opened.run("return document.querySelector('.inner').innerText")
        opened.keys("Escape")


def test_a_link_to_an_item_opens_it(browser, page):
    opened_at(browser, page, 1280, 900)
    browser.run("document.querySelectorAll('.row')[4].click()")
    key, title = browser.run("return [location.hash, document.querySelector('#item-title').textContent]")
    browser.open("about:blank")
    browser.open(page.as_uri() + key)
    assert browser.run("return document.querySelector('#item-title').textContent") == title


def test_the_command_is_copied(opened):
    opened.run("window.copied = null; addEventListener('copy', () => { copied = getSelection().toString(); })")
    opened.run(
        "const write = navigator.clipboard?.writeText.bind(navigator.clipboard);"
        "if (write) navigator.clipboard.writeText = (text) => { copied = text; return write(text); }"
    )
    opened.click("[data-copy]")
    wanted = opened.run(
        "return document.getElementById(document.querySelector('[data-copy]').dataset.copy).textContent"
    )
    deadline = time.monotonic() + 5
    while opened.run("return document.querySelector('[data-copy]').textContent") == "Copy":
        assert time.monotonic() < deadline
    assert wanted.startswith("python -m reconcile mmlu")
    assert opened.run("return copied") == wanted
    assert opened.run("return document.querySelector('[data-copy]').textContent") == "Copied"


def test_the_theme_switches_and_stays(opened, page):
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = opened.run(colour)
    opened.click("#theme")
    after = opened.run(colour)
    assert after != before
    opened.open(page.as_uri())
    assert opened.run(colour) == after
    opened.click("#theme")
    assert opened.run(colour) == before


def test_print_hides_what_only_a_screen_needs(opened):
    opened.devtools("Emulation.setEmulatedMedia", {"media": "print"})
    seen = "return getComputedStyle(document.querySelector(arguments[0])).display"
    assert opened.run(seen, "#list") == "none"
    assert opened.run(seen, ".bar") == "none"
    assert opened.run(seen, "#gap figure") == "block"
    opened.devtools("Emulation.setEmulatedMedia", {"media": ""})


def test_everything_that_acts_can_be_reached_and_is_named(opened):
    nameless = (
        "return [...document.querySelectorAll('button, a, select, input, [tabindex], [role=img]')]"
        ".filter((e) => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).length"
    )
    assert opened.run(nameless) == 0
    assert opened.run("return document.querySelectorAll('h1').length") == 1
    opened.run("document.activeElement.blur()")
    opened.keys("Tab")
    assert opened.run("return document.activeElement.className") == "skip"


@pytest.mark.parametrize("phone", [False, True])
def test_a_hostile_run_is_inert(browser, tmp_path, make_recorded, hostile_questions, phone):
    page = page_of(make_recorded(hostile_questions, model="<script>owned=1</script>\x00"), tmp_path / "report.html")
    width = 390 if phone else 1280
    browser = opened_at(browser, page, width, 900, phone=phone)
    assert browser.run("return document.documentElement.scrollWidth") == width
    for place in range(len(hostile_questions)):
        browser.run("document.querySelectorAll('.row')[arguments[0]].click()", place)
        assert browser.run("return document.querySelector('#item').open")
        assert browser.run("const d = document.querySelector('.inner'); return d.scrollWidth <= d.clientWidth")
        browser.run("document.querySelector('#item').close()")
    assert browser.run("return typeof window.owned") == "undefined"
    assert browser.run("return document.querySelectorAll('img, iframe, #main script, .inner script').length") == 0
    assert not browser.run("return document.title").startswith("owned")
    assert browser.requests() == [page.as_uri()]
    assert problems(browser) == []


def test_fourteen_thousand_items_open_within_two_seconds(browser, tmp_path, make_recorded, make_questions):
    page = page_of(make_recorded(make_questions(14_042, 57)), tmp_path / "report.html")
    assert page.stat().st_size < MOST_BYTES
    seconds = []
    for _ in range(3):  # the best of three: the machine may be busy with other things
        opened_at(browser, page, 1280, 900)
        assert browser.run("return document.documentElement.dataset.ready") == "yes"
        seconds.append(browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000)
    print(f"14,042 items: {page.stat().st_size / 1e6:.1f} MB, open after {min(seconds):.2f} s")
    assert min(seconds) < MOST_SECONDS, seconds
    assert browser.run("return document.querySelectorAll('.row').length") < 50
    started = time.monotonic()
    browser.type("[name=search]", "13999:")
    assert shown(browser) == "1 of 14042 items"
    browser.run("document.querySelector('.row').click()")
    assert browser.run("return document.querySelector('#item-title').textContent") == "Item 14000 of 14042"
    assert time.monotonic() - started < MOST_SECONDS
    assert problems(browser) == []
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="module")
def real_run(tmp_path_factory, tiny_checkpoint) -> Path:
    """The folder of a run of both harnesses on a tiny model."""
    pytest.importorskip("lm_eval")
    pytest.importorskip("inspect_ai")
    folder = tmp_path_factory.mktemp("real") / "run"
    words = ["arc_easy", "--model", str(tiny_checkpoint), "--limit", "8", "--no-cache", "--out", str(folder)]
    result = subprocess.run(
        [sys.executable, "-m", "reconcile", *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert str(folder / "report.html") in result.stdout
    return folder


def test_a_real_run_opens_and_is_made_again_to_the_byte(browser, real_run, tmp_path):
    opened = opened_at(browser, real_run / "report.html", 1280, 900)
    assert shown(opened) == "8 of 8 items"
    where = opened.run(
        "const r = document.querySelector('#prompts').getBoundingClientRect(); return [r.top, innerHeight]"
    )
    assert where[0] < where[1], where
    opened.click("[data-item]")
    text = opened.run("return document.querySelector('.inner').innerText")
    assert "Answer the following multiple choice question" in text
    assert "Question:" in text
    assert opened.requests() == [(real_run / "report.html").as_uri()]
    assert problems(opened) == []
    assert main(["report", str(real_run), "--out", str(tmp_path)]) == 0
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert path.read_bytes() == (real_run / path.relative_to(tmp_path)).read_bytes(), path


def test_the_page_of_a_run_of_pages_opens(browser, tmp_path):
    from reconcile.perplexity import decompose_pages
    from reconcile.report.document import write_document
    from reconcile.report.facts import RunFacts
    from reconcile.runs import HarnessRun, ItemKey, PageRecord, Protocol, Status

    def run(harness, text, nll, tokens, value):
        page = PageRecord(
            key=ItemKey(digest="p"), sample_id="p", nll=nll, num_tokens=tokens, num_words=4, num_bytes=20, text=text,
            window="rolling", status=Status.SCORED,
        )  # fmt: skip
        protocol = Protocol(template="lm-eval", num_fewshot=0, normalisation="none", tie_break="first")
        headline = next(iter(value))
        return HarnessRun(
            harness=harness, task="wikitext", headline=headline, protocol=protocol, pages=(page,), reported=value
        )

    left = run("lm_eval", "detokenised", 12.0, 5, {"word_perplexity,none": 2.718281828459045**3})
    right = run("inspect", "raw", 15.0, 6, {"perplexity_per_token": 2.718281828459045**2.5})
    facts = RunFacts(
        task="wikitext", model="m", model_fingerprint=None, dtype=None, logits_dtype=None, data="sample",
        data_fingerprint=None, limit=None, seed=0, shared_store=False,
    )  # fmt: skip
    parts = report_parts(decompose_pages(left, right), facts)
    write_document(tmp_path / DOCUMENT_NAME, parts.document)
    page = tmp_path / "report.html"
    page.write_text(report_page(parts), encoding="utf-8")
    browser = opened_at(browser, page, 390, 844, phone=True)
    assert browser.run("return document.documentElement.scrollWidth") == 390
    assert "bits per byte" in browser.run("return document.querySelector('h1').textContent")
    assert problems(browser) == []
