"""lm-eval's nested results as one flat mapping that prints as a Markdown table. Needs no harness."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llm.errors import InputError

_NOT_METRICS = ("alias", "name", "sample_len", "sample_count", " ")
_NO_VALUE = "N/A"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One score of one task or group. `stderr` None where lm-eval gives none; `depth` counts the groups above."""

    task: str
    alias: str
    metric: str
    filter: str
    value: float
    stderr: float | None
    num_fewshot: int | None
    num_items: int | None
    depth: int = 0

    @property
    def key(self) -> str:
        """The flat name: `task/metric`, with `,filter` behind it unless the filter is lm-eval's default, none."""
        return f"{self.task}/{self.metric}" + ("" if self.filter == "none" else f",{self.filter}")


class Summary(dict[str, float]):
    """Flat name -> score; a standard error stands beside its score as `task/metric_stderr`.

    `rows` hold the same in lm-eval's order, groups before their members; `str()` is the Markdown table.
    """

    def __init__(self, rows: tuple[Row, ...]) -> None:
        super().__init__()
        self.rows = rows
        for row in rows:
            self[row.key] = row.value
            if row.stderr is not None:
                stderr_key = f"{row.task}/{row.metric}_stderr" + ("" if row.filter == "none" else f",{row.filter}")
                self[stderr_key] = row.stderr

    def to_markdown(self) -> str:
        """The scores as a Markdown table, one line a score."""
        header = ("Task", "n-shot", "Metric", "Value", "Stderr", "Items")
        lines = [header, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        rule = [
            ("-" * (width + 1) + ":") if column in (1, 3, 4, 5) else ":" + "-" * (width + 1)
            for column, width in enumerate(widths)
        ]
        texts = ["| " + " | ".join(_aligned(line, widths)) + " |" for line in lines]
        return "\n".join([texts[0], "|" + "|".join(rule) + "|", *texts[1:]])

    def __str__(self) -> str:
        return self.to_markdown()


def summarize(results: Mapping[str, Any] | None) -> Summary:
    """Flatten what lm-eval's evaluator returns, or what its `results_*.json` holds: one task, several, or groups.

    Raises InputError for a shape that lm-eval does not produce.
    """
    if not isinstance(results, Mapping) or not isinstance(results.get("results"), Mapping):
        raise InputError(
            f"no lm-eval results in a {type(results).__name__}: give what evaluate() returned, a mapping with 'results'"
        )
    scores: dict[str, Any] = {**results["results"], **(results.get("groups") or {})}
    if not scores:
        raise InputError("these lm-eval results report no task")
    rows = [row for name, depth in _in_order(scores, results) for row in _rows(name, depth, scores[name], results)]
    return Summary(tuple(rows))


def _in_order(scores: Mapping[str, Any], results: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Names with their depth: each group, then its members, then what stands alone, each once."""
    members: Mapping[str, Any] = results.get("group_subtasks") or {}
    inner = {child for children in members.values() for child in children or ()}
    seen: set[str] = set()

    def walk(name: str, depth: int) -> Iterator[tuple[str, int]]:
        if name in seen:
            return
        seen.add(name)
        if name in scores:
            yield name, depth
        for child in members.get(name) or ():
            yield from walk(child, depth + 1)

    for name in dict.fromkeys((*members, *scores)):
        if name not in inner:
            yield from walk(name, 0)
    for name in scores:  # only a circle of groups leaves any
        yield from walk(name, 0)


def _rows(name: str, depth: int, entry: Any, results: Mapping[str, Any]) -> Iterator[Row]:
    if not isinstance(entry, Mapping):
        raise InputError(f"the results of {name!r} are a {type(entry).__name__}: lm-eval gives a mapping of metrics")
    for full_name, value in entry.items():
        metric, _, filter_name = full_name.partition(",")
        if full_name in _NOT_METRICS or metric.endswith("_stderr"):
            continue
        stderr = entry.get(f"{metric}_stderr,{filter_name}" if filter_name else f"{metric}_stderr")
        yield Row(
            task=name,
            alias=str(entry.get("alias") or name).strip(" -"),
            metric=metric,
            filter=filter_name or "none",
            value=_number(name, full_name, value),
            stderr=None if stderr in (None, _NO_VALUE) else _number(name, f"{metric}_stderr", stderr),
            num_fewshot=_count((results.get("n-shot") or {}).get(name)),
            num_items=_count(entry.get("sample_len") or _effective(name, results)),
            depth=depth,
        )


def _number(task: str, metric: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{metric} of {task!r} is {value!r}: lm-eval's scores are numbers")
    return float(value)


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _effective(name: str, results: Mapping[str, Any]) -> Any:
    return ((results.get("n-samples") or {}).get(name) or {}).get("effective")


def _cells(row: Row) -> tuple[str, ...]:
    name = ("- " if row.depth else "") + row.alias
    metric = row.metric if row.filter == "none" else f"{row.metric} ({row.filter})"
    return (
        " " * max(0, row.depth - 1) * 2 + name.replace("|", "\\|"),
        "" if row.num_fewshot is None else str(row.num_fewshot),
        metric.replace("|", "\\|"),
        f"{row.value:.4f}",
        "" if row.stderr is None else f"± {row.stderr:.4f}",
        "" if row.num_items is None else str(row.num_items),
    )


def _aligned(line: tuple[str, ...], widths: list[int]) -> list[str]:
    return [
        text.rjust(width) if column in (1, 3, 4, 5) else text.ljust(width)
        for column, (text, width) in enumerate(zip(line, widths, strict=True))
    ]
