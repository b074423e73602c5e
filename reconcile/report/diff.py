"""`python -m reconcile diff RUN_A RUN_B`: what changed between two finished runs, for a reviewer and for CI.

Works on the runs' folders alone; neither torch nor a harness is imported. Every difference is B minus A.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from llm.errors import InputError
from reconcile.points import SLACK, is_past, points
from reconcile.report.folder import recorded_run
from reconcile.report.markdown import as_markdown
from reconcile.report.names import FACTORS, SIDES, side_names
from reconcile.report.numbers import NO_VALUE, count, listed
from reconcile.report.records import RECORDS_NAME, Recorded
from reconcile.report.sections import Section, Table
from reconcile.report.terminal import make_console, print_sections
from reconcile.report.texts import one_line
from reconcile.run_folder import DOCUMENT_NAME, check_finished
from reconcile.runs import HarnessRun, SampleRecord

EXIT_WITHIN, EXIT_PAST = 0, 1

_TITLE = "What changed between two runs"
_MOST_ITEMS = 10


@dataclass(frozen=True, kw_only=True)
class Change:
    """One number before and after; None where a run has no such number."""

    name: str
    before: float | None
    after: float | None

    @property
    def difference(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True, kw_only=True)
class ItemChanges:
    """One side's items that both runs scored: how credits, picks and requests changed, B against A.

    `same_tokens` of `num_requests` choices that say so had the same token ids, `same_logprobs` of those the same
    logprob; `max_difference` is the largest difference among those, in nats.
    """

    num_common: int
    only_before: int
    only_after: int
    newly_right: tuple[SampleRecord, ...]
    newly_wrong: tuple[SampleRecord, ...]
    picks_changed: int
    num_requests: int
    same_tokens: int
    same_logprobs: int
    max_difference: float


@dataclass(frozen=True, kw_only=True)
class RunDiff:
    """Two runs of one task side by side. `unit` says what a point is a hundredth of."""

    settings: tuple[tuple[str, str, str], ...]
    scores: tuple[Change, ...]
    components: tuple[Change, ...]
    counts: tuple[Change, ...]
    items: Mapping[str, ItemChanges]
    names: Mapping[str, str]
    unit: str

    @property
    def largest(self) -> Change:
        """The score, or the gap, that changed most."""
        return max(self.scores, key=lambda change: abs(change.difference or 0.0))

    @property
    def points(self) -> float:
        """By how many points that one changed; a point is 0.01."""
        return points(self.largest.difference or 0.0)


def run_diff(before: Path, after: Path, *, fail_over: float | None = None, out: Path | None = None) -> int:
    """Prints what changed, writes it to `out` as Markdown where that is given; returns 1 past `fail_over` points.

    Raises:
        InputError: a folder that holds no run, or two runs that cannot be compared.
    """
    found = compare_runs(before, after)
    sections = diff_sections(found, fail_over)
    console = make_console()
    print_sections(console, _TITLE, sections)
    console.print()
    console.print(verdict(found, fail_over), soft_wrap=True, highlight=False)
    if out is not None:
        out.write_text(as_markdown(_TITLE, sections, lead=(verdict(found, fail_over),)), encoding="utf-8")
    return EXIT_PAST if is_past(found.points, fail_over) else EXIT_WITHIN


def compare_runs(before: Path, after: Path) -> RunDiff:
    """Reads and compares two folders.

    Raises:
        InputError: a folder that holds no run, runs of different tasks or metrics, or a score that is no number.
    """
    one, other = read_document(before), read_document(after)
    for name in ("task", "metric"):
        if one[name] != other[name]:
            raise InputError(
                f"{before} is of {name} {one[name]!r}, {after} of {other[name]!r}: compare runs of one {name}"
            )
    pages = "bits_per_byte" in one
    scores = _scores(one, other)
    _check_scores(before, scores, [score.before for score in scores])
    _check_scores(after, scores, [score.after for score in scores])
    return RunDiff(
        settings=tuple(_settings(one, other)),
        scores=tuple(scores),
        components=tuple(_components(one, other, "bits_per_byte" if pages else None)),
        counts=tuple(_counts(one, other)),
        items={} if pages else _items(before, after),
        names=side_names(other["harnesses"]),
        unit="bit per byte" if pages else "score of 1",
    )


def read_document(folder: Path) -> dict[str, Any]:
    """A run's reconcile.json.

    Raises:
        InputError: there is none, or it is not one of a finished run.
    """
    check_finished(folder)
    path = folder if folder.is_file() else folder / DOCUMENT_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{folder} holds no {DOCUMENT_NAME}: name the folder of a finished run") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): name the folder of a finished run") from error
    if not isinstance(document, dict) or not {"task", "metric", "reported", "components"} <= document.keys():
        raise InputError(f"{path} is not that of one run of one task: name the folder of a finished run")
    return document


def verdict(found: RunDiff, fail_over: float | None) -> str:
    """The one line for CI."""
    largest, cause = found.largest, _cause(found)
    told = f"Largest change: {largest.name}, {_points(largest.difference)}"
    if found.points <= SLACK:
        told = "No score changed"
    if fail_over is None:
        return f"{told}{cause}."
    side = "PAST" if is_past(found.points, fail_over) else "within"
    return f"{told}, {side} the {fail_over:g} allowed{cause}."


def _cause(found: RunDiff) -> str:
    """What a maintainer asks first: the engine, the protocol, or the items?"""
    differing = {name.split(" ", 1)[0] for name, _, _ in found.settings}
    causes: list[str] = [name for name in ("model", "data", "protocol", "version") if name in differing]
    engine = [
        found.names[side]
        for side, one in found.items.items()
        if one.same_tokens > one.same_logprobs and side in found.names
    ]
    told = []
    if causes:
        told.append(f"{listed(causes)} differ" + ("s" if len(causes) == 1 else ""))
    if engine:
        told.append(f"the same tokens got other logprobs in {listed(engine)}")
    return f"; {' and '.join(told)}" if told else "; model, data, protocols and versions are the same"


def _settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What the two runs were asked for, where it differs; the first word of a name says which part it is of."""
    rows = [
        *_rows("model", one["model"], other["model"]),
        *_rows("data", one["data"], other["data"]),
        *_rows("data", {"limit": one.get("limit")}, {"limit": other.get("limit")}),
        *_rows("bootstrap", {"seed": one.get("seed")}, {"seed": other.get("seed")}),
    ]
    for side, name in side_names(other["harnesses"]).items():
        rows += _rows(f"protocol of {name},", one["protocols"][side], other["protocols"][side])
    return rows + _rows("version of", one["versions"], other["versions"])


