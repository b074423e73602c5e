"""What a report needs to know besides the ledger: which model, which data, which software, from where."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reconcile.numerics import Numerics
from reconcile.proof import SideProof

_BENCHMARKS = {"mmlu": "MMLU", "arc_easy": "ARC-Easy", "wikitext": "WikiText"}


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The identity of a run. `fingerprint` is None where logs do not say it; `limit` None means all items.

    `settings` are what each side's log says about its run beside the protocol, by side and name. `numerics` is what
    computing a sample of the requests another way showed. `folder` is where the run left its files, `subjects` those
    asked for (None: all). `proofs` are the runs of one protocol on both sides that `--prove` made.
    """

    task: str
    model: str
    model_fingerprint: str | None
    dtype: str | None
    logits_dtype: str | None
    data: str
    data_fingerprint: str | None
    limit: int | None
    seed: int
    shared_store: bool
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None
    name: str | None = None
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    numerics: tuple[Numerics, ...] = ()
    folder: str | None = None
    subjects: tuple[str, ...] | None = None
    proofs: tuple[SideProof, ...] = ()

    def __post_init__(self) -> None:
        lines = (one if isinstance(one, Numerics) else Numerics(**one) for one in self.numerics)  # as read from a file
        object.__setattr__(self, "numerics", tuple(lines))
        object.__setattr__(self, "subjects", None if self.subjects is None else tuple(self.subjects))
        object.__setattr__(self, "proofs", tuple(SideProof.read(one) for one in self.proofs))

    @property
    def benchmark(self) -> str:
        """The benchmark as a report may call it: the shipped sample never goes by the data set's bare name.

        `name` stands where it is given: logs say a task's name, not whose data it had.
        """
        if self.name is not None:
            return self.name
        name = _BENCHMARKS.get(self.task, self.task)
        return f"{name}-format sample" if self.data == "sample" else name
