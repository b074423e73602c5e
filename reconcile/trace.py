"""The token-level trace that stands beside an lm-eval run: what was scored for each pair of texts."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reconcile.log_values import pair_digest


@contextmanager
def trace_file(path: Path) -> Iterator[Any]:
    """A trace that keeps, for each pair of texts, what `DocReader` reads: digest, token count, cuts.

    A page scored in several windows is one line: its tokens and nats are summed, its windows counted.
    """
    lines: dict[str, dict[str, Any]] = {}

    def trace(traced: Any) -> None:
        name = pair_digest(traced.context, traced.continuation)
        scored = len(traced.request.continuation_ids)
        if traced.kind == "loglikelihood":
            lines[name] = {
                "pair": name,
                "request": traced.request.digest,
                "num_tokens": scored,
                "num_truncated": traced.num_truncated,
                "split": traced.split,
            }
            return
        line = lines.setdefault(
            name, {"pair": name, "index": traced.index, "num_tokens": 0, "num_windows": 0, "requests": []}
        )
        if line["index"] != traced.index:  # a copy of a page that was traced already
            return
        line["num_tokens"] += scored
        line["num_windows"] += 1
        line["requests"].append(traced.request.digest)

    yield trace
    with path.open("w", encoding="utf-8") as file:
        for line in lines.values():
            file.write(json.dumps(line) + "\n")
