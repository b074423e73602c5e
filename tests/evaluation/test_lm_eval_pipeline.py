"""The lm-eval pipeline's contract: presets, readable results, lm-eval as an optional dependency."""

import dataclasses
import subprocess
import sys
import textwrap

import pytest

from llm.errors import InputError
from llm.evaluation.harness.adapter import LmEvalAdapter, summarize
from llm.evaluation.harness.presets import (
    ARCEASY_PRESET,
    INSPECT_PROTOCOL,
    LM_EVAL_PROTOCOL,
    MMLU_PRESET,
    PRESETS,
    WIKITEXT_PRESET,
    EvalPreset,
)

SINGLE = {
    "results": {
        "arc_easy": {
            "name": "arc_easy",
            "alias": "arc_easy",
            "sample_len": 200,
            "acc,none": 0.57,
            "acc_stderr,none": 0.035,
            "acc_norm,none": 0.515,
            "acc_norm_stderr,none": "N/A",
        }
    },
    "group_subtasks": {},
    "n-shot": {"arc_easy": 0},
    "versions": {"arc_easy": 1.0},
}

MULTIPLE = {
    "results": {
        "arc_easy": {"alias": "arc_easy", "acc,none": 0.5},
        "gsm8k": {"alias": "gsm8k", "exact_match,strict-match": 0.1, "exact_match,flexible-extract": 0.2},
    },
    "n-shot": {"arc_easy": 0, "gsm8k": 5},
}

GROUPED = {
    "results": {
        "mmlu": {"alias": "mmlu", "acc,none": 0.25, "acc_stderr,none": 0.1, "sample_len": 20},
        "mmlu_stem": {"alias": "stem", "acc,none": 0.25, "acc_stderr,none": 0.1, "sample_len": 20},
        "mmlu_anatomy": {"alias": "anatomy", "acc,none": 0.4, "acc_stderr,none": 0.16, "sample_len": 10},
        "mmlu_astronomy": {"alias": " - astronomy", "acc,none": 0.1, "acc_stderr,none": 0.1, "sample_len": 10},
    },
    "groups": {
        "mmlu": {"alias": "mmlu", "acc,none": 0.25, "acc_stderr,none": 0.1, "sample_len": 20},
        "mmlu_stem": {"alias": "stem", "acc,none": 0.25, "acc_stderr,none": 0.1, "sample_len": 20},
    },
    "group_subtasks": {"mmlu": ["mmlu_stem"], "mmlu_stem": ["mmlu_anatomy", "mmlu_astronomy"]},
    "n-shot": {"mmlu_anatomy": 5, "mmlu_astronomy": 5},
}


class TestPresets:
    def test_construction_and_kwargs(self):
        preset = EvalPreset(task="mmlu", num_fewshot=5, batch_size=16, limit=10)
        assert preset.to_lm_eval_kwargs() == {"tasks": ["mmlu"], "num_fewshot": 5, "batch_size": 16, "limit": 10}

    def test_what_is_not_given_is_left_to_lm_eval(self):
        assert EvalPreset(task="hellaswag").to_lm_eval_kwargs() == {"tasks": ["hellaswag"], "batch_size": 8}

    def test_further_options_reach_lm_eval(self):
        preset = EvalPreset(task="gsm8k", options={"gen_kwargs": {"temperature": 0.5}})
        assert preset.to_lm_eval_kwargs()["gen_kwargs"] == {"temperature": 0.5}

    @pytest.mark.parametrize("preset", [MMLU_PRESET, ARCEASY_PRESET, WIKITEXT_PRESET])
    def test_frozen_hashable_and_extended_by_replace(self, preset):
        with pytest.raises(dataclasses.FrozenInstanceError):
            preset.limit = 3
        changed = dataclasses.replace(preset, limit=3)
        assert (changed.limit, changed.task, preset.limit) == (3, preset.task, None)
        assert len({preset, changed}) == 2
        assert PRESETS[preset.task] is preset

    def test_the_three_are_lm_evals_own_benchmarks(self):
        assert (MMLU_PRESET.num_fewshot, MMLU_PRESET.metrics) == (5, ("acc",))
        assert (ARCEASY_PRESET.num_fewshot, ARCEASY_PRESET.metrics) == (0, ("acc", "acc_norm"))
        assert WIKITEXT_PRESET.num_fewshot == 0
        assert "word_perplexity" in WIKITEXT_PRESET.metrics

    def test_native_protocols(self):
        for preset in (MMLU_PRESET, ARCEASY_PRESET):
            assert preset.lm_eval == LM_EVAL_PROTOCOL
            assert preset.inspect == INSPECT_PROTOCOL
        assert (LM_EVAL_PROTOCOL.template, LM_EVAL_PROTOCOL.normalisation, LM_EVAL_PROTOCOL.tie_break) == (
            "lm-eval",
            "none",
            "first",
        )
        assert (INSPECT_PROTOCOL.template, INSPECT_PROTOCOL.normalisation, INSPECT_PROTOCOL.tie_break) == (
            "inspect",
            "token",
            "random",
        )

    def test_inspect_args_define_the_same_benchmark(self):
        args = dataclasses.replace(MMLU_PRESET, limit=4, subjects=("anatomy", "virology")).to_inspect_args(data="hub")
        assert args == {
            "data": "hub",
            "subjects": "anatomy,virology",
            "num_fewshot": 5,
            "template": "inspect",
            "normalisation": "token",
            "tie_break": "random",
            "seed": 0,
            "readout": "loglikelihood",
            "limit_per_subject": 4,
        }

    @pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
    def test_inspect_tasks_take_these_args(self, preset):
        pytest.importorskip("inspect_ai")
        from importlib import import_module

        task = getattr(import_module(f"tasks.{preset.task}"), preset.task)
        limited = dataclasses.replace(preset, limit=1)
        assert len(task(**limited.to_inspect_args(data="sample")).dataset) >= 1

    @pytest.mark.parametrize(
        ("values", "named"),
        [
            ({"task": ""}, "task is ''"),
            ({"task": "mmlu", "num_fewshot": -1}, "num_fewshot is -1"),
            ({"task": "mmlu", "limit": 0}, "limit is 0"),
            ({"task": "mmlu", "batch_size": 0}, "batch_size is 0"),
            ({"task": "mmlu", "batch_size": "many"}, "batch_size is 'many'"),
        ],
    )
    def test_values_no_benchmark_has_are_named(self, values, named):
        with pytest.raises(InputError, match=named):
            EvalPreset(**values)


