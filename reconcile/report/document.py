"""reconcile.json: the ledger as one strict JSON document (no NaN, no Infinity), exact fractions beside the floats."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reconcile.ledger import SCHEMA_VERSION, Cell, Component, Ledger
from reconcile.page_ledger import PageLedger
from reconcile.proof import Proof, SideProof
from reconcile.report.facts import RunFacts
from reconcile.runs import Protocol

if TYPE_CHECKING:
    from reconcile.agreement import Agreement
    from reconcile.chance import Chance
    from reconcile.luck import Spread
    from reconcile.page_statistics import PageStatistics
    from reconcile.statistics import Statistics


def ledger_document(
    ledger: Ledger,
    facts: RunFacts,
    *,
    proof: Proof | None = None,
    statistics: "Statistics | None" = None,
    agreement: "Agreement | None" = None,
) -> dict[str, Any]:
    """The document of a multiple-choice ledger; what was not measured is null or empty.

    `agreement` is the request-by-request proof of two runs of one protocol, `proofs` those of the runs that were made
    to prove either side's; `harness_agreement` is how far the two harnesses agree about the items under whatever
    protocols they had.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        **identity(facts),
        "metric": _plain_metric(ledger.metric["lm_eval"]),
        "reported": dict(ledger.reported),
        "gap": float(ledger.gap),
        "components": {component.name: component.value for component in ledger.components},
        "num_items": dict(ledger.num_items),
        "protocols": {side: protocol_block(protocol) for side, protocol in ledger.protocols.items()},
        "settings": {side: dict(found) for side, found in facts.settings.items()},
        "accounted": ledger.accounted,
        "items_unexplained": [_unexplained(item) for item in ledger.unexplained],
        "faults": list(ledger.faults),
        "reported_metrics": dict(ledger.metric),
        "reported_raw": {side: dict(values) for side, values in ledger.reported_raw.items()},
        "stderr": dict(ledger.stderr),
        "harnesses": dict(ledger.harnesses),
        "exact": _exact(ledger),
        "gross": {component.name: _gross(component) for component in ledger.components},
        "coverage": {name: float(value) for name, value in ledger.coverage_lines.items()},
        "common_scores": {side: float(value) for side, value in ledger.common_scores.items()},
        "cells": [_cell(cell) for cell in ledger.cells],
        "one_at_a_time": [asdict(single) for single in ledger.one_at_a_time],
        "interactions": [asdict(interaction) for interaction in ledger.interactions],
        "bound": {
            **asdict(ledger.bound),
            "holds_from_lm_eval": ledger.bound.holds_from_lm_eval,
            "holds_from_inspect": ledger.bound.holds_from_inspect,
        },
        "closing_sets": {end: [list(names) for names in sets] for end, sets in ledger.closing_sets.items()},
        "readout_split": None if ledger.readout_split is None else asdict(ledger.readout_split),
        "tie_break_spread": _spread(ledger.tie_break_spread),
        "intervals": _intervals(statistics),
        "chance": None if statistics is None else {side: _chance(c) for side, c in statistics.chance.items()},
        "statistics": None if statistics is None else _statistics(statistics),
        "agreement": _proof(proof),
        "proofs": [_side_proof(proof) for proof in facts.proofs],
        "numerics": [asdict(line) for line in facts.numerics],
        "harness_agreement": None if agreement is None else asdict(agreement),
        "notes": list(ledger.notes),
    }


