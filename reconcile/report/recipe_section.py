"""The recipe in a report: what to run, or to set, so that both harnesses score by one protocol."""

from collections.abc import Mapping
from dataclasses import replace

from reconcile.ledger import Ledger
from reconcile.recipe import Recipe, recipes
from reconcile.report.facts import RunFacts
from reconcile.report.names import SIDES
from reconcile.report.numbers import listed
from reconcile.report.sections import Section
from reconcile.runs import Protocol

NO_COMMAND = "No command is known that makes these two runs agree: set the protocol where their engines run."

_HUB = ("cais/mmlu", "allenai/ai2_arc", "EleutherAI/wikitext_document_level")
_PARTS = ("template", "num_fewshot", "normalisation", "tie_break", "tie_atol", "readout", "chat_template")


def recipe_section(ledger: Ledger, facts: RunFacts, names: Mapping[str, str]) -> Section:
    """The commands for either side's protocol where this project's decoder answered on both sides, else what to set;
    a run that has one protocol on both sides needs none.
    """
    ours, theirs = ledger.protocols["lm_eval"], ledger.protocols["inspect"]
    if ours == theirs:
        return Section(title="Recipe")
    commands = _commands(facts, ours, theirs, names) if is_decoder(facts) else ()
    if commands:
        return Section(title="Recipe", sentences=("To make the two harnesses agree, run:",), commands=commands)
    return Section(title="Recipe", sentences=_in_words(ours, theirs, names), brief=True)


def _commands(facts: RunFacts, ours: Protocol, theirs: Protocol, names: Mapping[str, str]) -> tuple[str, ...]:
    commands: list[str] = []
    for recipe in recipes(as_asked(facts), ours, theirs):
        keeper = names["inspect" if recipe.changed == "lm_eval" else "lm_eval"]
        commands += [f"# both by the protocol of {keeper}, and the proof, request by request", recipe.prove]
        commands += own_commands(recipe, facts)
    return tuple(commands)


def as_asked(facts: RunFacts) -> RunFacts:
    """The facts with their data as `--data` takes it, where a log has the name it goes by on the Hub."""
    return replace(facts, data="hub") if facts.data in _HUB else facts


def own_commands(recipe: Recipe, facts: RunFacts) -> tuple[str, ...]:
    """Each harness's own command line; lm-eval's reads files that a run leaves and logs do not."""
    from_logs = facts.folder is None
    lm_eval = () if recipe.lm_eval is None or from_logs else (recipe.lm_eval,)
    return ("# the same by each harness's own command line", recipe.inspect, *lm_eval)


def is_decoder(facts: RunFacts) -> bool:
    """Whether nothing speaks against this project's decoder, and data that it finds, on both sides."""
    if facts.folder is not None:
        return " and " not in facts.model
    unknown = facts.name is not None and ("not named" in (facts.data, facts.model) or " and " in facts.data)
    return not unknown and all(_ran_decoder(facts.settings.get(side, {})) for side in SIDES)


def _ran_decoder(settings: Mapping[str, str]) -> bool:
    """Only the decoder's own doors log a fingerprint of its weights; a log that says nothing is not of another."""
    return not settings or "model_fingerprint" in settings


def _in_words(ours: Protocol, theirs: Protocol, names: Mapping[str, str]) -> tuple[str, ...]:
    """What either side would have to be set to."""
    parts = [name for name in (*_PARTS, *_seed(ours, theirs)) if getattr(ours, name) != getattr(theirs, name)]
    if not parts:
        return ()
    said = []
    for changed, own, goal in (("inspect", theirs, ours), ("lm_eval", ours, theirs)):
        if changed == "lm_eval" and goal.readout == "generate":
            continue
        keeper = names["lm_eval" if changed == "inspect" else "inspect"]
        settings = [f"{_plain(name)} {getattr(goal, name)} (it is {getattr(own, name)})" for name in parts]
        said.append(f"For the protocol of {keeper}, set on the side of {names[changed]}: {listed(settings)}.")
    return (NO_COMMAND, *said)


def _seed(ours: Protocol, theirs: Protocol) -> tuple[str, ...]:
    return ("seed",) if ours.tie_break == theirs.tie_break == "random" else ()


def _plain(name: str) -> str:
    return {"num_fewshot": "number of shots", "tie_atol": "closeness of a tie"}.get(name, name.replace("_", "-"))
