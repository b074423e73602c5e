"""From two runs to a ledger: matching, coverage, what is inert, what is unexplained, and what logs cannot tell."""

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.errors import InputError
from llm.evaluation import rules
from reconcile.agreement import agreement_of
from reconcile.decompose import decompose
from reconcile.matching import match
from reconcile.runs import ItemKey, Protocol, Status
from reconcile.synthetic import INSPECT, LM_EVAL, SyntheticItem, run_of

RIGHT, WRONG = (-1.0, -2.0), (-2.0, -1.0)
GENERATE = replace(INSPECT, readout="generate")


def item(name, logprobs, tokens=(1, 1), gold=0, **further):
    return SyntheticItem(logprobs=logprobs, num_tokens=tokens, gold=gold, name=name, **further)


def said(name, answer, pick, gold=0):
    return item(
        name,
        RIGHT,
        gold=gold,
        answer=answer,
        pick=pick,
        credit=Fraction(int(pick == gold)),
        status=Status.UNPARSED if pick is None else Status.SCORED,
    )


def closes(ledger):
    assert sum((part.exact for part in ledger.components), Fraction(0)) == ledger.gap
    assert abs(sum(part.value for part in ledger.components) - float(ledger.gap)) <= 1e-12
    return ledger


def edit(run, index, **changes):
    samples = list(run.samples)
    samples[index] = replace(samples[index], **changes)
    return replace(run, samples=tuple(samples))


class TestInert:
    def test_one_token_letters_under_any_length_rule(self):
        left = run_of("lm_eval", [item("a", RIGHT), item("b", WRONG)])
        ledger = closes(decompose(left, run_of("inspect", [item("a", WRONG), item("b", WRONG)])))
        norm = ledger.component("length_normalisation")
        assert (norm.status, norm.exact) == ("inert", 0)
        assert "one token" in norm.reason
        assert ledger.component("tie_break").reason == "no two choices tie for best anywhere"

    def test_letters_of_a_log_that_counts_no_tokens_are_one_token_each(self):
        def lettered(run):
            samples = [
                replace(s, continuations=(" A", " B"), scores=tuple(replace(c, num_tokens=None) for c in s.scores))
                for s in run.samples
            ]
            return replace(run, samples=tuple(samples))

        left, right = run_of("lm_eval", [item("a", RIGHT)]), run_of("inspect", [item("a", WRONG)])
        ledger = closes(decompose(lettered(left), lettered(right)))
        assert ledger.accounted
        assert ledger.component("length_normalisation").status == "inert"

    def test_one_protocol_on_both_sides(self):
        left = run_of("lm_eval", [item("a", RIGHT), item("b", WRONG)])
        ledger = closes(decompose(left, replace(left, harness="inspect")))
        assert ledger.gap == 0
        assert {part.status for part in ledger.components} == {"inert"}
        assert ledger.component("template").reason == "both sides score the same text"
        assert ledger.closing_sets == {"from_lm_eval": ((),), "from_inspect": ((),)}
        assert len(ledger.cells) == 1

    def test_ties_in_one_cell_alone_let_the_tie_break_act(self):
        left, right = run_of("lm_eval", [item("a", (-2, -2), gold=1)]), run_of("inspect", [item("a", WRONG, gold=1)])
        ledger = closes(decompose(left, right))
        assert ledger.component("tie_break").status == "acts"


