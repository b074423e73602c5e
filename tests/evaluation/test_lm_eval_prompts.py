"""The texts of lm_eval_prompts are those of lm-eval's own task objects, byte for byte."""

import json
from pathlib import Path

import pytest

from llm.errors import InputError
from llm.evaluation import data, lm_eval_prompts
from llm.evaluation.data import Item

lm_eval = pytest.importorskip("lm_eval")
STOCK = Path(lm_eval.__file__).parent / "tasks"
SEED = 1234


def stock_tasks(folder: Path, source: str, subjects: list[str]) -> dict[str, object]:
    """lm-eval's own objects of the stock definitions over `source`: subject (or arc_easy) -> task."""
    from lm_eval.tasks import TaskManager

    folder.mkdir(parents=True, exist_ok=True)
    files = {f"mmlu_{subject}": STOCK / f"mmlu/default/mmlu_{subject}.yaml" for subject in subjects}
    files["arc_easy"] = STOCK / "arc/arc_easy.yaml"
    for name, stock in files.items():
        path = data.dataset_path("arc_easy" if name == "arc_easy" else "mmlu", source)
        (folder / f"{name}.yaml").write_text(f"include: {stock}\ndataset_path: {json.dumps(path)}\n")
    manager = TaskManager(include_defaults=False, include_path=[str(folder)])
    loaded = manager.load(list(files))["tasks"]
    assert set(loaded) == set(files)
    return {name.removeprefix("mmlu_"): task for name, task in loaded.items()}


def stock_arguments(task, num_fewshot: int, limit: int | None) -> list[list[tuple[str, str]]]:
    """The (context, continuation) pairs that lm-eval builds, document by document."""
    task.set_config("num_fewshot", num_fewshot)
    task.set_fewshot_seed(SEED)
    task.build_all_requests(limit=limit)
    documents: dict[int, list[tuple[str, str]]] = {}
    for instance in task.instances:
        documents.setdefault(instance.doc_id, []).append(instance.args)
    return [documents[doc_id] for doc_id in sorted(documents)]


def our_arguments(item: Item, shots: list[Item]) -> list[tuple[str, str]]:
    prompt = lm_eval_prompts.render(item, shots)
    return [(prompt.context, continuation) for continuation in prompt.continuations]


def assert_same(tasks, source: str, *, num_fewshot: int, limit: int | None) -> None:
    for name, task in tasks.items():
        if name == "arc_easy":
            items = data.load_items("arc_easy", source, limit=limit)
            shots = lm_eval_prompts.arc_shots(source, num_fewshot, seed=SEED, limit=limit)
        else:
            items = data.load_items("mmlu", source, subjects=[name], limit=limit)
            shots = [lm_eval_prompts.mmlu_shots(source, name, num_fewshot)] * len(items)
        ours = [our_arguments(item, drawn) for item, drawn in zip(items, shots, strict=True)]
        assert ours == stock_arguments(task, num_fewshot, limit), name


@pytest.fixture(scope="module")
def sample_tasks(tmp_path_factory):
    return stock_tasks(tmp_path_factory.mktemp("sample"), "sample", list(data.subjects()))


@pytest.mark.parametrize("num_fewshot", [0, 1, 5])
def test_sample_prompts_equal_stock_lm_eval(sample_tasks, num_fewshot):
    assert_same(sample_tasks, "sample", num_fewshot=num_fewshot, limit=None)


def test_awkward_texts_equal_stock_lm_eval(tmp_path):
    """P41 and P21: braces, quotes, white space at the ends, other scripts, number labels, three and five choices."""
    texts = [
        "{{x}} {% if %}",
        'it\'s "so"',
        "  two spaces ",
        "a\\nb\nc\td",
        "naïve – 数学 🙂",
        "[1, 2]",
        "7",
        "{'a': 1}",
    ]
    mmlu = [
        {"question": text, "subject": "anatomy", "choices": [text, "b", "c" + text, "d"], "answer": i % 4}
        for i, text in enumerate(texts)
    ]
    arc = [
        {
            "id": str(i),
            "question": text,
            "choices": {"text": [text, *"bcdef"][:n], "label": list(labels[:n])},
            "answerKey": labels[i % n],
        }
        for i, text in enumerate(texts)
        for n, labels in [((3, 4, 5)[i % 3], ("12345", "ABCDE")[i % 2])]
    ]
    layout = {
        "cais/mmlu": ("anatomy", {"dev": mmlu, "test": mmlu}),
        "allenai/ai2_arc": ("ARC-Easy", {"train": arc, "validation": arc, "test": arc}),
    }
    for path, (config, splits) in layout.items():
        folder = tmp_path / "awkward" / path
        (folder / config).mkdir(parents=True)
        card = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n"
        for split, rows in splits.items():
            card += f"  - split: {split}\n    path: {config}/{split}.jsonl\n"
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / config / f"{split}.jsonl").write_text(lines, encoding="utf-8")
        (folder / "README.md").write_text(card + "---\n", encoding="utf-8")
    source = str(tmp_path / "awkward")
    tasks = stock_tasks(tmp_path / "tasks", source, ["anatomy"])
    for num_fewshot in (0, 3):
        assert_same(tasks, source, num_fewshot=num_fewshot, limit=None)


