"""Generated task folders: lm-eval's own tasks over given data, and overrides of their protocol scored by our rules."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lm_eval")

from llm.errors import InputError
from llm.evaluation.data import Item, dataset_path, item_key, load_fewshot, load_items, subjects
from llm.evaluation.harness.adapter import LmEvalAdapter, build_task_dict, evaluate, run_preset, summarize
from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
from llm.evaluation.harness.presets import ARCEASY_PRESET, LM_EVAL_PROTOCOL, MMLU_PRESET, WIKITEXT_PRESET
from llm.evaluation.harness.task_folders import mmlu_categories, write_task_folder
from llm.evaluation.prompts import Prompt
from llm.evaluation.rules import credit, normalise
from llm.models import load_model

LETTERS = "ABCDE"


@pytest.fixture(scope="module", autouse=True)
def environment_described_once():
    """lm-eval lists the installed packages after every run, which takes seconds and never changes."""
    import functools

    from torch.utils import collect_env

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect_env, "get_pretty_env_info", functools.cache(collect_env.get_pretty_env_info))
        yield


@pytest.fixture(scope="module")
def decoder(tiny_checkpoint: Path):
    return load_model(str(tiny_checkpoint), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def lm(decoder) -> LlamaLmEvalLM:
    return LlamaLmEvalLM(*decoder, name="tiny")


def render(item: Item, shots=()) -> Prompt:
    """A wording that is neither harness's own."""

    def block(one: Item) -> str:
        lines = [f"{letter}) {choice}" for letter, choice in zip(LETTERS, one.choices, strict=False)]
        return "\n".join([one.question, *lines, "", "ANSWER:"])

    context = "".join(f"{block(shot)} {LETTERS[shot.gold]}\n\n" for shot in shots) + block(item)
    letters = tuple(LETTERS[: len(item.choices)])
    return Prompt(context=context, continuations=tuple(f" {x}" for x in letters), choice_texts=letters)


class TestFolder:
    def test_mmlu_lists_the_subjects_under_stock_groups(self, tmp_path):
        folder = write_task_folder(tmp_path, "mmlu", "/data/mmlu", subjects=("virology", "anatomy"), num_fewshot=3)
        assert folder.tasks == ("mmlu_anatomy", "mmlu_virology")
        assert '"mmlu_stem", "mmlu_other"' in (tmp_path / "_mmlu.yaml").read_text()
        written = (tmp_path / "mmlu_anatomy.yaml").read_text().splitlines()
        assert written[1:] == ['dataset_path: "/data/mmlu"', "num_fewshot: 3"]
        assert written[0].startswith("include: ")
        assert written[0].endswith('mmlu/default/mmlu_anatomy.yaml"')

    def test_all_57_subjects_have_a_stock_group(self):
        categories = mmlu_categories()
        assert len(categories) == 57
        assert set(categories.values()) == {"mmlu_stem", "mmlu_other", "mmlu_social_sciences", "mmlu_humanities"}
        assert set(categories) == set(subjects("hub"))

    @pytest.mark.parametrize(
        ("task", "chosen", "named"),
        [("mmlu", ("alchemy",), "'alchemy'"), ("mmlu", (), "no MMLU subject given"), ("nosuch", (), "'nosuch'")],
    )
    def test_unknown_names_are_said(self, tmp_path, task, chosen, named):
        with pytest.raises(InputError, match=named):
            write_task_folder(tmp_path, task, "/data", subjects=chosen)

    def test_a_kept_folder_serves_lm_eval_itself(self, tmp_path):
        from lm_eval.tasks import TaskManager

        build_task_dict("mmlu", "sample", subjects=subjects()[:2], folder=tmp_path)
        loaded = TaskManager(include_defaults=False, include_path=str(tmp_path)).load(["mmlu"])
        assert sorted(loaded["tasks"]) == sorted(f"mmlu_{name}" for name in subjects()[:2])

    def test_fewer_tasks_than_asked_is_an_error(self, tmp_path):
        from llm.evaluation.harness.adapter import _load

        folder = write_task_folder(tmp_path, "arc_easy", dataset_path("arc_easy"))
        with pytest.raises(InputError, match="1 of 2 sub-tasks of arc_easy: arc_hard is missing"):
            _load(dataclasses.replace(folder, tasks=("arc_easy", "arc_hard")), "arc_easy")