class TestOrigins:
    def test_same_text_with_other_logprobs_is_the_engine(self):
        left = run_of("lm_eval", [item("a", RIGHT), item("b", RIGHT)])
        right = replace(run_of("lm_eval", [item("a", RIGHT), item("b", WRONG)]), harness="inspect")
        ledger = closes(decompose(left, right))
        assert ledger.component("engine").exact == Fraction(1, 2)
        assert ledger.component("template").status == "inert"
        assert ledger.cell("engine").native == "inspect"

    def test_same_text_in_other_tokens_is_tokenisation(self):
        def digested(run, digest):
            scores = tuple(replace(score, request_digest=digest) for score in run.samples[0].scores)
            return edit(run, 0, scores=scores)

        left = digested(run_of("lm_eval", [item("a", RIGHT)]), "with bos")
        right = digested(replace(run_of("lm_eval", [item("a", WRONG)]), harness="inspect"), "without bos")
        assert closes(decompose(left, right)).component("tokenisation").exact == 1
        same = edit(right, 0, scores=tuple(replace(s, request_digest="with bos") for s in right.samples[0].scores))
        assert closes(decompose(left, same)).component("engine").exact == 1

    def test_items_of_one_run_may_have_unlike_origins(self):
        left = run_of("lm_eval", [item("a", RIGHT), item("b", RIGHT), item("c", RIGHT)])
        right = run_of("inspect", [item("a", WRONG), item("b", WRONG), item("c", RIGHT)])
        right = edit(right, 0, prompt=left.samples[0].prompt)
        ledger = closes(decompose(left, right))
        assert ledger.component("engine").exact == ledger.component("template").exact == Fraction(1, 3)
        assert ledger.component("engine").picks_changed == 1


class TestMatching:
    def test_p40_by_content_whatever_ids_and_order(self):
        names = [str(n) for n in range(10)]
        left = run_of("lm_eval", [item(name, RIGHT if int(name) % 3 else WRONG) for name in names])
        right = run_of("inspect", [item(name, RIGHT if int(name) % 3 else WRONG) for name in reversed(names)])
        ledger = closes(decompose(left, right))
        assert ledger.num_items["common"] == 10
        assert all(one.question == other.question for one, other in ledger.items.pairs)
        assert ledger.component("template").exact == 0

    def test_p25_copies_pair_one_to_one_and_a_missing_copy_is_a_duplicate(self):
        left = run_of("lm_eval", [item("a", RIGHT), item("a", RIGHT), item("a", RIGHT), item("b", WRONG)])
        right = run_of("inspect", [item("a", RIGHT), item("b", WRONG)])
        ledger = closes(decompose(left, right))
        assert (ledger.num_items["common"], ledger.num_items["duplicates"]) == (2, 2)
        assert ledger.coverage_lines["duplicates"] == Fraction(3, 4) - Fraction(1, 2)

    def test_occurrence_numbers_decide_between_copies(self):
        left = run_of("lm_eval", [item("a", RIGHT), item("a", WRONG)])
        right = run_of("inspect", [item("a", WRONG), item("a", RIGHT)])
        swapped = edit(edit(right, 0, key=replace(right.samples[0].key, occurrence=1)), 1, key=right.samples[1].key)
        ledger = closes(decompose(left, swapped))
        assert [pair[1].credit for pair in ledger.items.pairs] == [1, 0]
        assert ledger.component("template").items_up == 0

    def test_a_side_without_subjects_matches_by_question_and_choices(self):
        left = run_of("lm_eval", [item("a", RIGHT, subject="x"), item("b", WRONG, subject="y")])
        right = run_of("inspect", [item("b", WRONG), item("a", RIGHT)])
        assert left.samples[0].key != right.samples[1].key
        assert closes(decompose(left, right)).num_items["common"] == 2

    def test_unlike_gold_is_its_own_coverage_line(self):
        left = run_of("lm_eval", [item("a", RIGHT), item("b", RIGHT)])
        right = run_of("inspect", [item("a", RIGHT), item("b", RIGHT, gold=1)])
        ledger = closes(decompose(left, right))
        assert ledger.coverage_lines["gold"] == Fraction(1, 2)
        assert ledger.num_items["gold_differs"] == 1

    def test_p58_only_shared_items_are_compared(self):
        left = run_of("lm_eval", [item(str(n), RIGHT if n < 15 else WRONG) for n in range(20)])
        right = run_of("inspect", [item(str(n), RIGHT if n % 2 else WRONG) for n in range(12, 32)])
        ledger = closes(decompose(left, right))
        assert (ledger.num_items["common"], ledger.num_items["lm_eval_only"], ledger.num_items["inspect_only"]) == (
            8,
            12,
            12,
        )
        assert ledger.cell().num_items == 8

    def test_nothing_in_common_is_one_sentence(self):
        with pytest.raises(InputError, match="share no scored item"):
            decompose(run_of("lm_eval", [item("a", RIGHT)]), run_of("inspect", [item("b", RIGHT)]))
        empty = replace(run_of("inspect", [item("b", RIGHT)]), samples=())
        with pytest.raises(InputError, match="holds no items"):
            decompose(run_of("lm_eval", [item("a", RIGHT)]), empty)


