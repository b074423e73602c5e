"""Every form of a report: the same bytes from the same folder, nothing that data says acts, all there is to say."""

import gzip
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import pytest

from llm.errors import InputError
from reconcile.cli import main
from reconcile.decompose import decompose
from reconcile.ranking import ModelCredits, rank_models
from reconcile.report import style
from reconcile.report.explorer import explorer_document
from reconcile.report.forms import FORMATS, write_forms
from reconcile.report.markdown import plain
from reconcile.report.prompt_diff import compare
from reconcile.report.ranking_page import write_ranking_forms
from reconcile.report.records import RECORDS_NAME, read_records, write_records
from reconcile.report.svg import Drawing, Figure, Scale, standalone
from reconcile.report.texts import visible
from reconcile.report.verdict import verdict_sentence
from reconcile.report.writing import report_parts, write_report
from reconcile.run_folder import DOCUMENT_NAME

REPOSITORY = Path(__file__).resolve().parents[2]


def left_folder(folder: Path, recorded) -> Path:
    """The folder that a run over these records leaves (its harnesses' own logs aside)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_records(folder / RECORDS_NAME, recorded)
    write_report(folder, decompose(recorded.lm_eval, recorded.inspect), recorded.facts)
    return folder


@pytest.fixture(scope="module")
def recorded(make_recorded, make_questions):
    return make_recorded(make_questions(60, 4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, recorded) -> Path:
    return left_folder(tmp_path_factory.mktemp("run") / "run", recorded)


@pytest.fixture
def hostile(tmp_path, make_recorded, hostile_questions) -> Path:
    return left_folder(tmp_path / "hostile", make_recorded(hostile_questions, model="<img src=x>|`m`\x00"))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class TestFolder:
    def test_a_run_leaves_every_form(self, folder):
        names = set(files_of(folder))
        wanted = {"report.html", "report.md", "reconcile.json", "items.csv", "items.parquet", "table.tex", RECORDS_NAME}
        assert wanted <= names
        assert {f"plots/{name}.svg" for name in ("waterfall", "scores", "forest", "scatter", "outcomes")} <= names

    def test_any_form_is_made_again_to_the_byte(self, folder, tmp_path, capsys):
        before = files_of(folder)
        for place in ("one", "other"):
            assert main(["report", str(folder), "--format", "html,md,latex,plots", "--out", str(tmp_path / place)]) == 0
        assert "report.html" in capsys.readouterr().out
        one = files_of(tmp_path / "one")
        assert one == files_of(tmp_path / "other")
        assert one == {name: before[name] for name in one}
        assert main(["report", str(folder)]) == 0
        assert files_of(folder) == before

    def test_the_plots_flag_adds_the_plots(self, folder, tmp_path):
        assert main(["report", str(folder), "--plots", "--out", str(tmp_path)]) == 0
        assert {Path(name).parts[0] for name in files_of(tmp_path)} == {"plots"}

    def test_rebuilding_needs_neither_torch_nor_a_harness(self, folder, tmp_path):
        code = (
            "import sys; from reconcile.cli import main; code = main(sys.argv[1:])\n"
            "heavy = {'torch', 'lm_eval', 'inspect_ai', 'transformers', 'datasets'} & set(sys.modules)\n"
            "assert code == 0 and not heavy, (code, heavy)"
        )
        words = ["report", str(folder), "--out", str(tmp_path)]
        result = subprocess.run([sys.executable, "-c", code, *words], cwd=REPOSITORY, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr

    def test_records_hold_both_runs_to_the_last_field(self, folder, recorded):
        assert read_records(folder / RECORDS_NAME) == recorded

    def test_records_name_logs_from_their_own_folder(self, tmp_path, recorded, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "run.partial").mkdir()
        logs = (str(tmp_path / "run.partial" / "inspect" / "a.eval"), "run.partial/inspect/b.eval", "/elsewhere/c.eval")
        runs = replace(recorded, inspect=replace(recorded.inspect, log_files=logs))
        write_records(Path("run.partial") / RECORDS_NAME, runs)
        read = read_records(Path("run.partial") / RECORDS_NAME)
        assert read.inspect.log_files == ("inspect/a.eval", "inspect/b.eval", "/elsewhere/c.eval")

    def test_records_of_hostile_texts_too(self, tmp_path, make_recorded, hostile_questions):
        recorded = make_recorded(hostile_questions)
        write_records(tmp_path / "one", recorded)
        write_records(tmp_path / "other", recorded)
        assert read_records(tmp_path / "one") == recorded
        assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()

    def test_records_name_no_secret(self, tmp_path, recorded):
        settings = {"model_arg api_key": "sk-1", "model_arg token": "t-1", "bos_token": "<s>", "model": "m"}
        told = replace(recorded, inspect=replace(recorded.inspect, settings=settings))
        write_records(tmp_path / "records", told)
        assert read_records(tmp_path / "records").inspect.settings == {"bos_token": "<s>", "model": "m"}

    @pytest.mark.parametrize(
        ("words", "names"),
        [
            (["report", "nowhere"], "nowhere"),
            (["report", "."], RECORDS_NAME),
            (["report", "{run}", "--format", "pdf"], "pdf"),
            (["report", "{run}", "--format", ","], "nothing"),
            (["report"], "RUN"),
            (["diff", "{run}"], "RUN_B"),
            (["diff", "{run}", "nowhere"], "nowhere"),
            (["diff", "{run}", "{run}", "--fail-over", "much"], "much"),
        ],
    )
    def test_what_cannot_be_done_is_one_sentence(self, words, names, folder, capsys):
        assert main([word.format(run=folder) for word in words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert names in line

    @pytest.mark.parametrize(
        "words",
        [
            "report {}",
            "diff {} {whole}",
            "diff {whole} {}/reconcile.json",
            "agreement {whole} {}",
            "logs --lm-eval {}/lm_eval --inspect {whole}/inspect",
            "logs --lm-eval {whole}/lm_eval --inspect {}/inspect",
        ],
    )
    def test_an_unfinished_run_is_not_read(self, words, folder, tmp_path, monkeypatch, capsys):
        unfinished = tmp_path / "run.partial"
        shutil.copytree(folder, unfinished)
        monkeypatch.chdir(tmp_path)
        assert main(words.format("run.partial", whole=folder).split()) == 2
        message = capsys.readouterr().err.splitlines()[-1]
        assert message.startswith(
            f"reconcile: {unfinished.resolve()} is an unfinished run: give the same command again"
        )
        assert list(tmp_path.iterdir()) == [unfinished]

    def test_damaged_records_are_one_sentence(self, tmp_path, folder):
        whole = (folder / RECORDS_NAME).read_bytes()
        lines = gzip.decompress(whole).split(b"\n")
        for damaged in (whole[: len(whole) // 2], b"", b"text", gzip.compress(lines[1]), gzip.compress(b"{}\n")):
            (tmp_path / RECORDS_NAME).write_bytes(damaged)
            with pytest.raises(InputError, match="run the comparison again"):
                read_records(tmp_path / RECORDS_NAME)


class PageReader(HTMLParser):
    """Tags, attributes and element texts of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside: str | None = None

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts.append(data)


