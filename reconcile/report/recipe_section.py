"""The recipe in a report: what to run so that both harnesses score by one protocol."""

from collections.abc import Mapping

from reconcile.ledger import Ledger
from reconcile.recipe import recipes
from reconcile.report.facts import RunFacts
from reconcile.report.sections import Section


def recipe_section(ledger: Ledger, facts: RunFacts, names: Mapping[str, str]) -> Section:
    """The commands for either side's protocol; a run that has one protocol on both sides needs none."""
    ours, theirs = ledger.protocols["lm_eval"], ledger.protocols["inspect"]
    if ours == theirs or facts.name is not None:
        return Section(title="Recipe")
    commands: list[str] = []
    for recipe in recipes(facts, ours, theirs):
        keeper = names["inspect" if recipe.changed == "lm_eval" else "lm_eval"]
        commands += [f"# both by the protocol of {keeper}, and the proof, request by request", recipe.prove]
        commands += ["# the same by each harness's own command line", recipe.inspect]
        commands += [recipe.lm_eval] if recipe.lm_eval is not None else []
    return Section(title="Recipe", sentences=("To make the two harnesses agree, run:",), commands=tuple(commands))