class TestUnexplained:
    def test_a_credit_the_rules_do_not_give_is_itemised(self):
        left = run_of("lm_eval", [item("a", RIGHT), item("b", WRONG)])
        right = run_of("inspect", [item("a", RIGHT), item("b", WRONG)])
        wrong = replace(edit(left, 1, credit=Fraction(1)), reported={"accuracy": 1.0})
        ledger = closes(decompose(wrong, right))
        (found,) = ledger.unexplained
        assert (found.side, found.logged_lm_eval, found.derived_lm_eval) == ("lm_eval", 1, 0)
        assert "lm-eval logged 1, the rules give 0" in found.reason
        assert ledger.component("unexplained").exact == Fraction(1, 2)
        assert ledger.component("template").exact == 0
        assert not ledger.accounted

    def test_wrong_credits_that_cancel_are_still_counted(self):
        left = run_of("lm_eval", [item("a", RIGHT), item("b", WRONG)])
        swapped = edit(edit(left, 0, credit=Fraction(0)), 1, credit=Fraction(1))
        ledger = closes(decompose(swapped, run_of("inspect", [item("a", RIGHT), item("b", WRONG)])))
        assert ledger.component("unexplained").exact == 0
        assert len(ledger.unexplained) == 2

    def test_a_float_credit_of_a_third_is_a_third(self):
        ties = [item("a", (-2.0, -2.0, -2.0), (1, 1, 1))]
        right = run_of("inspect", ties)
        logged = edit(right, 0, credit=Fraction(1 / 3))
        ledger = closes(decompose(run_of("lm_eval", ties), logged))
        assert ledger.accounted
        assert ledger.component("tie_break").exact == Fraction(2, 3)

    def test_a_reported_value_that_its_credits_do_not_give(self):
        left = run_of("lm_eval", [item("a", RIGHT), item("b", WRONG)])
        ledger = closes(decompose(replace(left, reported={"accuracy": 0.75}), replace(left, harness="inspect")))
        assert ledger.component("unexplained").exact == Fraction(1, 4)
        assert not ledger.accounted
        assert "0.75" in ledger.faults[0]
        assert ledger.unexplained == ()

    def test_float_rounding_of_a_reported_value_is_rounding(self):
        left = run_of("lm_eval", [item(str(n), RIGHT if n else WRONG) for n in range(3)])
        off = replace(left, reported={"accuracy": 2 / 3 + 2**-53})
        ledger = closes(decompose(off, replace(left, harness="inspect")))
        assert ledger.accounted
        assert ledger.component("rounding").exact == Fraction(2 / 3 + 2**-53) - Fraction(2 / 3)

    def test_missing_scores_leave_the_difference_unexplained(self):
        left = run_of("lm_eval", [item("a", RIGHT), item("b", RIGHT)])
        right = edit(run_of("inspect", [item("a", RIGHT), item("b", WRONG)]), 1, scores=())
        ledger = closes(decompose(left, right))
        assert ledger.component("unexplained").exact == Fraction(1, 2)
        assert "no choice scores" in ledger.unexplained[0].reason
        assert (ledger.num_items["common"], ledger.num_items["replayed"]) == (2, 1)

    def test_p24_an_empty_choice_cannot_be_replayed_and_is_named(self):
        left = run_of("lm_eval", [item("a", RIGHT), item("b", RIGHT)])
        right = run_of("inspect", [item("a", RIGHT), item("b", WRONG)])
        hollow = tuple(replace(score, num_tokens=0) for score in left.samples[1].scores)
        ledger = closes(decompose(edit(left, 1, scores=hollow), right))
        assert "length of at least 1" in ledger.unexplained[0].reason
        assert ledger.component("unexplained").exact == Fraction(1, 2)

    def test_a_reported_value_that_is_no_number_is_refused(self):
        left = run_of("lm_eval", [item("a", RIGHT)])
        with pytest.raises(InputError, match="which is no score"):
            decompose(replace(left, reported={"accuracy": float("nan")}), replace(left, harness="inspect"))