def read_page(text: str) -> PageReader:
    reader = PageReader()
    reader.feed(text)
    reader.close()
    return reader


class TestPage:
    def test_it_asks_nothing_of_anything_elsewhere(self, folder):
        page = read_page((folder / "report.html").read_text(encoding="utf-8"))
        for tag, attributes in page.tags:
            assert tag not in ("link", "img", "iframe", "object", "embed", "video", "audio", "base"), tag
            assert not {"src", "srcset", "style", "onclick", "onload", "onerror"} & attributes.keys(), (tag, attributes)
            assert (attributes.get("href") or "#").startswith("#")
        (policy,) = [a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv")]
        assert policy is not None
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        css = (folder / "report.html").read_text(encoding="utf-8")
        assert not re.search(r"url\(|@import", css.split("</style>")[0])

    def test_hostile_texts_make_no_element(self, hostile, folder):
        page = read_page((hostile / "report.html").read_text(encoding="utf-8"))
        plain_page = read_page((folder / "report.html").read_text(encoding="utf-8"))
        assert {tag for tag, _ in page.tags} <= {tag for tag, _ in plain_page.tags} | {"details", "summary"}
        assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
        assert [tag for tag, _ in page.tags].count("script") == len(page.scripts) == 3

    def test_its_data_are_read_back_as_they_were(self, hostile, hostile_questions):
        page = read_page((hostile / "report.html").read_text(encoding="utf-8"))
        index, rows = json.loads(page.scripts[0]), json.loads(page.scripts[1])
        assert index["question"] == [visible(question).strip() for _, question, _, _ in hostile_questions]
        assert [row[2] for row in rows] == [
            [visible(c).strip() for c in choices] for *_, choices, _ in hostile_questions
        ]

    def test_every_prompt_is_whole_again_from_its_shape(self, recorded, make_recorded, hostile_questions):
        for runs in (recorded, make_recorded(hostile_questions)):
            ledger = decompose(runs.lm_eval, runs.inspect)
            index, rows = explorer_document(ledger)
            for place, (row, pair) in enumerate(zip(rows, ledger.items.pairs, strict=True)):
                for side, sample in zip((row[3], row[4]), pair, strict=True):
                    texts = {-1: index["question"][place], **{-2 - at: choice for at, choice in enumerate(row[2])}}
                    pieces = index["shapes"][side[1]]
                    made = "".join(index["literals"][p] if p >= 0 else texts[p] for p in pieces)
                    prefix = index["prefixes"][side[0] - 1] if side[0] else ""
                    assert prefix + made == visible(sample.prompt)

    def test_shared_texts_are_stored_once(self, recorded):
        ledger = decompose(recorded.lm_eval, recorded.inspect)
        index, _ = explorer_document(ledger)
        assert len(index["prefixes"]) == 8  # four sub-tasks, two harnesses
        assert len(index["shapes"]) <= 8 + 8

    def test_the_masks_are_the_ledgers(self, recorded):
        ledger = decompose(recorded.lm_eval, recorded.inspect)
        index, _ = explorer_document(ledger)
        for bit, (name, _) in enumerate(index["factors"]):
            component = ledger.component(name)
            assert sum(mask >> bit & 1 for mask in index["moves"]) == component.items_up + component.items_down
        for bit, (name, _) in enumerate(index["switches"]):
            assert sum(mask >> bit & 1 for mask in index["changes"]) == ledger.component(name).picks_changed


class TestVerdict:
    def test_it_names_tokens_parts_and_the_smallest_set(self, recorded):
        sentence = verdict_sentence(decompose(recorded.lm_eval, recorded.inspect))
        assert "never scored the same tokens (0 of 240 requests)" in sentence
        assert "differ in template, length normalisation and tie-break" in sentence
        assert "makes every item's credit agree" in sentence
        assert sentence.count(".") == 1

    def test_one_protocol_twice_differs_in_nothing(self, recorded):
        sentence = verdict_sentence(decompose(recorded.lm_eval, replace(recorded.lm_eval, harness="inspect")))
        assert "All 240 requests had the same tokens, and those the same logprobs" in sentence
        assert "the same in every part" in sentence
        assert "no item's credit differs" in sentence


class TestMarkdown:
    def test_a_pull_request_comment_stays_short(self, tmp_path, make_recorded, make_questions):
        folder = left_folder(tmp_path / "run", make_recorded(make_questions(240, 57)))
        text = (folder / "report.md").read_text(encoding="utf-8")
        assert text.count("\n") < 200
        assert text.count("<details>") == text.count("</details>") > 3
        assert "more rows, which report.html has" in text
        assert text.startswith("# MMLU-format sample")

    def test_hostile_texts_stay_text(self, hostile):
        text = (hostile / "report.md").read_text(encoding="utf-8")
        rest = re.sub(r"</?details>|</?summary>|<!-- -->", "", text)
        assert "<" not in re.sub(r"```.*?```", "", rest, flags=re.DOTALL)
        assert "\x00" not in text

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("a|b", "a\\|b"),
            ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
            ("[x](http://y)", "[x]\\(http://y)"),
            ("@team and a@b", "@<!-- -->team and a@b"),
            ("# head", "\\# head"),
            ("two\nlines", "two lines"),
            ("[-0.1, +0.2]", "[-0.1, +0.2]"),
        ],
    )
    def test_marks_are_disarmed(self, text, shown):
        assert plain(text) == shown