@pytest.mark.data
def test_real_prompts_equal_stock_lm_eval(shared_dir, tmp_path):
    source = str(shared_dir / "data")
    tasks = stock_tasks(tmp_path, source, ["abstract_algebra", "high_school_us_history", "us_foreign_policy"])
    assert_same(tasks, source, num_fewshot=5, limit=40)


@pytest.mark.data
@pytest.mark.parametrize(("file", "num_fewshot"), [("arc", 0), ("arc5", 5), ("mmlu", 5)])
def test_prompts_equal_the_recorded_requests(shared_dir, file, num_fewshot):
    """P26: what a stock run logged, its few-shot rows and their order included."""
    source = str(shared_dir / "data")
    samples = json.loads((shared_dir / "oracle" / f"{file}.json").read_text(encoding="utf-8"))["samples"]
    for name, recorded in samples.items():
        if name == "arc_easy":
            items = data.load_items("arc_easy", source)
            shots = lm_eval_prompts.arc_shots(source, num_fewshot)
        else:
            subject = name.removeprefix("mmlu_")
            items = data.load_items("mmlu", source, subjects=[subject])
            shots = [lm_eval_prompts.mmlu_shots(source, subject, num_fewshot)] * len(items)
        assert recorded
        for sample in recorded:
            item = items[sample["doc_id"]]
            assert our_arguments(item, shots[sample["doc_id"]]) == [tuple(pair) for pair in sample["args"]]
            assert item.gold == int(sample["target"])


def test_letters_and_texts_are_counted_without_the_delimiter():
    letters = lm_eval_prompts.render(data.load_items("mmlu", limit=1)[0])
    assert letters.choice_texts == ("A", "B", "C", "D")
    assert letters.continuations == (" A", " B", " C", " D")
    item = data.load_items("arc_easy", limit=1)[0]
    assert lm_eval_prompts.render(item).choice_texts == item.choices


def test_a_limit_changes_no_draw_and_a_seed_does():
    whole = lm_eval_prompts.arc_shots("sample", 3)
    assert lm_eval_prompts.arc_shots("sample", 3, limit=7) == whole[:7]
    assert lm_eval_prompts.arc_shots("sample", 3, seed=1) != whole
    assert lm_eval_prompts.arc_shots("sample", 0, limit=2) == [[], []]


def test_more_shots_than_rows_is_an_error():
    with pytest.raises(InputError, match=r"num_fewshot 6 is out of range.*nutrition has 5 rows, give 0 to 5"):
        lm_eval_prompts.mmlu_shots("sample", "nutrition", 6)
    with pytest.raises(InputError, match=r"num_fewshot 21 is out of range.*20 rows"):
        lm_eval_prompts.arc_shots("sample", 21)


def test_a_task_without_choices_has_no_prompt():
    item = Item(task="wikitext", subject="", doc_id=0, question="q", choices=("a",), labels=("A",), gold=0)
    with pytest.raises(InputError, match="no lm-eval prompt for task 'wikitext'"):
        lm_eval_prompts.render(item)


def test_page_counts_are_lm_evals_own():
    from lm_eval.tasks.wikitext.preprocess_wikitext import process_results

    for page in [*data.load_pages(), "one", "", " \n é \n"]:
        counted = process_results({"page": page}, (-1.0,))
        assert lm_eval_prompts.page_counts(page) == (counted["word_perplexity"][1], counted["byte_perplexity"][1])
