"""An item rendered for scoring: the text the model sees and the texts it is asked about."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """`continuations` are scored after `context`; `choice_texts` are the same without the delimiter space,
    the texts whose characters and bytes length rules count. All tuples follow the data's choice order.
    """

    context: str
    continuations: tuple[str, ...]
    choice_texts: tuple[str, ...]