class TestOtherForms:
    def test_latex_has_every_component_and_balanced_braces(self, folder, hostile):
        for place in (folder, hostile):
            text = (place / "table.tex").read_text(encoding="utf-8")
            bare = re.sub(r"\\[{}]", "", text)
            assert bare.count("{") == bare.count("}")
            assert "length normalisation" in text
            assert r"\toprule" in text
            assert not re.search(r"(?<!\\)[#%_]", text.replace("\\label{tab:reconcile-mmlu}", ""))

    def test_parquet_holds_prompts_scores_and_every_cell(self, folder, recorded):
        from pyarrow import parquet

        rows = parquet.read_table(folder / "items.parquet").to_pylist()
        ledger = decompose(recorded.lm_eval, recorded.inspect)
        assert len(rows) == ledger.items.num_items
        for row, (left, right) in zip(rows, ledger.items.pairs, strict=True):
            assert (row["question"], row["choices"]) == (left.question, list(left.choices))
            assert (row["lm_eval prompt"], row["inspect prompt"]) == (left.prompt, right.prompt)
            assert row["inspect continuations"] == list(right.continuations)
            assert row["lm_eval logprobs"] == [score.logprob for score in left.scores]
            means = [score.logprob / score.num_tokens for score in right.scores]
            assert row["inspect normalised_scores"] == means
        total = sum(Fraction(row["credit lm_eval"]) for row in rows) / len(rows)
        assert total == ledger.cell().exact

    def test_plots_are_sound_and_stand_alone(self, folder, hostile):
        for path in [*(folder / "plots").glob("*.svg"), *(hostile / "plots").glob("*.svg")]:
            root = ElementTree.parse(path).getroot()
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            text = path.read_text(encoding="utf-8")
            assert "n = " in text.replace("\n", " "), path
            assert not re.search(r"href|url\(|<script|@import", text)

    def test_a_missing_package_costs_one_form(self, tmp_path, recorded, monkeypatch):
        parts = report_parts(decompose(recorded.lm_eval, recorded.inspect), recorded.facts)
        monkeypatch.setattr("reconcile.report.forms.find_spec", lambda name: None if name == "jinja2" else object())
        assert set(write_forms(tmp_path, parts, FORMATS)) == set(FORMATS) - {"html"}

    def test_several_models_have_a_page_and_both_heatmaps(self, tmp_path, make_recorded, make_questions):
        questions = make_questions(80, 4)
        models = []
        for seed in (1, 2, 3):
            runs = make_recorded(questions, seed=seed)
            models.append(ModelCredits.of(f"model <{seed}>", decompose(runs.lm_eval, runs.inspect)))
        ranking = rank_models(models)
        write_ranking_forms(tmp_path, ranking, [])
        page = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert "model &lt;1&gt;" in page
        for name in ("subtasks", "pairs"):
            ElementTree.parse(tmp_path / "plots" / f"{name}.svg")
        assert f"{ranking.matrix[0][1].value:+.2f}" in (tmp_path / "plots" / "pairs.svg").read_text(encoding="utf-8")

    @pytest.mark.parametrize("earlier", [False, True])
    def test_an_agreement_folder_is_made_again_to_the_byte(
        self, tmp_path, make_recorded, make_questions, capsys, earlier
    ):
        runs = [
            left_folder(tmp_path / f"run-{seed}", make_recorded(make_questions(40, 4), seed=seed, model=f"m-{seed}"))
            for seed in (1, 2, 3)
        ]
        folder = tmp_path / "both"
        assert main(["agreement", *map(str, runs), "--out", str(folder)]) == 0
        assert f"Full report: {folder / 'report.html'}" in capsys.readouterr().out
        wanted = {name: (folder / name).read_bytes() for name in files_of(folder)}
        for name in set(wanted) - {DOCUMENT_NAME}:
            (folder / name).unlink()
        if earlier:  # such a version's document has no gaps of sub-tasks: the runs have
            document = json.loads((folder / DOCUMENT_NAME).read_text(encoding="utf-8"))
            del document["subtask_gaps"]
            (folder / DOCUMENT_NAME).write_text(json.dumps(document), encoding="utf-8")
        else:
            for run in runs:
                shutil.rmtree(run)
        assert main(["report", str(folder)]) == 0
        assert capsys.readouterr().out.split() == [
            str(folder / name) for name in (DOCUMENT_NAME, "report.md", "plots", "report.html")
        ]
        assert {name: (folder / name).read_bytes() for name in files_of(folder)} == wanted
        assert main(["report", str(folder), "--format", "md", "--out", str(tmp_path / "other")]) == 0
        assert set(files_of(tmp_path / "other")) == {"report.md"}
        capsys.readouterr()
        assert main(["report", str(folder), "--format", "html,latex"]) == 2
        assert "an agreement has no latex" in capsys.readouterr().err
        folder.rename(folder.with_name("both.partial"))
        assert main(["report", str(folder.with_name("both.partial"))]) == 2
        assert "is an unfinished run" in capsys.readouterr().err

    def test_the_agreement_command_reads_folders_and_leaves_a_page(self, tmp_path, make_recorded, make_questions):
        runs = []
        for seed in (1, 2):
            recorded = make_recorded(make_questions(40, 4), seed=seed, model=f"model-{seed}")
            runs.append(str(left_folder(tmp_path / f"run-{seed}", recorded)))
        assert main(["agreement", *runs, "--out", str(tmp_path / "both")]) == 0
        left = set(files_of(tmp_path / "both"))
        assert {"report.html", "report.md", "reconcile.json", "plots/pairs.svg", "plots/subtasks.svg"} <= left


