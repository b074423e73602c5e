"""`--numerics`: computes a sample of a run's requests again, in the other dtype and through the plain padded path."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from llm.errors import InputError
from llm.scoring.requests import Scorer, ScoreRequest
from reconcile.choices import build_table, has_scores
from reconcile.numerics import Numerics, compare
from reconcile.options import RunOptions
from reconcile.progress import Progress
from reconcile.runs import HarnessRun, SampleRecord, Status

_OTHER = {"float32": "bfloat16", "bfloat16": "float32", "float16": "float32"}


def rescore(
    runs: Sequence[tuple[str, HarnessRun]], *, model: Any, tokenizer: Any, options: RunOptions, progress: Progress
) -> tuple[Numerics, ...]:
    """A line for each side and way of computing; a side that has no choice scores gives none.

    The sample is `options.numerics` items drawn by `options.seed`, the same items of both sides.
    """
    usable = {side: _usable(run) for side, run in runs}
    chosen = _draw([_identities(samples) for samples in usable.values() if samples], options)
    lines = []
    for way, scorer in _ways(model, options, progress):
        for side, run in runs:
            sampled = [sample for sample in usable[side] if _identity(sample) in chosen]
            if not sampled:
                continue
            is_pmi = run.protocol.normalisation == "pmi"
            again = _score_again(sampled, scorer, tokenizer, model.max_length, unconditional=is_pmi)
            lines.append(
                compare(
                    side=side,
                    way=way,
                    protocol=run.protocol,
                    everything=usable[side],
                    sampled=sampled,
                    again=again,
                )
            )
    return tuple(lines)


def _usable(run: HarnessRun) -> list[SampleRecord]:
    """The items whose scores the run's own rule can use."""
    if run.protocol.readout != "loglikelihood":
        return []
    samples = [sample for sample in run.samples if has_scores(sample) and sample.status is not Status.WINDOWED]
    lost, _ = build_table(samples).obstacle(run.protocol.normalisation)
    return [sample for sample, unusable in zip(samples, lost.tolist(), strict=True) if not unusable]


def _identity(sample: SampleRecord) -> tuple[str, int]:
    return sample.key.digest, sample.key.occurrence


def _identities(samples: Sequence[SampleRecord]) -> list[tuple[str, int]]:
    return [_identity(sample) for sample in samples]


def _draw(sides: Sequence[list[tuple[str, int]]], options: RunOptions) -> set[tuple[str, int]]:
    assert options.numerics is not None
    if not sides:
        return set()
    common = sorted(set.intersection(*map(set, sides)))
    return set(random.Random(options.seed).sample(common, min(options.numerics, len(common))))


def _ways(model: Any, options: RunOptions, progress: Progress) -> Iterator[tuple[str, Scorer]]:
    """The plain padded path on the model as it is; then the engine on the model in the other dtype."""
    from llm.models import load_model
    from llm.scoring.padded import PaddedScorer
    from llm.scoring.plain import make_scorer

    progress.begin("rescoring a sample through the plain padded path")
    yield "plain padded path", PaddedScorer(model, logits_dtype=options.logits_dtype)  # type: ignore[arg-type]
    dtype = _OTHER[str(model.dtype).removeprefix("torch.")]
    progress.begin(f"rescoring a sample in {dtype}")
    other, _ = load_model(options.model, dtype=dtype, device=options.device)
    yield dtype, make_scorer(other, logits_dtype=options.logits_dtype)


def _score_again(
    samples: Sequence[SampleRecord], scorer: Scorer, tokenizer: Any, max_length: int, *, unconditional: bool
) -> list[SampleRecord]:
    """The samples with every choice's logprob computed again, and that after the empty context if `unconditional`.

    Raises:
        InputError: the logged text does not give the token ids that were scored.
    """
    from llm.scoring.encoding import encode_pairs, fit

    texts = [(sample.prompt, text) for sample in samples for text in sample.continuations]
    bare = sorted({text for sample in samples for text in sample.continuations}) if unconditional else []
    pairs = encode_pairs(tokenizer, [*texts, *(("", text) for text in bare)])
    requests = [fit(pair.request, max_length)[0] for pair in pairs]
    _check(samples, requests)
    totals = [scores.total for scores in scorer.score(requests)]
    after_nothing = dict(zip(bare, totals[len(texts) :], strict=True))
    found = iter(totals)
    return [
        replace(
            sample,
            scores=tuple(
                replace(score, logprob=next(found), unconditional_logprob=after_nothing.get(text))
                for score, text in zip(sample.scores, sample.continuations, strict=True)
            ),
        )
        for sample in samples
    ]


def _check(samples: Sequence[SampleRecord], requests: Sequence[ScoreRequest]) -> None:
    scores = [score for sample in samples for score in sample.scores]
    for score, request in zip(scores, requests, strict=False):
        if score.request_digest is not None and score.request_digest != request.digest:
            raise InputError(
                "--numerics needs the requests that were scored, and the logged texts give other token ids: "
                "leave it out for this protocol"
            )
