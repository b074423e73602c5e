"""The `-T` arguments of the multiple-choice tasks, checked by name and turned into one record."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from llm.errors import InputError
from llm.evaluation.rules import NORMALISATIONS, TIE_BREAKS, Normalisation, TieBreak

Template = Literal["inspect", "lm-eval"]
Readout = Literal["loglikelihood", "generate"]
LIKELIHOOD_LABEL = "Inspect (this project's likelihood task)"
GENERATE_LABEL = "Inspect (multiple_choice and choice, as its published tasks)"


@dataclass(frozen=True, kw_only=True)
class ChoiceOptions:
    """All that decides a multiple-choice task's number besides model and items.

    Raises InputError naming the argument, the value given and what is allowed.
    """

    template: Template
    num_fewshot: int
    normalisation: Normalisation
    tie_break: TieBreak
    readout: Readout
    seed: int
    tie_atol: float

    def __post_init__(self) -> None:
        check_member("template", self.template, get_args(Template))
        check_member("normalisation", self.normalisation, NORMALISATIONS)
        check_member("tie_break", self.tie_break, TIE_BREAKS)
        check_member("readout", self.readout, get_args(Readout))
        check_whole("num_fewshot", self.num_fewshot, least=0)
        check_whole("seed", self.seed, least=None)
        number = isinstance(self.tie_atol, int | float) and not isinstance(self.tie_atol, bool)
        if not number or not 0 <= self.tie_atol < float("inf"):
            raise InputError(f"tie_atol is {self.tie_atol!r}: give a finite number of nats, 0 or more")
        if self.readout == "generate" and self.template != "inspect":
            raise InputError("readout 'generate' reads answers to Inspect's own template: leave template at 'inspect'")

    @property
    def label(self) -> str:
        """Who defined the protocol: Inspect ships no likelihood multiple-choice."""
        return LIKELIHOOD_LABEL if self.readout == "loglikelihood" else GENERATE_LABEL

    def as_metadata(self) -> dict[str, Any]:
        """The protocol as a log records it."""
        return asdict(self) | {"chat_template": self.readout == "generate", "defined_by": self.label}


def subject_list(subjects: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """`-T subjects=…` as names: Inspect passes one as a text, several as a list; None means all."""
    if subjects is None or subjects in ("", "all"):
        return None
    parts = subjects.split(",") if isinstance(subjects, str) else [str(name) for name in subjects]
    return tuple(name.strip() for name in parts if name.strip()) or None


def check_member(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise InputError unless `value` is one of the allowed words."""
    if value not in allowed:
        raise InputError(f"{name} is {value!r}: use one of {', '.join(allowed)}")


def check_whole(name: str, value: object, *, least: int | None) -> None:
    """Raise InputError unless `value` is a whole number, and at least `least` where given."""
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise InputError(f"{name} is {value!r}: give a whole number{f', {least} or more' if least is not None else ''}")
