"""One finished lm-eval run as a `HarnessRun`: the headline as written, its replay from logged credits, the items."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from llm.errors import InputError
from llm.evaluation.data import item_key
from reconcile.lm_eval_logs import LmEvalFiles, LoggedDoc, open_run, read_docs, read_trace
from reconcile.lm_eval_records import NORMALISATION_OF, DocReader, hash_differs, prompt_differs
from reconcile.lm_eval_settings import lm_eval_settings
from reconcile.log_values import as_float, mean, number_occurrences
from reconcile.runs import HarnessRun, ItemKey, PageRecord, Protocol, SampleRecord

_HEADLINES = ("acc", "exact_match", "acc_norm", "bits_per_byte", "word_perplexity")
_SAID = ("normalisation", "tie_break", "seed", "tie_atol", "num_fewshot")
_PAGE_METRICS = ("bits_per_byte", "word_perplexity", "byte_perplexity")


def read_lm_eval_run(
    path: Path, *, task: str | None = None, metric: str | None = None, protocol: Protocol | None = None
) -> HarnessRun:
    """What lm-eval logged at `path` about `task` (the run's only one by default).

    `metric` is the reported metric to account for (acc, else the first it has). `protocol` is what the run was asked
    for where the caller knows; by default it is read from the log.

    Raises:
        InputError: missing, damaged, empty or ambiguous logs, each in one sentence.
    """
    files = open_run(path)
    root = _chosen_task(files, task)
    leaves = [leaf for leaf in files.leaves(root) if leaf in files.results["results"]]
    missing = [leaf for leaf in leaves if leaf not in files.samples]
    if len(missing) == len(leaves):
        raise InputError(f"{files.results_path.parent} has no samples of {root}: run lm-eval with --log_samples")
    trace = read_trace(files.results_path.parent)
    if _reports_pages(files, leaves[0]):
        return _page_run(files, root, trace, protocol)
    headline, filter_name = _headline(files, root, leaves, metric)
    notes = [*files.notes, *(f"no samples file of {leaf}" for leaf in missing)]
    reader = _Leaves(files=files, headline=headline, filter=filter_name, trace=trace, notes=notes)
    samples, means = reader.read(root, [leaf for leaf in leaves if leaf in files.samples])
    reported = _reported(files, root)
    key = _metric_key(files.results["results"][root], headline, filter_name)
    sizes = [count for _, count in means.values()]
    averaging, replayed = _replay(
        [value for value, _ in means.values()], sizes, reported.get(key) if not missing else None
    )
    return HarnessRun(
        harness="lm_eval",
        task=root,
        headline=key,
        protocol=protocol or _protocol(files, leaves, headline, samples),
        samples=number_occurrences(samples),
        reported=reported,
        stderr=_stderr(files.results["results"][root], headline, filter_name),
        subjects=_subjects(files, leaves, headline, filter_name) if len(leaves) > 1 else {},
        averaging=averaging,
        replayed=replayed,
        versions=_versions(files, leaves),
        settings=lm_eval_settings(files.results, leaves[0]),
        log_files=(str(files.results_path), *(str(files.samples[leaf]) for leaf in leaves if leaf in files.samples)),
        notes=tuple(notes),
    )


class _Leaves:
    """Reads the samples of a run's sub-tasks and replays each one's mean."""

    def __init__(
        self,
        *,
        files: LmEvalFiles,
        headline: str,
        filter: str,
        trace: Mapping[str, Mapping[str, Any]],
        notes: list[str],
    ) -> None:
        self.files = files
        self.headline = headline
        self.filter = filter
        self.trace = trace
        self.notes = notes
        self.num_hash_differs = 0

    def read(self, root: str, leaves: Sequence[str]) -> tuple[list[SampleRecord], dict[str, tuple[float, int]]]:
        """The records of all leaves, and (mean as lm-eval takes it, number of documents) of each."""
        samples: list[SampleRecord] = []
        means: dict[str, tuple[float, int]] = {}
        for leaf in leaves:
            reader = DocReader(
                task=leaf,
                subject=leaf.removeprefix(f"{root}_") if leaf != root else "",
                metric=self.headline,
                delimiter=_delimiter(_config(self.files, leaf)),
                trace=self.trace,
            )
            credits = []
            for logged in self._docs(leaf):
                samples.append(reader.sample(logged))
                credits.append(as_float(logged.values.get(self.headline)))
            given = [credit for credit in credits if credit is not None]
            if not given:
                raise InputError(f"{self.files.samples[leaf]} holds no sample with {self.headline}: nothing to compare")
            means[leaf] = (mean(given), len(credits))
        if self.num_hash_differs:
            self.notes.append(
                f"{self.num_hash_differs} documents do not have the hash logged beside them: content was believed"
            )
        return samples, means

    def _docs(self, leaf: str) -> Iterator[LoggedDoc]:
        """A sub-task's documents under the filter, one at a time: a line is not kept once its record is made."""
        path, number = self.files.samples[leaf], 0
        wanted = self.filter if any(logged.filter == self.filter for logged in read_docs(path)) else "none"
        for logged in read_docs(path):
            if logged.filter != wanted:
                continue
            if not number and prompt_differs(_config(self.files, leaf), logged):
                said = "logged prompts differ from the task's own template; the prompts were believed"
                self.notes.append(f"{leaf}: {said}")
            number += 1
            self.num_hash_differs += hash_differs(logged)
            yield logged
        expected = self.files.results.get("n-samples", {}).get(leaf, {}).get("effective")
        if isinstance(expected, int) and expected != number:
            self.notes.append(f"partial: {leaf} logs {number} of {expected} documents")


def _chosen_task(files: LmEvalFiles, task: str | None) -> str:
    if task is not None:
        if task not in files.results["results"]:
            known = ", ".join(list(files.results["results"])[:8])
            raise InputError(f"{files.results_path} reports no task {task!r}: it has {known}")
        return task
    roots = files.roots()
    if len(roots) != 1:
        raise InputError(
            f"{files.results_path} reports {len(roots)} tasks ({', '.join(roots[:8])}): name one with --task"
        )
    return roots[0]


def _config(files: LmEvalFiles, leaf: str) -> Mapping[str, Any]:
    config = files.results.get("configs", {}).get(leaf)
    return config if isinstance(config, dict) else {}


def _delimiter(config: Mapping[str, Any]) -> str:
    """What joins context and choice. A task of this project that words its prompts itself logs continuations whole,
    with an empty delimiter, and counts their lengths without the space before them.
    """
    if _said_protocol(config).get("template", "lm-eval") != "lm-eval":
        return " "
    return str(config.get("target_delimiter", " "))


def _reports_pages(files: LmEvalFiles, leaf: str) -> bool:
    reported = files.results["results"][leaf]
    return any(name in _PAGE_METRICS for name, _ in map(_split_key, reported)) and "acc,none" not in reported


def _split_key(key: str) -> tuple[str, str]:
    """("acc", "none") of "acc,none"; results before 0.4 wrote "acc" alone."""
    name, _, filter_name = key.partition(",")
    return name, filter_name or "none"


def _metric_key(reported: Mapping[str, Any], metric: str, filter_name: str) -> str:
    for key in (f"{metric},{filter_name}", metric):
        if key in reported:
            return key
    raise InputError(f"lm-eval reports no {metric} here but {', '.join(_metrics(reported))}: name one with --metric")


def _metrics(reported: Mapping[str, Any]) -> dict[str, str]:
    """Metric name -> first filter, of the numbers in a task's results."""
    found: dict[str, str] = {}
    for key, value in reported.items():
        name, filter_name = _split_key(key)
        if isinstance(value, float) and not name.endswith("_stderr"):
            found.setdefault(name, filter_name)
    return found


def _headline(files: LmEvalFiles, root: str, leaves: Sequence[str], metric: str | None) -> tuple[str, str]:
    reported = files.results["results"][root]
    metrics = _metrics(reported) or _metrics(files.results["results"][leaves[0]])
    if metric is None:
        metric = next((name for name in _HEADLINES if name in metrics), next(iter(metrics), ""))
    if metric not in metrics:
        raise InputError(f"{root} reports no metric {metric!r}: it has {', '.join(metrics) or 'none'}")
    return metric, metrics[metric]


def _reported(files: LmEvalFiles, root: str) -> dict[str, float]:
    """Metric -> the full float, of the metrics themselves: standard errors stand elsewhere."""
    entry = files.results["results"][root]
    return {k: v for k, v in entry.items() if isinstance(v, float) and not _split_key(k)[0].endswith("_stderr")}


def _stderr(reported: Mapping[str, Any], metric: str, filter_name: str) -> float | None:
    value = reported.get(f"{metric}_stderr,{filter_name}", reported.get(f"{metric}_stderr"))
    return value if isinstance(value, float) else None


def _subjects(files: LmEvalFiles, leaves: Sequence[str], metric: str, filter_name: str) -> dict[str, float]:
    scores = {}
    for leaf in leaves:
        value = files.results["results"][leaf].get(f"{metric},{filter_name}")
        if isinstance(value, float):
            scores[leaf] = value
    return scores


def _replay(
    values: Sequence[float], sizes: Sequence[int], reported: float | None
) -> tuple[Literal["micro", "macro"], bool]:
    """How sub-tasks were averaged (by size unless only the plain mean fits), and whether the bits are the same."""
    if len(values) == 1:
        return "micro", values[0] == reported
    by_size = sum([value * size for value, size in zip(values, sizes, strict=True)]) / sum(sizes)
    plain = sum([value * 1 for value in values]) / len(values)
    if by_size == reported:
        return "micro", True
    if plain == reported:
        return "macro", True
    nearer_plain = reported is not None and abs(plain - reported) < abs(by_size - reported)
    return ("macro" if nearer_plain else "micro"), False


def _protocol(files: LmEvalFiles, leaves: Sequence[str], headline: str, samples: Sequence[SampleRecord]) -> Protocol:
    """The protocol of a run: what its metrics mean in stock lm-eval, or what a task of this project says of itself."""
    shots = files.results.get("n-shot", {}).get(leaves[0], _config(files, leaves[0]).get("num_fewshot"))
    native = Protocol(
        template="lm-eval",
        num_fewshot=shots if isinstance(shots, int) else 0,
        normalisation=NORMALISATION_OF.get(headline, "none"),  # type: ignore[arg-type]
        tie_break="first",
        readout="generate" if samples and not samples[0].scores else "loglikelihood",
        chat_template=bool(files.results.get("chat_template")),
    )
    said = _said_protocol(_config(files, leaves[0]))
    if not said:
        return native
    wording = {"template": "lm-eval" if said.get("template", "lm-eval") == "lm-eval" else "inspect"}
    rules = {name: said[name] for name in _SAID if name in said}
    return replace(native, **wording, **rules)  # type: ignore[arg-type]


def _said_protocol(config: Mapping[str, Any]) -> Mapping[str, Any]:
    about = config.get("metadata")
    protocol = about.get("protocol") if isinstance(about, Mapping) else None
    return protocol if isinstance(protocol, Mapping) else {}


def _versions(files: LmEvalFiles, leaves: Sequence[str]) -> dict[str, str]:
    named = {
        "lm_eval": files.results.get("lm_eval_version"),
        "transformers": files.results.get("transformers_version"),
        f"task {leaves[0]}": files.results.get("versions", {}).get(leaves[0]),
    }
    return {name: str(value) for name, value in named.items() if value is not None}


def _page_run(
    files: LmEvalFiles, root: str, trace: Mapping[str, Mapping[str, Any]], protocol: Protocol | None
) -> HarnessRun:
    reader = DocReader(task=root, subject="", metric="word_perplexity", trace=trace)
    pages: list[PageRecord] = []
    for logged in read_docs(files.samples[root]):
        text = str(logged.doc.get("page", logged.requests[0][0] if logged.requests else ""))
        occurrence = sum(page.key.digest == item_key(None, text, ()) for page in pages)
        key = ItemKey(digest=item_key(None, text, ()), occurrence=occurrence)
        pages.append(replace(reader.page(logged), key=key))
    if not pages:
        raise InputError(f"{files.samples[root]} is empty: it holds no page")
    reported = _reported(files, root)
    headline = _metric_key(files.results["results"][root], "word_perplexity", "none")
    return HarnessRun(
        harness="lm_eval",
        task=root,
        headline=headline,
        protocol=protocol or Protocol(template="lm-eval", num_fewshot=0, normalisation="none", tie_break="first"),
        pages=tuple(pages),
        reported=reported,
        replayed=None,
        versions=_versions(files, [root]),
        settings=lm_eval_settings(files.results, root),
        log_files=(str(files.results_path), str(files.samples[root])),
        notes=files.notes,
    )