class TestReadout:
    likelihood = (item("a", RIGHT), item("b", RIGHT), item("c", WRONG), item("d", (-2.0, -2.0), (4, 4), gold=1))
    generated = (
        said("a", "ANSWER: A", 0),
        said("b", "B) choice 1", None),
        said("c", "A) choice 0", None),
        said("d", "ANSWER: B", 1, 1),
    )

    def ledger(self):
        left = [item("a", WRONG), item("b", RIGHT), item("c", WRONG), item("d", (-3.0, -2.0), (4, 2), gold=1)]
        return closes(
            decompose(
                run_of("lm_eval", left),
                run_of("inspect", self.generated, protocol=GENERATE),
                inspect_loglikelihood=run_of("inspect", self.likelihood),
            )
        )

    def test_it_splits_into_no_answer_found_and_another_answer(self):
        ledger = self.ledger()
        split = ledger.readout_split
        assert split.no_answer_found + split.another_answer == ledger.component("readout").exact
        assert split.no_answer_found == Fraction(1, 4)
        assert (split.num_unfound, split.num_named, split.num_named_right) == (2, 2, 1)
        assert ledger.accounted

    def test_rules_are_inert_under_generated_answers(self):
        ledger = self.ledger()
        generating = [cell for cell in ledger.cells if cell.readout == "generate"]
        assert len(generating) == 1
        assert (generating[0].normalisation, generating[0].native) == (None, "inspect")
        singles = {single.factor: single for single in ledger.one_at_a_time}
        assert singles["readout"].from_lm_eval is None
        assert singles["length_normalisation"].from_inspect == 0

    def test_the_mirror_image_has_the_opposite_readout(self):
        left = [item("a", WRONG), item("b", RIGHT), item("c", WRONG), item("d", (-3.0, -2.0), (4, 2), gold=1)]
        mirrored = closes(
            decompose(
                run_of("inspect", self.generated, protocol=GENERATE),
                run_of("lm_eval", left),
                lm_eval_loglikelihood=run_of("inspect", self.likelihood),
            )
        )
        for name in ("template", "length_normalisation", "tie_break", "readout"):
            assert mirrored.component(name).exact == -self.ledger().component(name).exact

    def test_answers_that_were_cut_off_change_no_sum(self):
        whole = self.ledger()
        self.generated = [replace(one, status=Status.CUT_OFF) for one in self.generated]
        ledger = self.ledger()
        assert ledger.components == whole.components
        assert ledger.readout_split == whole.readout_split
        assert (whole.notes, len(ledger.notes)) == ((), 1)

    def test_without_the_likelihoods_only_unfound_answers_are_laid_to_the_readout(self):
        left = run_of("lm_eval", [item("a", WRONG), item("b", RIGHT), item("c", WRONG), item("d", RIGHT, gold=1)])
        ledger = closes(decompose(left, run_of("inspect", self.generated, protocol=GENERATE)))
        readout = ledger.component("readout")
        assert (readout.status, readout.exact) == ("not separable", Fraction(1, 4))
        assert ledger.readout_split.no_answer_found == Fraction(1, 4)
        assert [found.reason.startswith("only one side generates") for found in ledger.unexplained] == [True, True]
        assert ledger.component("template").status == "not separable"
        assert [(cell.native, cell.exact, cell.num_items) for cell in ledger.cells] == [
            ("lm_eval", Fraction(1, 4), 4),
            ("inspect", Fraction(2, 4), 4),
        ]
        assert ledger.closing_sets == {"from_lm_eval": (), "from_inspect": ()}
        assert agreement_of(ledger).outcomes.only_inspect == 2

    def test_two_generating_runs_have_a_template_and_no_rules(self):
        other = run_of("inspect", [said(s.name, "ANSWER: A", 0, s.gold) for s in self.generated], protocol=GENERATE)
        mine = run_of("inspect", self.generated, protocol=GENERATE)
        reworded = replace(other, samples=tuple(replace(s, prompt="reworded") for s in other.samples))
        ledger = closes(decompose(mine, reworded))
        assert ledger.component("template").items_up == 1
        assert ledger.component("template").items_down == 2
        assert closes(decompose(mine, other)).component("engine").exact == ledger.component("template").exact

    def test_a_likelihood_run_beside_likelihoods_is_refused(self):
        run = run_of("inspect", self.likelihood)
        with pytest.raises(InputError, match="already reads likelihoods"):
            decompose(run_of("lm_eval", self.likelihood), run, inspect_loglikelihood=run)


