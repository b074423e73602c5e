"""Runs for report tests: benchmark-sized ones with realistic texts, hostile ones; and the schema over all documents."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from reconcile.choices import build_table, mark_natively
from reconcile.coverage import estimate
from reconcile.report.facts import RunFacts
from reconcile.report.records import Recorded
from reconcile.runs import ChoiceScore, Harness, HarnessRun, ItemKey, Protocol, SampleRecord, Status

LM_EVAL = Protocol(template="lm-eval", num_fewshot=5, normalisation="none", tie_break="first")
INSPECT = Protocol(template="inspect", num_fewshot=5, normalisation="token", tie_break="random")

_WORDS = (
    "energy",
    "of",
    "market",
    "the",
    "contract",
    "patient",
    "which",
    "pressure",
    "because",
    "law",
    "protein",
    "theory",
)

Question = tuple[str, str, tuple[str, ...], int]
"""Subject, question, choices, the right one."""


@pytest.fixture(scope="session", autouse=True)
def every_document_is_valid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Holds every reconcile.json that the tests of this folder leave to the published schema."""
    yield
    from jsonschema import Draft202012Validator

    from reconcile.report.schema import document_schema

    validator = Draft202012Validator(document_schema())
    wrong = []
    for path in sorted(tmp_path_factory.getbasetemp().rglob("reconcile.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue  # made unreadable by a test on purpose
        if isinstance(document, dict) and "schema_version" in document:
            wrong += [f"{path}: {error.json_path}: {error.message[:200]}" for error in validator.iter_errors(document)]
    assert not wrong, "\n".join(wrong)


def words(rng: random.Random, number: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(number))


def questions_of(num_items: int, num_subjects: int, *, seed: int = 0) -> list[Question]:
    """Questions as long as MMLU's, spread over sub-tasks."""
    rng = random.Random(seed)
    return [
        (
            f"subject_{place * num_subjects // num_items:02d}_of_a_long_name",
            f"{place}: {words(rng, rng.randint(15, 60))}?",
            tuple(words(rng, rng.randint(3, 10)) for _ in range(4)),
            rng.randrange(4),
        )
        for place in range(num_items)
    ]


def harness_run(harness: Harness, questions: list[Question], protocol: Protocol, *, seed: int = 0) -> HarnessRun:
    """A finished run over the questions with drawn logprobs, credited as its protocol credits them."""
    rng = random.Random(f"{harness} {seed}")
    shots = {subject: few_shot(subject, protocol, seed) for subject, *_ in questions}
    samples = tuple(
        sample(place, question, protocol, shots[question[0]], rng) for place, question in enumerate(questions)
    )
    marks = mark_natively(build_table(samples), protocol)
    samples = tuple(
        replace(one, credit=credit, pick=None if pick < 0 else pick)
        for one, credit, pick in zip(samples, marks.fractions(), marks.picks.tolist(), strict=True)
    )
    run = HarnessRun(harness=harness, task="mmlu", headline="acc", protocol=protocol, samples=samples)
    value = float(estimate(run))
    return replace(run, reported={"acc": value}, stderr=0.01, notes=(f"a note of {harness}",))


def few_shot(subject: str, protocol: Protocol, seed: int) -> str:
    rng = random.Random(f"{subject} {seed}")
    block = [(words(rng, 35), [words(rng, 6) for _ in range(4)], rng.randrange(4)) for _ in range(protocol.num_fewshot)]
    return "".join(rendered(text, choices, protocol) + f" {'ABCD'[gold]}\n\n" for text, choices, gold in block)


def rendered(question: str, choices: list[str] | tuple[str, ...], protocol: Protocol) -> str:
    mark = "." if protocol.template == "lm-eval" else ")"
    lines = "\n".join(f"{chr(65 + place)}{mark} {text}" for place, text in enumerate(choices))
    if protocol.template == "lm-eval":
        return f"{question.strip()}\n{lines}\nAnswer:"
    return f"Answer the following multiple choice question.\n\n{question.strip()}\n\n{lines}\n\nANSWER:"


def sample(place: int, question: Question, protocol: Protocol, shots: str, rng: random.Random) -> SampleRecord:
    subject, text, choices, gold = question
    digest = hashlib.sha256("\x1f".join((subject, text, *choices)).encode("utf-8", "surrogatepass")).hexdigest()
    return SampleRecord(
        key=ItemKey(digest=digest),
        subject=subject,
        sample_id=str(place),
        question=text,
        choices=choices,
        gold=gold,
        prompt=shots + rendered(text, choices, protocol),
        continuations=tuple(f" {chr(65 + index)}" for index in range(len(choices))),
        scores=tuple(
            ChoiceScore(
                logprob=-rng.random() * 8 - 0.01,
                num_chars=1,
                num_bytes=1,
                num_tokens=1 + rng.randrange(2),
                request_digest=f"{rng.getrandbits(64):016x}",
            )
            for _ in choices
        ),
        credit=None,
        pick=None,
        status=Status.SCORED,
    )


def recorded_of(questions: list[Question], *, seed: int = 0, **facts: object) -> Recorded:
    about = {
        "task": "mmlu",
        "model": "a/model_of-tests",
        "model_fingerprint": "f" * 32,
        "dtype": "float32",
        "logits_dtype": "float32",
        "data": "sample",
        "data_fingerprint": "d" * 64,
        "limit": None,
        "seed": 0,
        "shared_store": True,
        "versions": {"python": "3.11", "torch": "2"},
        "command": "python -m reconcile mmlu",
    }
    return Recorded(
        facts=RunFacts(**{**about, **facts}),  # type: ignore[arg-type]
        lm_eval=harness_run("lm_eval", questions, LM_EVAL, seed=seed),
        inspect=harness_run("inspect", questions, INSPECT, seed=seed),
    )


@pytest.fixture(scope="session")
def make_recorded() -> Callable[..., Recorded]:
    """`make_recorded(questions, seed=…, **facts)`: two runs over the questions, with facts around them."""
    return recorded_of


@pytest.fixture(scope="session")
def make_questions() -> Callable[..., list[Question]]:
    """`make_questions(num_items, num_subjects)`."""
    return questions_of


@pytest.fixture
def hostile_questions() -> list[Question]:
    """Texts that try to be something else: markup, script, direction marks, NUL, emoji, ten thousand characters."""
    script = "<script>document.title='owned';window.owned=1</script>"
    attack = '</script><script>window.owned=1</script><img src=x onerror="window.owned=1"><!-- <![CDATA['
    return [
        ("<b>bold</b>", f"What is {script}?", ("</pre>", '"><svg onload=window.owned=1>', "{{ 7*7 }}", "${7*7}"), 0),
        ("sub|task`x`", attack, ("a\x00b", "\u202egnp.exe", "👩‍👩‍👧‍👦 🏳️‍🌈", "\ud800"), 1),
        ("sub|task`x`", "x" * 10_000, ("y " * 5_000, "\u2067rtl\u2069", "عربي עברית", "\u2028line\u2029"), 2),
        (
            "=cmd()",
            "@team look at #1 [here](https://example.com) ![i](https://example.com/i.png)",
            ("a", "b", "c", "d"),
            3,
        ),
        ("\\end{table}", "\x1b[31mred\x1b[0m \r\n\t tab", ("$x$ & % # _ ^ ~ \\", "`code`", "*b*", "--"), 0),
        ("'\"&amp;", "&lt;script&gt;window.owned=1&lt;/script&gt;", ("&", "<", ">", "'"), 1),
    ]
