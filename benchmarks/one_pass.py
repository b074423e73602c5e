"""What the main job asks of the model: no more than the distinct tokens of both templates, each once.

    python -m benchmarks.one_pass [mmlu] [--limit 4] [--data ../shared/data]

Runs `python -m reconcile` in this process with an empty store and watches its engine; then scores all the requests it
saw in one call of a fresh engine. Printed are the tokens that the run computed beside the distinct tokens of its
requests, the model seconds of both, and what a second run costs. JSON.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.speed import REF


class Watch:
    """The engines of a run, and the requests they were asked for."""

    def __init__(self) -> None:
        self.engines: dict[int, Any] = {}
        self.requests: dict[Any, None] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While inside, every engine's calls are seen."""
        from llm.scoring.engine import ScoringEngine

        score = ScoringEngine.score

        def watched(engine: Any, requests: Any, **settings: Any) -> Any:
            self.engines[id(engine)] = engine
            self.requests.update(dict.fromkeys(requests))
            return score(engine, requests, **settings)

        ScoringEngine.score = watched  # type: ignore[method-assign]
        try:
            yield
        finally:
            ScoringEngine.score = score  # type: ignore[method-assign]

    def cost(self) -> dict[str, float]:
        """Tokens and seconds of all engines together."""
        stats = [engine.stats for engine in self.engines.values()]
        return {
            "requests": len(self.requests),
            "computed_tokens": sum(each.num_distinct_tokens for each in stats),
            "model_seconds": round(sum(each.seconds for each in stats), 2),
        }


def reconcile(arguments: list[str]) -> Watch:
    """One run of the main job, watched."""
    from reconcile.cli import main as run

    watch = Watch()
    with watch.watching(), contextlib.redirect_stdout(sys.stderr):
        if code := run(arguments):
            sys.exit(f"the run ended with exit code {code}")
    return watch


def in_one_call(requests: list[Any]) -> dict[str, float]:
    """The same requests in one call of an engine that holds nothing."""
    from llm.models import load_model
    from llm.scoring.engine import ScoringEngine

    engine = ScoringEngine(load_model(REF, dtype="float32", device="cpu")[0], retain_bytes=0)
    engine.score(requests[:4])
    engine = ScoringEngine(engine.model, retain_bytes=0)
    engine.score(requests)
    return {"distinct_tokens": engine.stats.num_distinct_tokens, "model_seconds": round(engine.stats.seconds, 2)}


def main() -> None:
    """Parse the command line, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="mmlu", choices=("mmlu", "arc_easy"))
    parser.add_argument("--limit", type=int, default=4)
    parser.add_argument("--data", default="../shared/data")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        arguments = [given.task, "--data", given.data, "--limit", str(given.limit)]
        first = reconcile([*arguments, "--out", f"{folder}/one"])
        second = reconcile([*arguments, "--out", f"{folder}/two"])
    report = {"run": first.cost(), "one_call": in_one_call(list(first.requests)), "second_run": second.cost()}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