def page_document(ledger: PageLedger, facts: RunFacts, *, statistics: "PageStatistics | None" = None) -> dict[str, Any]:
    """The document of a perplexity ledger: logarithms in `reported`, the one-unit account in `bits_per_byte`, whose
    intervals `intervals` holds.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        **identity(facts),
        "metric": "ln_perplexity",
        "reported": dict(ledger.reported),
        "gap": float(ledger.gap),
        "components": {component.name: component.value for component in ledger.components},
        "bits_per_byte": asdict(ledger.bits_per_byte),
        "num_items": dict(ledger.num_items),
        "protocols": {side: protocol_block(protocol) for side, protocol in ledger.protocols.items()},
        "settings": {side: dict(found) for side, found in facts.settings.items()},
        "accounted": ledger.accounted,
        "items_unexplained": [],
        "faults": list(ledger.faults),
        "reported_metrics": dict(ledger.metric),
        "units": dict(ledger.units),
        "reported_raw": {side: dict(values) for side, values in ledger.reported_raw.items()},
        "perplexities": {side: asdict(values) for side, values in ledger.perplexities.items()},
        "harnesses": dict(ledger.harnesses),
        "exact": {
            "gap": ledger.gap,
            "components": {component.name: component.exact for component in ledger.components},
        },
        "gross": {component.name: _gross(component) for component in ledger.components},
        "coverage": {name: float(value) for name, value in ledger.coverage_lines.items()},
        "cells": [{**asdict(cell), "nats": float(cell.nats), "off_path": cell.off_path} for cell in ledger.cells],
        "one_at_a_time": [],
        "interactions": [],
        "intervals": _page_intervals(statistics),
        "statistics": None if statistics is None else _page_statistics(statistics),
        "chance": None,
        "agreement": None,
        "notes": list(ledger.notes),
    }


def identity(facts: RunFacts) -> dict[str, Any]:
    """The keys that say what was run."""
    return {
        "task": facts.task,
        "model": {
            "ref": facts.model,
            "fingerprint": facts.model_fingerprint,
            "dtype": facts.dtype,
            "logits_dtype": facts.logits_dtype,
        },
        "data": {"source": facts.data, "fingerprint": facts.data_fingerprint, "benchmark": facts.benchmark},
        "limit": facts.limit,
        "seed": facts.seed,
        "shared_store": facts.shared_store,
        "versions": dict(facts.versions),
        "command": facts.command,
    }


def protocol_block(protocol: Protocol) -> dict[str, Any]:
    """A protocol, part by part."""
    return asdict(protocol)


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Writes strict JSON: what is not finite becomes null, fractions become "p/q"."""
    text = json.dumps(strict(document), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def strict(value: Any) -> Any:
    """`value` with JSON's own types alone."""
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): strict(inner) for name, inner in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [strict(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return strict(asdict(value))
    if hasattr(value, "item"):  # NumPy scalars
        return strict(value.item())
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def _plain_metric(key: str) -> str:
    return key.partition(",")[0]


def _exact(ledger: Ledger) -> dict[str, Any]:
    return {
        "gap": ledger.gap,
        "components": {component.name: component.exact for component in ledger.components},
        "coverage": dict(ledger.coverage_lines),
        "common_scores": dict(ledger.common_scores),
    }


def _gross(component: Component) -> dict[str, Any]:
    return {
        "net": component.value,
        "up": float(component.gross_up),
        "down": float(component.gross_down),
        "items_up": component.items_up,
        "items_down": component.items_down,
        "picks_changed": component.picks_changed,
        "status": component.status,
        "reason": component.reason,
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "name": cell.name,
        "switched": list(cell.switched),
        "template": cell.template,
        "scores": cell.scores,
        "normalisation": cell.normalisation,
        "tie_break": cell.tie_break,
        "readout": cell.readout,
        "score": float(cell.exact),
        "exact": cell.exact,
        "num_items": cell.num_items,
        "native": cell.native,
        "off_path": cell.off_path,
    }


def _proof(proof: Proof | None) -> dict[str, Any] | None:
    return None if proof is None else {**asdict(proof), "holds": proof.holds}


def _side_proof(one: SideProof) -> dict[str, Any]:
    return {"side": one.side, "folder": one.folder, "holds": one.holds, "agreement": _proof(one.proof)}


def _unexplained(item: Any) -> dict[str, Any]:
    return asdict(item)


def _spread(spread: "Spread | None") -> dict[str, Any] | None:
    if spread is None:
        return None
    exact = {"expectation": spread.expectation, "variance": spread.variance}
    return {"expectation": float(spread.expectation), "deviation": spread.deviation, "exact": exact}


def _intervals(statistics: "Statistics | None") -> dict[str, Any]:
    if statistics is None:
        return {}
    estimates = {"gap": statistics.gap, **statistics.components}
    return {
        name: {"interval": estimate.interval, "clustered": estimate.clustered, "test": estimate.test}
        for name, estimate in estimates.items()
    }


def _page_intervals(statistics: "PageStatistics | None") -> dict[str, Any]:
    if statistics is None:
        return {}
    return {
        f"bits_per_byte_{name}": {"interval": interval, "clustered": None, "test": None}
        for name, interval in statistics.intervals.items()
    }


def _page_statistics(statistics: "PageStatistics") -> dict[str, Any]:
    return {name: value for name, value in asdict(statistics).items() if name != "intervals"}


def _chance(chance: "Chance") -> dict[str, Any]:
    return {
        "score": float(chance.score),
        "level": float(chance.level),
        "distance": float(chance.distance),
        "distinguishable": chance.distinguishable(),
        "p_value": chance.test.p_value,
        "picks": chance.picks,
        "gold": chance.gold,
        "no_pick": chance.no_pick,
        "probability_mass": chance.probability_mass,
    }


def _statistics(statistics: "Statistics") -> dict[str, Any]:
    """Everything that was measured but what has a key of its own."""
    apart = ("chance", "components", "gap")
    return {name: value for name, value in asdict(statistics).items() if name not in apart}
