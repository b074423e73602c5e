"""Faults of an API call in the shape that OpenAI's API gives them."""

from typing import Any


class ApiError(Exception):
    """A call that is refused: an HTTP status and one sentence; `param` names the field at fault.

    `kind` and `code` are what OpenAI's API puts in `type` and `code`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind

    def as_body(self) -> dict[str, Any]:
        """The JSON object of the response."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def bad_field(name: str, value: object, allowed: str) -> ApiError:
    """The fault of a field's value: what was given and what is allowed."""
    text = repr(value)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return ApiError(400, f"{name} is {shown}: give {allowed}", param=name, code="invalid_value")
