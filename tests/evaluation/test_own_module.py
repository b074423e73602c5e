"""The guide's example of a user's own module runs as it stands, on a few items."""

import re
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "evaluation.md"
MARK = "<!-- example: own module -->"


def example() -> str:
    found = re.search(rf"{MARK}\n```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"{GUIDE} has no python block after {MARK}"
    return found.group(1)


def test_the_guides_own_module_completes_arc_easy(capsys: pytest.CaptureFixture[str]) -> None:
    code = example()
    assert len(code.splitlines()) <= 20
    assert "limit=None" in code
    names: dict[str, object] = {}
    exec(compile(code.replace("limit=None", "limit=3"), str(GUIDE), "exec"), names)
    results = names["results"]
    assert isinstance(results, dict)
    assert results["n-samples"]["arc_easy"] == {"original": 64, "effective": 3}
    assert 0 <= results["results"]["arc_easy"]["acc,none"] <= 1
    for sample in results["samples"]["arc_easy"]:
        values = [response[0] for response in sample["filtered_resps"]]
        assert all(value < 0 for value in values)
        assert len(set(values)) == len(values)
    table = capsys.readouterr().out
    assert "| arc_easy |" in table
    assert "acc_norm" in table
