"""Input faults in the form that Inspect's command line prints as one sentence, without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

from inspect_ai._util.error import PrerequisiteError  # no public name in inspect_ai 0.3.285, which the project pins
from rich.markup import escape

from llm.errors import InputError

__all__ = ["InspectInputError", "PrerequisiteError", "input_errors"]


class InspectInputError(InputError, PrerequisiteError):
    """An `InputError` raised inside Inspect. `message` is what Inspect prints, through rich: brackets are escaped."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = escape(message)


@contextmanager
def input_errors() -> Iterator[None]:
    """Turn an `InputError` raised within into one that Inspect prints as a sentence."""
    try:
        yield
    except InspectInputError:
        raise
    except InputError as error:
        raise InspectInputError(str(error)) from None