def _rows(part: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (
            f"{part} {name.replace('_', '-') if not part.startswith('version') else name}",
            str(one.get(name)),
            str(other.get(name)),
        )
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    ]


def _scores(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Change]:
    """Both sides' scores and the gap."""
    if "bits_per_byte" in one:
        ours, theirs = one["bits_per_byte"], other["bits_per_byte"]
    else:
        ours, theirs = ({**document["reported"], "gap": document.get("gap")} for document in (one, other))
    names = {**side_names(other["harnesses"]), "gap": "the gap"}
    return [Change(name=name, before=ours.get(key), after=theirs.get(key)) for key, name in names.items()]


def _check_scores(folder: Path, scores: Sequence[Change], values: Sequence[float | None]) -> None:
    """A score that is missing would else pass for one that did not change.

    Raises:
        InputError: a score is no number.
    """
    lacking = [one.name for one, value in zip(scores, values, strict=True) if not isinstance(value, int | float)]
    if lacking:
        raise InputError(
            f"{folder} has no number for {listed(lacking)}: its {DOCUMENT_NAME} is damaged or from a run "
            "without a finite score, so nothing can be compared with it"
        )


def _components(one: Mapping[str, Any], other: Mapping[str, Any], block: str | None) -> list[Change]:
    ours, theirs = (document[block]["components"] if block else document["components"] for document in (one, other))
    return [
        Change(name=FACTORS.get(name, name), before=ours.get(name), after=theirs.get(name))
        for name in dict.fromkeys([*ours, *theirs])
        if name != "rounding"
    ]


def _counts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Change]:
    return [
        Change(name="items that both scored", before=one["num_items"]["common"], after=other["num_items"]["common"]),
        Change(name="items unexplained", before=len(one["items_unexplained"]), after=len(other["items_unexplained"])),
    ]


def _items(before: Path, after: Path) -> dict[str, ItemChanges]:
    """By side; nothing where a folder has no records."""
    if not all((folder / RECORDS_NAME).is_file() for folder in (before, after)):
        return {}
    one, other = recorded_run(before), recorded_run(after)
    return {side: _item_changes(_run(one, side), _run(other, side)) for side in SIDES}


