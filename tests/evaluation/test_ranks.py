"""Several processes under torchrun: the same scores as one, item by item."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from llm.evaluation.harness.adapter import build_task_dict, evaluate
from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
from llm.models import load_model


def run(checkpoint: str) -> list | None:
    """Items and sums of both kinds of task, None on any rank but the first."""
    lm = LlamaLmEvalLM(*load_model(checkpoint, dtype="float32", device="cpu"))
    tasks = [build_task_dict("arc_easy", tie_break="last"), build_task_dict("wikitext")]
    results = evaluate(lm, tasks, limit=3, bootstrap_iters=0)
    if results is None:
        return None
    samples = sorted(results["samples"]["arc_easy"], key=lambda sample: sample["doc_id"])
    kept = [[sample["doc_id"], sample["filtered_resps"], sample["acc"]] for sample in samples]
    pages = results["results"]["wikitext"]
    return [kept, lm.world_size, pages["word_perplexity,none"], pages["sample_len"]]


def test_two_processes_give_the_scores_of_one(tiny_checkpoint: Path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*command, __file__, str(tiny_checkpoint)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    items, size, perplexity, num_pages = json.loads(done.stdout.strip().splitlines()[-1])
    alone = json.loads(json.dumps(run(str(tiny_checkpoint))))
    assert (alone[1], size) == (1, 2)
    assert items == alone[0]
    assert [doc_id for doc_id, _, _ in items] == [0, 1, 2]
    assert perplexity == pytest.approx(alone[2], rel=1e-12)
    assert num_pages == alone[3] == 3


if __name__ == "__main__":
    found = run(sys.argv[1])
    if found is not None:
        print(json.dumps(found), flush=True)
