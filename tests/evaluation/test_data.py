"""Benchmark items: the sample set, folders laid out like the Hub, and what is said of data that cannot be used."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from llm.errors import InputError
from llm.evaluation import data
from llm.evaluation.harness.task_folders import mmlu_categories

MMLU_ROW = {"question": "What is 1 + 1?", "subject": "anatomy", "choices": ["1", "2", "3", "4"], "answer": 1}
ARC_ROW = {
    "id": "a",
    "question": "Which is hot?",
    "choices": {"text": ["ice", "fire", "snow"], "label": ["1", "2", "3"]},
    "answerKey": "2",
}


def write_repository(folder: Path, configs: dict[str, dict[str, list]]) -> Path:
    """A dataset repository: config -> split -> rows (a string stands for a raw line)."""
    lines = ["---", "configs:"]
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        for split, rows in splits.items():
            lines += [f"  - split: {split}", f"    path: {config}/{split}.jsonl"]
            file = folder / config / f"{split}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            texts = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
            file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    (folder / "README.md").write_text("\n".join([*lines, "---", "", "# Made up"]), encoding="utf-8")
    return folder


def mmlu_folder(root: Path, test: list, dev: list | None = None) -> Path:
    write_repository(root / "cais/mmlu", {"anatomy": {"test": test, "dev": dev or [MMLU_ROW]}})
    return root


def arc_folder(root: Path, test: list) -> Path:
    write_repository(root / "allenai/ai2_arc", {"ARC-Easy": {"train": [ARC_ROW], "test": test}})
    return root


# The sample set


def test_sample_mmlu_has_twelve_subjects_of_twelve_questions_in_all_four_groups():
    items = data.load_items("mmlu")
    sizes = Counter(item.subject for item in items)
    assert len(sizes) >= 12
    assert set(sizes.values()) == {12}
    assert {mmlu_categories()[subject] for subject in sizes} == {
        "mmlu_stem",
        "mmlu_humanities",
        "mmlu_social_sciences",
        "mmlu_other",
    }


def test_sample_answers_are_spread_evenly_and_choices_differ():
    for subject in data.subjects():
        test = data.load_items("mmlu", subjects=[subject])
        dev = data.load_fewshot("mmlu", subject=subject)
        assert sorted(Counter(item.gold for item in test).values()) == [3, 3, 3, 3]
        assert sorted(Counter(item.gold for item in dev).values()) == [1, 1, 1, 2]
        assert all(len(set(item.choices)) == 4 for item in test + dev)


def test_sample_arc_has_number_labels_and_three_and_five_choices():
    items = data.load_items("arc_easy")
    assert len(items) >= 60
    assert len(data.load_fewshot("arc_easy")) == 20
    assert len(data.load_items("arc_easy", split="validation")) >= 8
    assert Counter(len(item.choices) for item in items).keys() == {3, 4, 5}
    assert {item.labels[0] for item in items} == {"A", "1"}
    four = Counter(item.gold for item in items if len(item.choices) == 4)
    assert max(four.values()) - min(four.values()) <= 1
    assert all(len(set(item.choices)) == len(item.choices) for item in items)


def test_no_sample_question_stands_twice():
    items = data.load_items("mmlu") + data.load_items("arc_easy") + data.load_fewshot("arc_easy")
    items += data.load_items("arc_easy", split="validation")
    items += [item for subject in data.subjects() for item in data.load_fewshot("mmlu", subject=subject)]
    assert len({item.question for item in items}) == len(items)


def test_sample_pages_follow_wikitext_conventions():
    for split, least in (("test", 4), ("train", 1), ("validation", 1)):
        pages = data.load_pages(split=split)
        assert len(pages) >= least
        for page in pages:
            assert re.match(r" = [^=\n]+ = \n \n \S", page)
            assert re.search(r" \n \n = = [^=\n]+ = = \n \n", page)
            assert page.endswith(" . \n \n")
            assert 300 <= len(page.split()) <= 900
            assert " @-@ " in page
            assert " @,@ " in page
            assert " @.@ " in page
            assert not re.search(r"\w[,;:!?)]|\d\.\d|\w-\w", page), "punctuation stands apart from words"


@pytest.mark.parametrize("task", data.TASKS)
def test_sample_cards_say_that_it_is_not_the_benchmark(task):
    card = (data.task_folder(task) / "README.md").read_text(encoding="utf-8")
    assert f"Original sample {'pages' if task == 'wikitext' else 'questions'} in the layout of" in card
    assert "not the benchmark" in card


@pytest.mark.data
def test_sample_copies_no_question_of_the_benchmarks(shared_dir):
    def words(text: str) -> str:
        return " ".join(re.findall(r"[a-z0-9]+", text.lower()))

    real = str(shared_dir / "data")
    theirs = data.load_items("mmlu", real) + data.load_items("arc_easy", real) + data.load_fewshot("arc_easy", real)
    ours = data.load_items("mmlu") + data.load_items("arc_easy") + data.load_fewshot("arc_easy")
    assert not {words(item.question) for item in ours} & {words(item.question) for item in theirs}


# Sources


def test_datasets_loads_the_same_rows_from_the_same_place():
    datasets = pytest.importorskip("datasets")
    path = data.dataset_path("arc_easy")
    table = datasets.load_dataset(path, "ARC-Easy")["test"]
    assert [row["question"] for row in table] == [item.question for item in data.load_items("arc_easy")]
    subject = data.subjects()[0]
    table = datasets.load_dataset(data.dataset_path("mmlu"), subject)
    assert [row["answer"] for row in table["dev"]] == [
        item.gold for item in data.load_fewshot("mmlu", "sample", subject)
    ]
    pages = datasets.load_dataset(data.dataset_path("wikitext"), "wikitext-2-raw-v1")["test"]
    assert [row["page"] for row in pages] == data.load_pages()


def test_datasets_never_serves_another_folder_of_the_same_name_or_an_older_version(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def served(root: Path) -> list[str]:
        path = data.dataset_path("arc_easy", str(root))
        table = datasets.load_dataset(path, "ARC-Easy", cache_dir=str(tmp_path / "hf"))
        return [row["question"] for row in table["test"]]

    one = arc_folder(tmp_path / "one", [ARC_ROW])
    two = arc_folder(tmp_path / "two", [{**ARC_ROW, "question": "Which is cold?"}])
    assert served(one) == ["Which is hot?"]
    assert served(two) == ["Which is cold?"]
    arc_folder(one, [{**ARC_ROW, "question": "Which is warm?"}])
    assert served(one) == ["Which is warm?"]


def test_a_relative_folder_is_taken_from_the_shells_directory(tmp_path, monkeypatch):
    mmlu_folder(tmp_path / "here" / "mine", [MMLU_ROW])
    (tmp_path / "tasks").mkdir()
    monkeypatch.setenv("PWD", str(tmp_path / "here"))
    monkeypatch.chdir(tmp_path / "tasks")
    assert len(data.load_items("mmlu", "mine")) == 1
    with pytest.raises(InputError, match=re.escape(f"{tmp_path}/here/none")):
        data.load_items("mmlu", "none")


def test_parquet_files_named_by_a_pattern_read_like_lines(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    folder = arc_folder(tmp_path, [ARC_ROW]) / "allenai/ai2_arc"
    table = pyarrow.Table.from_pylist([ARC_ROW])
    for part in range(2):
        parquet.write_table(table, folder / f"ARC-Easy/test-0000{part}-of-00002.parquet")
    card = (folder / "README.md").read_text().replace("ARC-Easy/test.jsonl", "ARC-Easy/test-*")
    (folder / "README.md").write_text(card)
    assert [item.doc_id for item in data.load_items("arc_easy", str(tmp_path))] == [0, 1]


def test_a_line_separator_inside_a_text_ends_no_row(tmp_path):
    question = "One\u2028two\x85three"
    root = mmlu_folder(tmp_path, [{**MMLU_ROW, "question": question}, "", MMLU_ROW])
    assert [item.question for item in data.load_items("mmlu", str(root))] == [question, MMLU_ROW["question"]]


def test_hub_paths_are_the_hubs_and_need_no_network():
    assert [data.dataset_path(task, "hub") for task in data.TASKS] == [
        "cais/mmlu",
        "allenai/ai2_arc",
        "EleutherAI/wikitext_document_level",
    ]
    assert len(data.subjects("hub")) == 57
    data.validate("mmlu", "hub", subjects=["virology"])


def test_hub_without_network_is_one_sentence(tmp_path):
    pytest.importorskip("datasets")
    code = "from llm.evaluation.data import load_items\nload_items('arc_easy', 'hub')"
    environment = {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),
        "PATH": "/usr/bin",
        "PYTHONPATH": ":".join(sys.path),
    }
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("llm.errors.InputError: could not load allenai/ai2_arc (ARC-Easy, test) from the Hub")


def test_importing_loads_neither_torch_nor_a_harness():
    code = (
        "import sys, llm.evaluation.data, llm.evaluation.lm_eval_prompts\n"
        "print([m for m in ('torch', 'datasets', 'lm_eval', 'inspect_ai', 'transformers') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# Items


def test_items_keep_the_datas_order_labels_and_numbers(tmp_path):
    root = arc_folder(
        tmp_path, [ARC_ROW, {**ARC_ROW, "choices": {"text": list("vwxyz"), "label": list("ABCDE")}, "answerKey": "E"}]
    )
    numbers, letters = data.load_items("arc_easy", str(root))
    assert (numbers.labels, numbers.choices, numbers.gold) == (("1", "2", "3"), ("ice", "fire", "snow"), 1)
    assert (letters.gold, letters.doc_id, letters.subject) == (4, 1, "")


def test_limit_counts_within_each_subject():
    chosen = ["nutrition", "astronomy", "nutrition"]
    items = data.load_items("mmlu", subjects=chosen, limit=2)
    assert [(item.subject, item.doc_id) for item in items] == [
        ("nutrition", 0),
        ("nutrition", 1),
        ("astronomy", 0),
        ("astronomy", 1),
    ]
    assert data.load_items("mmlu", subjects="nutrition, astronomy", limit=2) == items
    assert len(data.load_pages(limit=3)) == 3


def test_item_key_is_the_content_and_nothing_else():
    key = data.item_key("anatomy", "What is\n it?", ["a b", "c"])
    assert re.fullmatch("[0-9a-f]{64}", key)
    assert key == data.item_key("anatomy", " What  is it? ", ["a\tb", "c "])
    others = [
        data.item_key("", "What is it?", ["a b", "c"]),
        data.item_key("anatomy", "What is it?", ["c", "a b"]),
        data.item_key("anatomy", "What is it?", ["a b c"]),
        data.item_key("anatomy", "What is it? a b", ["c"]),
        data.item_key("anatomy", "what is it?", ["a b", "c"]),
    ]
    assert len({key, *others}) == 6
    assert data.item_key(None, "q", ["a"]) == data.item_key("", "q", ["a"])


def test_fingerprint_follows_the_content_not_the_place(tmp_path):
    folder = data.task_folder("mmlu")
    shutil.copytree(folder, tmp_path / "cais/mmlu")
    before = data.data_fingerprint("mmlu", str(tmp_path))
    assert before == data.data_fingerprint("mmlu")
    assert data.data_fingerprint("mmlu", subjects=["nutrition"]) != before
    file = tmp_path / "cais/mmlu/nutrition/test.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace("?", "!", 1), encoding="utf-8")
    assert data.data_fingerprint("mmlu", str(tmp_path)) != before


# What is said of data that cannot be used


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**MMLU_ROW, "answer": 4}, "answer must be the whole number of a choice, 0 to 3, not 4"),
        ({**MMLU_ROW, "answer": -1}, "not -1"),
        ({**MMLU_ROW, "answer": "B"}, "not 'B'"),
        ({**MMLU_ROW, "answer": True}, "not True"),
        ({k: v for k, v in MMLU_ROW.items() if k != "answer"}, "not None"),
        ({**MMLU_ROW, "choices": []}, "'choices' must be a list of texts that is not empty"),
        ({**MMLU_ROW, "choices": ["1", " ", "3", "4"]}, "'choices' holds ' '"),
        ({**MMLU_ROW, "choices": ["1", 2, "3", "4"]}, "'choices' holds 2"),
        ({**MMLU_ROW, "choices": ["1", "2", "3"]}, "MMLU has 4 choices, this row has 3"),
        ({**MMLU_ROW, "question": None}, "'question' must be a text that is not empty"),
        ("[1, 2]", "not an object with fields but list"),
        ('{"question": ', "is not JSON"),
    ],
)
def test_a_bad_mmlu_row_is_named_by_file_and_line(tmp_path, row, message):
    root = mmlu_folder(tmp_path, [MMLU_ROW, row])
    with pytest.raises(InputError, match=re.escape(f"{root}/cais/mmlu/anatomy/test.jsonl line 2")) as caught:
        data.validate("mmlu", str(root))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answerKey": "B"}, "answerKey must be one of 1, 2, 3, not 'B'"),
        ({"answerKey": 2}, "not 2"),
        ({"choices": {"text": ["a", "b"], "label": ["A"]}}, "must name each of the 2 choices once"),
        ({"choices": {"text": ["a", "b"], "label": ["A", "A"]}}, "must name each of the 2 choices once"),
        ({"choices": ["a", "b"]}, "must be an object with text and label"),
        ({"choices": {"label": ["A"]}}, "'choices.text' must be a list of texts that is not empty, not None"),
    ],
)
def test_a_bad_arc_row_is_named_by_file_and_line(tmp_path, change, message):
    root = arc_folder(tmp_path, [{**ARC_ROW, **change}])
    with pytest.raises(InputError, match=r"ARC-Easy/test\.jsonl line 1") as caught:
        data.load_items("arc_easy", str(root))
    assert message in str(caught.value)


def test_a_bad_dev_row_is_found_before_a_run(tmp_path):
    root = mmlu_folder(tmp_path, [MMLU_ROW], dev=[{**MMLU_ROW, "answer": 9}])
    with pytest.raises(InputError, match=r"anatomy/dev\.jsonl line 1"):
        data.validate("mmlu", str(root))


def test_a_folder_without_the_task_says_what_is_missing(tmp_path):
    arc_folder(tmp_path, [ARC_ROW])
    for task, missing in (("mmlu", "cais/mmlu"), ("wikitext", "EleutherAI/wikitext_document_level")):
        with pytest.raises(InputError, match=f"no data for task '{task}'.*{missing}/README.md"):
            data.validate(task, str(tmp_path))
    write_repository(tmp_path / "cais/mmlu", {"astrology": {"test": [MMLU_ROW]}})
    with pytest.raises(InputError, match="lists no MMLU subject"):
        data.subjects(str(tmp_path))


def test_a_folder_that_is_none_is_named_in_full(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}/nowhere does not exist"):
        data.load_pages(f"{tmp_path}/nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file, not a folder"):
        data.load_pages(f"{tmp_path}/file")


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (None, "no dataset card"),
        ("# no header", "no `configs` list"),
        ("---\nconfigs: [\n---\n", "is not YAML"),
        ("---\nconfigs:\n- config_name: ARC-Easy\n---\n", "config 'ARC-Easy' needs data_files"),
        ("---\nconfigs:\n- config_name: ARC-Challenge\n  data_files: x.jsonl\n---\n", "no config 'ARC-Easy'"),
        ("---\nconfigs:\n- config_name: ARC-Easy\n  data_files: ARC-Easy/test.jsonl\n---\n", "no split 'test'"),
        (
            "---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n  - split: test\n    path: gone.jsonl\n---\n",
            "names 'gone.jsonl', but .* does not exist",
        ),
        (
            "---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n  - split: test\n    path: README.md\n---\n",
            "data files are .jsonl, .json or .parquet",
        ),
    ],
)
def test_a_card_that_cannot_be_followed(tmp_path, card, message):
    root = arc_folder(tmp_path, [ARC_ROW])
    file = root / "allenai/ai2_arc/README.md"
    file.unlink() if card is None else file.write_text(card)
    with pytest.raises(InputError, match=message):
        data.load_items("arc_easy", str(root))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.load_items("gsm8k"), "unknown task 'gsm8k': use one of mmlu, arc_easy, wikitext"),
        (lambda: data.load_items("wikitext"), "use load_pages"),
        (lambda: data.load_items("mmlu", subjects=["astronmy"]), "did you mean astronomy"),
        (lambda: data.load_items("mmlu", subjects=["zzz"]), "there are astronomy"),
        (lambda: data.load_items("arc_easy", subjects=["astronomy"]), "has no subjects"),
        (lambda: data.load_items("mmlu", limit=0), "limit 0 is not a whole number of rows"),
        (lambda: data.load_items("mmlu", limit=0.5), "limit 0.5"),  # type: ignore[arg-type]
        (lambda: data.load_items("mmlu", split="validation"), "no split 'validation'.*it has test, dev"),
        (lambda: data.load_fewshot("mmlu"), "belong to a subject"),
        (lambda: data.load_fewshot("wikitext"), "takes no few-shot examples"),
        (lambda: data.validate("wikitext", subjects=["astronomy"]), "has no subjects"),
    ],
)
def test_a_request_that_cannot_be_met(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_an_empty_split_is_an_error(tmp_path):
    root = mmlu_folder(tmp_path, [])
    with pytest.raises(InputError, match=r"the test split of mmlu in .* holds no items"):
        data.load_items("mmlu", str(root))


# The real data


@pytest.mark.data
def test_real_mmlu_keeps_its_repeats(shared_dir):
    """P25: 105 rows more than distinct (question, choices) pairs, 27 of them inside one subject."""
    items = data.load_items("mmlu", str(shared_dir / "data"))
    assert len(items) == 14_042
    assert len({item.subject for item in items}) == 57
    assert len(items) - len({data.item_key("", item.question, item.choices) for item in items}) == 105
    within = len(items) - len({data.item_key(item.subject, item.question, item.choices) for item in items})
    assert within == 105 - 78
    assert sum(len(set(item.choices)) < 4 for item in items) == 9


@pytest.mark.data
def test_real_arc_easy_has_number_keys_and_odd_choice_counts(shared_dir):
    """P21: 97 rows are labelled 1 to 4; 7 have three choices and 4 have five."""
    items = data.load_items("arc_easy", str(shared_dir / "data"))
    assert sum(item.labels[0] == "1" for item in items) == 97
    counts = Counter(len(item.choices) for item in items)
    assert (len(items), counts[3], counts[5]) == (2_376, 7, 4)


@pytest.mark.data
def test_real_folder_is_valid_and_has_its_pages(shared_dir):
    folder = str(shared_dir / "data")
    assert len(data.load_pages(folder)) == 62
    assert len(data.load_fewshot("mmlu", folder, "anatomy")) == 5
    for task in data.TASKS:
        data.validate(task, folder)