def _run(recorded: Recorded, side: str) -> HarnessRun:
    return recorded.lm_eval if side == "lm_eval" else recorded.inspect


def _item_changes(before: HarnessRun, after: HarnessRun) -> ItemChanges:
    ours, theirs = ({(s.key.digest, s.key.occurrence): s for s in run.samples} for run in (before, after))
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    credited = [(a, b) for a, b in pairs if a.credit is not None and b.credit is not None]
    requests = [
        both
        for a, b in pairs
        for both in zip(a.scores, b.scores, strict=False)
        if None not in (both[0].request_digest, both[1].request_digest)
    ]
    same = [(a, b) for a, b in requests if a.request_digest == b.request_digest]
    return ItemChanges(
        num_common=len(pairs),
        only_before=len(ours) - len(pairs),
        only_after=len(theirs) - len(pairs),
        newly_right=tuple(b for a, b in credited if (b.credit or Fraction(0)) > (a.credit or Fraction(0))),
        newly_wrong=tuple(b for a, b in credited if (b.credit or Fraction(0)) < (a.credit or Fraction(0))),
        picks_changed=sum(a.pick != b.pick for a, b in pairs),
        num_requests=len(requests),
        same_tokens=len(same),
        same_logprobs=sum(a.logprob == b.logprob for a, b in same),
        max_difference=max((abs(a.logprob - b.logprob) for a, b in same), default=0.0),
    )


def diff_sections(found: RunDiff, fail_over: float | None = None) -> list[Section]:
    """What changed, in words and tables."""
    return [
        _settings_section(found),
        _numbers_section("Scores", found.scores, found.unit),
        _numbers_section("Components", found.components, found.unit),
        _counts_section(found),
        *(_items_section(found.names[side], changes) for side, changes in found.items.items()),
    ]


def _settings_section(found: RunDiff) -> Section:
    if not found.settings:
        sentence = "Both runs were asked for the same: model, data, protocols and versions."
        return Section(title="What differs", sentences=(sentence,), brief=True)
    table = Table(headers=("", "A", "B"), align="lll", rows=found.settings)
    return Section(title="What differs", table=table, brief=True)


def _numbers_section(title: str, changes: Sequence[Change], unit: str) -> Section:
    rows = tuple(
        (change.name, _number(change.before), _number(change.after), _points(change.difference)) for change in changes
    )
    table = Table(headers=("", "A", "B", "B − A"), align="lrrr", rows=rows)
    after = (f"A point is a hundredth of a {unit}.",) if title == "Scores" else ()
    return Section(title=title, table=table, after=after, brief=True)


def _counts_section(found: RunDiff) -> Section:
    rows = tuple((c.name, f"{c.before:g}", f"{c.after:g}", f"{c.difference:+g}") for c in found.counts)
    return Section(title="Counts", table=Table(headers=("", "A", "B", "B − A"), align="lrrr", rows=rows), brief=True)


def _items_section(name: str, one: ItemChanges) -> Section:
    sentences = [
        f"{count(one.num_common, 'item')} in both runs ({one.only_before} in A alone, {one.only_after} in B alone): "
        f"{len(one.newly_right)} better in B, {len(one.newly_wrong)} worse, {one.picks_changed} picks changed."
    ]
    if one.num_requests:
        sentences.append(
            f"{one.same_tokens}/{one.num_requests} requests had the same tokens, {one.same_logprobs}/{one.same_tokens} "
            f"of those the same logprob (largest difference {one.max_difference:.2g} nats)."
        )
    changed = [("worse", sample) for sample in one.newly_wrong] + [("better", sample) for sample in one.newly_right]
    rows = tuple(
        (what, sample.key.digest[:12], one_line(sample.subject, 40), one_line(sample.question, 70))
        for what, sample in changed[:_MOST_ITEMS]
    )
    table = Table(headers=("in B", "item", "sub-task", "question"), align="llll", rows=rows) if rows else None
    left = len(changed) - _MOST_ITEMS
    after = (f"… and {count(left, 'more item')}.",) if left > 0 else ()
    return Section(title=f"Items of {name}", sentences=tuple(sentences), table=table, after=after, brief=True)


def _number(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.4f}"


def _points(difference: float | None) -> str:
    if difference is None:
        return NO_VALUE
    return "0" if points(difference) <= SLACK else f"{100 * difference:+.2f} points"