class TestStyle:
    @pytest.mark.parametrize("ground", ["light", "dark"])
    def test_contrast_is_aa(self, ground):
        grounds = [getattr(tone, ground) for tone in style.GROUNDS.values()]
        for name, tone in style.INKS.items():
            assert min(style.contrast(getattr(tone, ground), back) for back in grounds) >= 4.5, name
        for name, tone in style.COMPONENTS.items():
            assert min(style.contrast(getattr(tone, ground), back) for back in grounds) >= 3, name
        for mark in ("del", "ins"):
            back = getattr(style.LINES[mark], ground)
            assert style.contrast(getattr(style.INKS["ink"], ground), back) >= 4.5
        assert all(style.contrast(style.heat_ink(colour), colour) >= 4.5 for colour in style.HEAT)

    def test_every_component_has_a_colour_of_its_own(self):
        for ground in ("light", "dark"):
            assert len({getattr(tone, ground) for tone in style.COMPONENTS.values()}) == len(style.COMPONENTS)

    def test_ticks_are_round_and_inside(self):
        for low, high in ((0.0, 1.0), (-0.13, 0.27), (6.7, 7.1), (-3.0, 4000.0), (0.1, 0.1004)):
            scale = Scale(low=low, high=high, start=0, end=100)
            ticks = scale.ticks()
            assert 1 <= len(ticks) <= 7
            assert all(low <= tick <= high for tick in ticks)

    def test_a_figure_alone_carries_both_grounds(self):
        drawing = Drawing(10)
        drawing.text(0, 5, "a < b & \x00")
        text = standalone(Figure(name="x", title="<t>", caption="n = 1", drawing=drawing))
        ElementTree.fromstring(text)
        assert style.INKS["ink"].light in text
        assert style.INKS["ink"].dark in text