class TestSpread:
    RANDOM = replace(INSPECT, tie_break="random")

    def runs(self, seed):
        rng = np.random.default_rng(5)
        ties = [
            item(str(n % 9), tuple(rng.integers(-3, -1, 3).astype(float)), (2, 2, 2), gold=int(rng.integers(3)))
            for n in range(9)
        ]
        ties.append(ties[4])  # a copy draws with its original
        other = [replace(one, logprobs=tuple(rng.integers(-3, -1, 3).astype(float))) for one in ties[:-1]]
        other.append(other[4])
        return run_of("lm_eval", ties), run_of("inspect", other, protocol=replace(self.RANDOM, seed=seed))

    def test_expectation_and_variance_over_seeds_are_exact(self):
        ledger = closes(decompose(*self.runs(0)))
        spread = ledger.tie_break_spread
        assert spread.deviation > 0.05
        values = [float(decompose(*self.runs(seed)).component("tie_break").exact) for seed in range(150)]
        assert abs(np.mean(values) - float(spread.expectation)) < 5 * spread.deviation / 150**0.5
        assert np.std(values) == pytest.approx(spread.deviation, rel=0.3)
        left, right = self.runs(0)
        fractional = [
            replace(s, credit=rules.credit([c.logprob for c in s.scores], s.gold, tie_break="fractional"))
            for s in right.samples
        ]
        settled = replace(
            right, protocol=replace(self.RANDOM, tie_break="fractional"), samples=tuple(fractional), reported={}
        )
        assert closes(decompose(left, settled)).component("tie_break").exact == spread.expectation

    def test_without_a_random_rule_there_is_no_spread(self):
        left, right = self.runs(0)
        assert decompose(left, replace(left, harness="inspect")).tie_break_spread is None
        assert decompose(left, right).tie_break_spread is not None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_two_runs_close_exactly(data):
    """Unlike item sets, errors, wrong credits, missing scores, any rules: the components add up to the gap."""
    draw = data.draw
    sides = []
    for harness, template in (("lm_eval", "lm-eval"), ("inspect", "inspect")):
        protocol = Protocol(
            template=template,
            num_fewshot=0,
            normalisation=draw(st.sampled_from(["none", "char", "byte", "token"])),
            tie_break=draw(st.sampled_from(rules.TIE_BREAKS)),
            seed=draw(st.integers(0, 2)),
        )
        names = draw(st.permutations(["a", "a", "b", "c", "d", "e"]))[: draw(st.integers(4, 6))]
        items = [
            item(
                name,
                tuple(draw(st.lists(st.integers(-3, 0), min_size=3, max_size=3))),
                tuple(draw(st.lists(st.integers(1, 3), min_size=3, max_size=3))),
                gold=ord(name) % 3,
                subject=name if name < "c" else "rest",
                status=draw(st.sampled_from([Status.SCORED] * 6 + [Status.TRUNCATED, Status.ERRORED])),
            )
            for name in names
        ]
        run = run_of(harness, items, protocol=protocol, averaging=draw(st.sampled_from(["micro", "macro"])))
        if draw(st.booleans()):
            odd = draw(st.integers(0, len(items) - 1))
            if run.samples[odd].credit is not None:
                run = edit(run, odd, credit=draw(st.sampled_from([Fraction(0), Fraction(1), Fraction(1, 7)])))
        if draw(st.booleans()):
            run = edit(run, draw(st.integers(0, len(items) - 1)), scores=())
        sides.append(run)
    if not match(*sides).common:
        with pytest.raises(InputError, match="share no scored item"):
            decompose(*sides)
        return
    ledger = decompose(*sides)
    closes(ledger)
    shares = [sum(row.contributions.values(), Fraction(0)) for row in ledger.items.rows()]
    logged = [row.logged_lm_eval - row.logged_inspect for row in ledger.items.rows()]
    for share, difference, row in zip(shares, logged, ledger.items.rows(), strict=True):
        assert share == difference or row.unexplained


