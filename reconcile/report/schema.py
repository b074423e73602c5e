"""The published JSON Schema of reconcile.json."""

import json
from importlib import resources
from typing import Any


def document_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) that every reconcile.json of this `schema_version` satisfies."""
    text = resources.files("reconcile.report").joinpath("schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