class TestTexts:
    def test_what_cannot_be_seen_is_named(self):
        assert visible("a\x00\u202eb\ud800\n\tc") == "a␀⟨U+202E⟩b⟨U+D800⟩\n\tc"
        assert visible("👩‍👧 ünï 漢字") == "👩‍👧 ünï 漢字"
        visible("\ud83d\udc69").encode()

    def test_a_prompt_diff_keeps_every_letter(self):
        left, right = "Question: what is it?\nAnswer:", "Pick one.\n\nwhat is it?\n\nANSWER:"
        ours, theirs = compare(left, right)
        assert "".join(s.text for s in ours) == left
        assert "".join(s.text for s in theirs) == right
        assert any(not s.changed and "what is it?" in s.text for s in ours)
        assert compare("same", "same")[0][0].changed is False


class TestDiff:
    @pytest.fixture
    def moved(self, tmp_path, recorded) -> Path:
        """The run again, one of 60 items newly wrong behind lm-eval by a logprob of the same tokens."""
        samples = list(recorded.lm_eval.samples)
        place = next(at for at, sample in enumerate(samples) if sample.credit == 1)
        one = samples[place]
        scores = tuple(
            replace(score, logprob=-50.0) if at == one.gold else score for at, score in enumerate(one.scores)
        )
        pick = max((at for at in range(4) if at != one.gold), key=lambda at: scores[at].logprob)
        samples[place] = replace(one, scores=scores, credit=Fraction(0), pick=pick)
        value = float(sum(sample.credit for sample in samples) / len(samples))
        run = replace(recorded.lm_eval, samples=tuple(samples), reported={"acc": value})
        return left_folder(tmp_path / "moved", replace(recorded, lm_eval=run))

    @pytest.mark.parametrize(("allowed", "code"), [("1.0", 1), ("1.6", 1), ("1.7", 0), ("2", 0)])
    def test_it_fails_past_what_is_allowed(self, folder, moved, allowed, code, capsys):
        assert main(["diff", str(folder), str(moved), "--fail-over", allowed]) == code
        assert ("PAST" in capsys.readouterr().out) == bool(code)

    def test_equal_runs_and_no_limit_pass(self, folder, moved, capsys):
        assert main(["diff", str(folder), str(folder), "--fail-over", "0"]) == 0
        assert main(["diff", str(folder), str(moved)]) == 0
        assert "Largest change: lm-eval, -1.67 points" in capsys.readouterr().out

    def test_it_says_engine_or_protocol(self, folder, moved, tmp_path, capsys):
        assert main(["diff", str(folder), str(moved), "--out", str(tmp_path / "diff.md")]) == 0
        text = " ".join((tmp_path / "diff.md").read_text(encoding="utf-8").split())
        assert "the same tokens got other logprobs in lm-eval" in text
        assert "240/240 requests had the same tokens, 239/240 of those the same logprob" in text
        assert "0 better in B, 1 worse" in text

    def test_other_settings_are_named(self, folder, tmp_path, recorded, capsys):
        facts = replace(recorded.facts, dtype="bfloat16", versions={"python": "3.11", "torch": "3"})
        protocol = replace(recorded.inspect.protocol, seed=9)
        other = replace(recorded, facts=facts, inspect=replace(recorded.inspect, protocol=protocol))
        assert main(["diff", str(folder), str(left_folder(tmp_path / "other", other))]) == 0
        out = capsys.readouterr().out
        for words in ("model dtype", "bfloat16", "version of torch", "protocol of Inspect, seed"):
            assert words in out
        assert "model, protocol and version differ" in out

    def test_unlike_tasks_are_refused(self, folder, tmp_path, recorded, capsys):
        facts = replace(recorded.facts, task="arc_easy")
        other = left_folder(tmp_path / "other", replace(recorded, facts=facts))
        assert main(["diff", str(folder), str(other)]) == 2
        assert "arc_easy" in capsys.readouterr().err