def test_nan_scores_follow_numpys_argmax():
    left = run_of("lm_eval", [item("a", (-1.0, float("nan")), gold=1), item("b", RIGHT)])
    assert left.samples[0].credit == 1
    ledger = closes(decompose(left, replace(left, harness="inspect")))
    assert ledger.accounted


def test_pmi_takes_the_unconditional_logprobs_of_either_template():
    def informed(run, unconditional):
        scores = tuple(
            replace(score, unconditional_logprob=value)
            for score, value in zip(run.samples[0].scores, unconditional, strict=True)
        )
        return edit(run, 0, scores=scores)

    protocol = replace(LM_EVAL, normalisation="pmi")
    left = edit(informed(run_of("lm_eval", [item("a", WRONG)]), (-5.0, -1.0)), 0, credit=Fraction(1))
    left = replace(left, protocol=protocol, reported={"accuracy": 1.0})
    right = informed(run_of("inspect", [item("a", WRONG)]), (-5.0, -1.0))
    ledger = closes(decompose(left, right))
    assert ledger.component("length_normalisation").exact == 1
    bare = closes(decompose(left, run_of("inspect", [item("a", WRONG)])))
    assert "empty context" in bare.unexplained[0].reason


def test_unconditional_logprobs_of_one_side_alone_are_no_other_numbers_where_no_rule_reads_them():
    left = run_of("lm_eval", [item("a", RIGHT)])
    right = replace(left, harness="inspect")
    scores = tuple(replace(score, unconditional_logprob=-1.0) for score in right.samples[0].scores)
    ledger = closes(decompose(left, edit(right, 0, scores=scores)))
    assert "engine" not in [component.name for component in ledger.components]


def test_two_runs_of_one_harness_reconcile():
    left = run_of("lm_eval", [item("a", RIGHT, (4, 1)), item("b", WRONG, (4, 1))])
    other = run_of(
        "lm_eval", [item("a", RIGHT, (4, 1)), item("b", WRONG, (4, 1))], protocol=replace(LM_EVAL, normalisation="char")
    )
    ledger = closes(decompose(left, other))
    assert ledger.component("length_normalisation").exact == Fraction(-1, 2)
    assert set(ledger.harnesses.values()) == {"lm_eval"}


def test_the_ledger_needs_neither_torch_nor_a_harness():
    code = (
        "import sys, reconcile.decompose, reconcile.perplexity, reconcile.statistics, reconcile.agreement, "
        "reconcile.ranking; print([m for m in ('torch', 'lm_eval', 'inspect_ai', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_item_key_is_all_that_random_ties_hang_on():
    ties = [item(str(n), (-1.0, -1.0)) for n in range(40)]
    protocol = replace(INSPECT, tie_break="random", seed=9)
    run = run_of("inspect", ties, protocol=protocol)
    shuffled = run_of("inspect", ties[::-1], protocol=protocol)
    assert {s.key: s.pick for s in run.samples} == {s.key: s.pick for s in shuffled.samples}
    assert {s.pick for s in run.samples} == {0, 1}
    assert isinstance(run.samples[0].key, ItemKey)