class TestStockTasks:
    def test_mmlu_is_stock_but_for_its_data(self, lm):
        from lm_eval.tasks import TaskManager

        chosen = subjects()[:2]
        tasks = build_task_dict("mmlu", "sample", subjects=chosen, num_fewshot=5)
        assert (tasks.stock, tasks.metric, tasks.root) == (True, "acc", "mmlu")
        results = evaluate(lm, tasks, limit=2, bootstrap_iters=0)
        stock = TaskManager(include_defaults=False, include_path=str(_stock_mmlu()))
        for subject in chosen:
            name = f"mmlu_{subject}"
            ours = results["configs"][name]
            theirs = _stock_config(stock, name)
            for field in (
                "doc_to_text",
                "doc_to_choice",
                "doc_to_target",
                "description",
                "fewshot_split",
                "test_split",
            ):
                assert ours[field] == theirs[field], field
            assert results["n-shot"][name] == 5
        assert results["versions"]["mmlu"] == "2"
        assert set(results["groups"]) >= {"mmlu"}

    def test_shots_are_the_dev_rows_in_file_order(self, lm):
        """P26: and no other text stands between them."""
        subject = subjects()[0]
        results = evaluate(lm, build_task_dict(f"mmlu_{subject}", "sample", num_fewshot=5), limit=1, bootstrap_iters=0)
        (context, _) = results["samples"][f"mmlu_{subject}"][0]["arguments"][0]
        places = [context.index(row.question.strip()) for row in load_fewshot("mmlu", "sample", subject)[:5]]
        assert places == sorted(places)
        assert context.count("Answer:") == 6

    def test_continuations_carry_their_space(self, lm):
        """P27: ` A` after `Answer:`, never `A`."""
        subject = subjects()[0]
        results = evaluate(lm, build_task_dict(f"mmlu_{subject}"), limit=1, bootstrap_iters=0)
        arguments = results["samples"][f"mmlu_{subject}"][0]["arguments"]
        assert [continuation for _, continuation in arguments] == [" A", " B", " C", " D"]
        assert arguments[0][0].endswith("Answer:")

    def test_group_average_is_micro_and_summary_says_so(self, lm):
        """P20: weighted by items, whatever the limit leaves of each subject."""
        results = run_preset(MMLU_PRESET, lm, data="sample", limit=3, bootstrap_iters=0)
        summary = summarize(results)
        leaves = [row for row in summary.rows if row.task.startswith("mmlu_") and row.task not in results["groups"]]
        assert len(leaves) == len(subjects())
        micro = sum(row.value * row.num_items for row in leaves) / sum(row.num_items for row in leaves)
        assert summary["mmlu/acc"] == pytest.approx(micro, abs=1e-12)

    def test_arc_easy_and_wikitext(self, lm):
        arc = summarize(run_preset(ARCEASY_PRESET, lm, data="sample", limit=4, bootstrap_iters=0))
        assert {"arc_easy/acc", "arc_easy/acc_norm"} <= set(arc)
        wiki = summarize(run_preset(WIKITEXT_PRESET, lm, data="sample", limit=1, bootstrap_iters=0))
        assert wiki["wikitext/bits_per_byte"] > 0

    def test_a_metric_stock_prints_is_no_override(self):
        assert build_task_dict("arc_easy", normalisation="char").metric == "acc_norm"
        assert build_task_dict("arc_easy", normalisation="char").stock
        assert not build_task_dict("arc_easy", normalisation="byte").stock

    def test_lm_evals_own_files_are_written(self, lm, tmp_path):
        results = LmEvalAdapter(lm, output_path=tmp_path).run_preset(ARCEASY_PRESET, limit=2, bootstrap_iters=0)
        (written,) = tmp_path.rglob("results_*.json")
        (samples,) = tmp_path.rglob("samples_arc_easy_*.jsonl")
        logged = json.loads(written.read_text())
        assert written.parent.name == "tiny"
        assert logged["results"]["arc_easy"]["acc,none"] == results["results"]["arc_easy"]["acc,none"]
        assert logged["config"]["model_fingerprint"] == lm.model.fingerprint
        assert len(samples.read_text().splitlines()) == 2
        assert isinstance(results["samples"]["arc_easy"][0]["arguments"], list)

    def test_an_output_that_cannot_be_written_is_an_error(self, lm, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="could not write"):
            run_preset(ARCEASY_PRESET, lm, limit=1, bootstrap_iters=0, output_path=tmp_path / "file" / "deeper")

    def test_preset_batch_size_limit_and_shots_arrive(self, lm):
        preset = dataclasses.replace(MMLU_PRESET, subjects=subjects()[:1], num_fewshot=2, limit=2)
        results = run_preset(preset, lm, bootstrap_iters=0)
        name = f"mmlu_{subjects()[0]}"
        assert (results["n-shot"][name], results["n-samples"][name]["effective"]) == (2, 2)

    def test_chat_template_wraps_each_shot_as_turns(self, decoder, lm):
        """P34: only when asked for."""
        _, tokenizer = decoder
        preset = dataclasses.replace(MMLU_PRESET, subjects=subjects()[:1], num_fewshot=2, limit=1)
        tokenizer.chat_template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[assistant]"
        try:
            chat = run_preset(preset, lm, apply_chat_template=True, fewshot_as_multiturn=True, bootstrap_iters=0)
            plain = run_preset(preset, lm, bootstrap_iters=0)
        finally:
            tokenizer.chat_template = None
        name = f"mmlu_{subjects()[0]}"
        (chat_context, _), (plain_context, _) = (run["samples"][name][0]["arguments"][0] for run in (chat, plain))
        assert chat_context.count("[user]") == 3
        assert chat_context.endswith("[assistant]")
        assert "[" not in plain_context.split("Answer:")[0]


