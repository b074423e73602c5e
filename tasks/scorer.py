"""The scorer of the likelihood tasks: every pick and credit comes from `llm.evaluation.rules`."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, Value, accuracy, scorer, stderr
from inspect_ai.solver import TaskState

from llm.evaluation import rules
from providers.inspect_errors import input_errors

Choice = dict[str, Any]


@scorer(metrics=[accuracy(), stderr()])
def likelihood_choice(
    normalisation: rules.Normalisation = "token",
    tie_break: rules.TieBreak = "random",
    seed: int = 0,
    tie_atol: float = 0.0,
) -> Scorer:
    """Credit for the choice with the best normalised log-likelihood.

    The value is "C", "I" or, where a tie shares the credit, a fraction. The metadata holds all that is needed to
    derive it again: per choice the log-likelihood (nats), lengths and what was scored; the pick as an original
    index; the tied choices; the exact credit; the status of the item (scored, truncated, windowed, errored).
    """

    async def score(state: TaskState, target: Target) -> Score:
        choices = _choices(state)
        if not choices:
            reason = state.output.error or "the model's output holds no scored continuations"
            return Score.unscored(
                reason="scoring_failed", explanation=reason, metadata={"status": "errored", "error": reason}
            )
        with input_errors():
            values = rules.normalise(
                [choice["logprob"] for choice in choices],
                rule=normalisation,
                num_chars=[choice["num_chars"] for choice in choices],
                num_bytes=[choice["num_bytes"] for choice in choices],
                num_tokens=[choice["num_tokens"] for choice in choices],
                unconditional=_unconditional(choices),
            )
            tied = rules.tied_for_best(values, tie_atol=tie_atol)
            key = str(state.metadata["item_key"])
            gold = int(state.metadata["gold"])
            pick = rules.pick(values, tie_break=tie_break, seed=seed, key=key, tie_atol=tie_atol)
            credit = rules.credit(values, gold, tie_break=tie_break, seed=seed, key=key, tie_atol=tie_atol)
        best = [index for index, flag in enumerate(tied.tolist()) if flag]
        return Score(
            value=_value(credit),
            answer=_letter(pick) if pick is not None else ", ".join(_letter(index) for index in best),
            explanation=_table(choices, values.tolist(), state),
            metadata={
                "status": _status(choices),
                "pick": pick,
                "tied": best,
                "credit": str(credit),
                "gold": gold,
                "item_key": key,
                "scores": values.tolist(),
                "choice_mass": math.fsum(math.exp(choice["logprob"]) for choice in choices),
                "choices": choices,
            },
        )

    return score


def _choices(state: TaskState) -> list[Choice]:
    """What was scored, choice by choice, with the lengths of the choice texts; [] where nothing was."""
    scored = (state.output.metadata or {}).get("continuations") or []
    texts = state.metadata["choice_texts"]
    assert not scored or len(scored) == len(texts)
    return [
        {**found, "num_chars": len(text), "num_bytes": len(text.encode())}
        for found, text in zip(scored, texts, strict=False)
    ]


def _unconditional(choices: Sequence[Choice]) -> list[float] | None:
    values = [choice["unconditional_logprob"] for choice in choices]
    return None if None in values else values


def _value(credit: Fraction) -> Value:
    if credit.denominator == 1:
        return CORRECT if credit else INCORRECT
    return float(credit)


def _status(choices: Sequence[Choice]) -> str:
    if any(choice.get("windowed") for choice in choices):
        return "windowed"
    return "truncated" if any(choice["num_truncated"] for choice in choices) else "scored"


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _table(choices: Sequence[Choice], scores: Sequence[float], state: TaskState) -> str:
    """For the log's reader: each choice with its log-likelihood and the score it was picked by."""
    lines = [
        f"{_letter(index)}) log-likelihood {choice['logprob']:.4f} over {choice['num_tokens']} tokens, "
        f"score {score:.4f}: {state.choices[index].value}"
        for index, (choice, score) in enumerate(zip(choices, scores, strict=True))
    ]
    return "\n".join(lines)
