"""What a reader must know of single items before trusting a score: cut, cut off, scored in windows, or not a number."""

from collections.abc import Sequence

from llm.evaluation.rules import has_nan
from reconcile.readout import is_unfound
from reconcile.replay import Side
from reconcile.runs import HarnessRun, SampleRecord, Status

_NAMES = {"lm_eval": "lm-eval", "inspect": "Inspect"}
_MOST_NAMED = 5
_STATES = {
    Status.TRUNCATED: "had their beginning cut to fit the model",
    Status.WINDOWED: "were scored in windows because they are longer than the context",
}


def flags(left: Side, right: Side) -> tuple[str, ...]:
    """A sentence for each kind of flagged items of either side; none where there is nothing to say."""
    names = _side_names(left.run, right.run)
    return tuple(sentence for name, side in zip(names, (left, right), strict=True) for sentence in _of(name, side))


def _of(name: str, side: Side) -> list[str]:
    samples = side.run.samples
    counted = {said: sum(sample.status is status for sample in samples) for status, said in _STATES.items()}
    sentences = [f"{name}: {number} of {len(samples)} items {said}" for said, number in counted.items() if number]
    sentences += _cut_off(name, samples)
    table = side.table
    nans = set(has_nan(table.logprobs, valid=table.valid).nonzero()[0].tolist()) if table.num_items else set()
    if nans:
        ids = [one.sample_id for one, row in zip(side.native, side.table_rows.tolist(), strict=True) if row in nans]
        sentences.append(
            f"{name}: {len(nans)} of {len(samples)} items hold a score that is not a number, which NumPy's argmax "
            f"takes for the best ({_named(ids)})"
        )
    return sentences


def _cut_off(name: str, samples: Sequence[SampleRecord]) -> list[str]:
    """What is known of generated answers that a limit ended."""
    generated = [sample for sample in samples if sample.answer is not None and sample.status is not Status.ERRORED]
    cut = [sample for sample in generated if sample.status is Status.CUT_OFF]
    if not cut:
        return []
    unfound = sum(is_unfound(sample) for sample in cut)
    return [
        f"{name}: {len(cut)} of {len(generated)} generated answers were cut off: a limit on tokens or on the sample "
        f"ended them; no answer was found in {unfound} of these"
    ]


def _named(ids: Sequence[str]) -> str:
    """The samples by their ids in the log, the first few of many."""
    shown = ", ".join(ids[:_MOST_NAMED]) + (f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else "")
    return f"sample{'s' if len(ids) > 1 else ''} {shown}"


def _side_names(left: HarnessRun, right: HarnessRun) -> Sequence[str]:
    names = [_NAMES[run.harness] for run in (left, right)]
    return names if names[0] != names[1] else [f"the first {names[0]} run", f"the second {names[1]} run"]