class TestOverrides:
    @pytest.mark.parametrize("normalisation", ["none", "char", "byte", "token", "pmi"])
    def test_credits_are_our_rules_over_the_logged_scores(self, lm, normalisation):
        tasks = build_task_dict("arc_easy", normalisation=normalisation, tie_break="fractional")
        results = evaluate(lm, tasks, limit=6, bootstrap_iters=0)
        items = load_items("arc_easy", limit=6)
        for sample, item in zip(results["samples"]["arc_easy"], items, strict=True):
            given = [response[0] for response in sample["filtered_resps"]]
            count = len(item.choices)
            scores = normalise(
                given[:count],
                rule=normalisation,
                num_chars=[len(text) for text in item.choices],
                num_bytes=[len(text.encode()) for text in item.choices],
                num_tokens=[response.num_tokens for response in sample["filtered_resps"][:count]],
                unconditional=given[count:] or None,
            )
            assert sample["acc"] == float(credit(scores, item.gold, tie_break="fractional"))
            assert len(given) == (2 * count if normalisation == "pmi" else count)

    @pytest.mark.parametrize("normalisation", ["none", "char"])
    def test_override_equals_stock_where_stock_has_the_rule(self, lm, normalisation):
        """Our rules and lm-eval's argmax, on the same requests: the same credits."""
        stock = evaluate(lm, build_task_dict("arc_easy"), limit=12, bootstrap_iters=0)
        ours = evaluate(
            lm, build_task_dict("arc_easy", normalisation=normalisation, tie_break="last"), limit=12, bootstrap_iters=0
        )
        name = {"none": "acc", "char": "acc_norm"}[normalisation]
        assert [s["acc"] for s in ours["samples"]["arc_easy"]] == [s[name] for s in stock["samples"]["arc_easy"]]

    def test_another_wording_is_asked_to_the_byte(self, lm):
        subject = subjects()[0]
        tasks = build_task_dict("mmlu", subjects=[subject], num_fewshot=2, render=render, normalisation="token")
        results = evaluate(lm, tasks, limit=3, bootstrap_iters=0)
        shots = load_fewshot("mmlu", "sample", subject)[:2]
        for sample, item in zip(
            results["samples"][f"mmlu_{subject}"], load_items("mmlu", subjects=[subject], limit=3), strict=True
        ):
            prompt = render(item, shots)
            assert sample["arguments"] == [(prompt.context, text) for text in prompt.continuations]
        assert results["n-shot"][f"mmlu_{subject}"] == 2

    def test_it_is_marked_not_stock(self, lm, tmp_path):
        subject = subjects()[0]
        tasks = build_task_dict("mmlu", subjects=[subject], render=render, tie_break="random", seed=3)
        results = evaluate(lm, tasks, limit=1, bootstrap_iters=0, output_path=tmp_path)
        assert not tasks.stock
        assert results["configs"][f"mmlu_{subject}"]["metadata"]["stock"] is False
        assert results["configs"][f"mmlu_{subject}"]["metadata"]["protocol"] == {
            "template": f"{render.__module__}.render",
            "normalisation": "none",
            "tie_break": "random",
            "seed": 3,
        }
        assert all("(not stock)" in row.alias for row in summarize(results).rows)

    def test_random_ties_are_the_items_own(self, lm):
        """The same draw as anywhere else: by seed, item and original index."""

        class Flat:
            def score(self, requests, *, top_k=0):
                from llm.scoring.requests import TokenScores

                rest = [(0.0,) * (len(request.continuation_ids) - 1) for request in requests]
                return [TokenScores(logprobs=(-1.0, *zeros), is_greedy=False) for zeros in rest]

        flat = LlamaLmEvalLM(lm.model, lm.tokenizer, scorer=Flat())
        subject = subjects()[0]
        tasks = build_task_dict("mmlu", subjects=[subject], tie_break="random", seed=7)
        logged = evaluate(flat, tasks, bootstrap_iters=0)["samples"][f"mmlu_{subject}"]
        for sample, item in zip(logged, load_items("mmlu", subjects=[subject]), strict=True):
            key = item_key(subject, item.question, item.choices)
            assert sample["acc"] == float(credit(np.full(4, -1.0), item.gold, tie_break="random", seed=7, key=key))
        assert 0 < sum(sample["acc"] for sample in logged) < len(logged)

    def test_a_preset_carries_its_override(self, lm):
        preset = dataclasses.replace(
            ARCEASY_PRESET, lm_eval=dataclasses.replace(LM_EVAL_PROTOCOL, tie_break="any"), limit=2
        )
        results = run_preset(preset, lm, bootstrap_iters=0)
        assert results["configs"]["arc_easy"]["metadata"]["stock"] is False

    def test_a_preset_with_the_inspect_template_needs_its_renderer(self, lm):
        preset = dataclasses.replace(
            ARCEASY_PRESET, lm_eval=dataclasses.replace(LM_EVAL_PROTOCOL, template="inspect"), limit=1
        )
        with pytest.raises(InputError, match="render_inspect"):
            run_preset(preset, lm)
        results = run_preset(preset, lm, render=render, bootstrap_iters=0)
        assert results["samples"]["arc_easy"][0]["arguments"][0][0].endswith("ANSWER:")

    def test_token_rule_needs_a_model_that_counts(self, lm):
        from llm.evaluation.harness.protocols import Protocol, credit_function

        rule = credit_function(
            Protocol(normalisation="token"), key_of=lambda d: "", gold_of=lambda d: 0, texts_of=lambda d: ["a", "b"]
        )
        with pytest.raises(InputError, match="number of tokens"):
            rule({}, [(-1.0, False), (-2.0, False)])

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ({"task": "nosuch"}, "nosuch"),
            ({"task": "mmlu", "subjects": ["alchemy"]}, "alchemy"),
            ({"task": "arc_easy", "subjects": ["anatomy"]}, "has no subjects"),
            ({"task": "mmlu_anatomy", "subjects": ["virology"]}, "is one subject"),
            ({"task": "arc_easy", "normalisation": "words"}, "'words'"),
            ({"task": "arc_easy", "tie_break": "coin"}, "'coin'"),
            ({"task": "wikitext", "tie_break": "any"}, "scores pages"),
            ({"task": "wikitext", "num_fewshot": 2}, "scores pages"),
            ({"task": "arc_easy", "num_fewshot": -1}, "num_fewshot is -1"),
            ({"task": "arc_easy", "num_fewshot": 100000}, "num_fewshot is 100000"),
            ({"task": "arc_easy", "data": "/no/such/folder"}, "/no/such/folder"),
        ],
    )
    def test_what_cannot_be_run_is_one_sentence(self, arguments, named):
        arguments = dict(arguments)
        with pytest.raises(InputError, match=named):
            build_task_dict(arguments.pop("task"), arguments.pop("data", "sample"), **arguments)


@pytest.mark.data
def test_real_folder_loads_as_many_subjects_as_asked(shared_dir):
    chosen = subjects(str(shared_dir / "data"))[::15]
    tasks = build_task_dict("mmlu", str(shared_dir / "data"), subjects=chosen, num_fewshot=5)
    assert sorted(tasks.names) == sorted(f"mmlu_{name}" for name in chosen)


def _stock_mmlu() -> Path:
    from llm.evaluation.harness.task_folders import stock_tasks

    return stock_tasks() / "mmlu" / "default"


def _stock_config(manager, name: str) -> dict:
    return manager.task_index[name].cfg
