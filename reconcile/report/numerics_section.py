"""What computing the same requests another way would have changed."""

from collections.abc import Mapping

from reconcile.report.facts import RunFacts
from reconcile.report.sections import Section, Table


def numerics_section(facts: RunFacts, names: Mapping[str, str]) -> Section:
    """A line for each side and way of computing; empty where nothing was computed again."""
    rows = tuple(
        (
            names[line.side],
            line.way,
            f"{line.num_requests}",
            f"{line.max_difference:.2g}",
            f"{line.median_difference:.2g}",
            f"{line.picks_changed} of {line.num_items}",
            f"{line.within_noise} of {line.num_predictions}",
            f"{line.within_typical} of {line.num_predictions}",
        )
        for line in facts.numerics
    )
    if not rows:
        return Section(title="Numerics")
    headers = (
        "",
        "computed again by",
        "requests",
        "largest difference, nats",
        "median",
        "picks changed",
        "predictions within the largest noise",
        "within the typical one",
    )
    sentence = (
        "The same token ids, computed another way. An item's noise is by how much the distance of two of its choices "
        "changed, in the units of the side's own score; a prediction lies within it when its best choice leads the "
        "second by no more."
    )
    table = Table(headers=headers, align="llrrrrrr", rows=rows)
    return Section(title="Numerics", sentences=(sentence,), table=table, brief=True)
