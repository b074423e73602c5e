"""The lenient reader: what an answer that Inspect's parser did not find plainly names."""

import pytest

from reconcile.readout import named_choice

CHOICES = ("inclined plane", "lever", "pulley", "wheel and axle")


@pytest.mark.parametrize(
    ("answer", "index"),
    [
        ("D) wheel and axle", 3),
        ("B", 1),
        ("(B)", 1),
        ("**C**", 2),
        ("The answer is A", 0),
        ("Answer: (c)", 2),
        ("The correct answer is: D.", 3),
        ("the answer is a.", 0),
        ("The answer is B because levers turn", 1),
        ("The answer is **A**", 0),
        ("The answer is a pulley.", 2),
        ("The correct answer is a lever", 1),
        ("Answer: A pulley", 2),
        ("Answer: I think it is a lever", 1),
        ("It is a wheel and axle.", 3),
        ("Inclined Plane", 0),
        ("A lever or a pulley", None),
        ("", None),
        ("I don't know", None),
        ("ANSWER: A\nANSWER: B", None),
        ("E) none of these", None),
        ("cleverness", None),
    ],
)
def test_plainly_named_choices(answer, index):
    assert named_choice(answer, CHOICES) == index