class TestSummarize:
    def test_single_task(self):
        summary = summarize(SINGLE)
        assert dict(summary) == {"arc_easy/acc": 0.57, "arc_easy/acc_stderr": 0.035, "arc_easy/acc_norm": 0.515}
        assert isinstance(summary, dict)

    def test_multiple_tasks_and_filters(self):
        assert dict(summarize(MULTIPLE)) == {
            "arc_easy/acc": 0.5,
            "gsm8k/exact_match,strict-match": 0.1,
            "gsm8k/exact_match,flexible-extract": 0.2,
        }

    def test_groups_stand_once_and_before_their_members(self):
        rows = summarize(GROUPED).rows
        assert [(row.task, row.depth) for row in rows] == [
            ("mmlu", 0),
            ("mmlu_stem", 1),
            ("mmlu_anatomy", 2),
            ("mmlu_astronomy", 2),
        ]
        assert [row.alias for row in rows] == ["mmlu", "stem", "anatomy", "astronomy"]

    def test_prints_as_a_markdown_table(self):
        lines = str(summarize(SINGLE)).splitlines()
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        assert cells[0] == ["Task", "n-shot", "Metric", "Value", "Stderr", "Items"]
        assert cells[2] == ["arc_easy", "0", "acc", "0.5700", "± 0.0350", "200"]
        assert cells[3] == ["arc_easy", "0", "acc_norm", "0.5150", "", "200"]
        assert len({len(line) for line in lines}) == 1
        assert set(lines[1]) <= set("|:-")

    def test_no_metric_or_count_is_invented(self):
        bare = {"results": {"arc_easy": {"acc,none": 0.5}}}
        (row,) = summarize(bare).rows
        assert (row.num_items, row.stderr, row.num_fewshot) == (None, None, None)

    @pytest.mark.parametrize(
        ("results", "named"),
        [
            (None, "NoneType"),
            ({"acc": 0.5}, "'results'"),
            ({"results": {}}, "no task"),
            ({"results": {"arc_easy": 0.5}}, "'arc_easy' are a float"),
            ({"results": {"arc_easy": {"acc,none": "high"}}}, "acc,none of 'arc_easy' is 'high'"),
        ],
    )
    def test_other_shapes_are_refused(self, results, named):
        with pytest.raises(InputError, match=named):
            summarize(results)

    def test_the_adapter_has_it_too(self):
        assert LmEvalAdapter.summarize(SINGLE) == summarize(SINGLE)


WITHOUT_LM_EVAL = """
    import importlib.abc, sys

    class Blocker(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "lm_eval":
                raise ModuleNotFoundError(f"No module named {name!r}", name="lm_eval")

    sys.meta_path.insert(0, Blocker())

    from llm.evaluation.harness import adapter, lm_eval_lm, presets, task_folders
    from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
    import providers.lm_eval_decoder as door

    def message(call):
        try:
            call()
        except ImportError as error:
            return str(error)
        return "no ImportError"

    print(message(lambda: LlamaLmEvalLM(object(), object())))
    print(message(lambda: LlamaLmEvalLM.create_from_arg_string("model=x")))
    print(message(lambda: adapter.evaluate(object(), ["arc_easy"])))
    print(message(lambda: adapter.LmEvalAdapter().evaluate(["arc_easy"])))
    print(message(lambda: adapter.run_preset(presets.MMLU_PRESET, object(), object())))
    print(message(lambda: adapter.build_task_dict("mmlu")))
    print(message(task_folders.stock_tasks))
    print(message(door.register))
    summary = adapter.summarize({"results": {"t": {"acc": 1.0}}})
    print(presets.MMLU_PRESET.to_lm_eval_kwargs()["tasks"], summary["t/acc"])
    assert "torch" not in sys.modules
    sys.exit(door.main(["run", "--model", "decoder"]))
"""


def test_lm_eval_is_optional_and_its_absence_is_one_hint():
    code = textwrap.dedent(WITHOUT_LM_EVAL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    hint = "pip install 'harness-bridge[lm-eval]'"
    assert len(lines) == 9, done.stderr
    assert all(line.endswith(hint) for line in lines[:8]), lines
    assert lines[8] == "['mmlu'] 1.0"
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [f"lm-eval decoder: lm_eval is not installed: {hint}"]
