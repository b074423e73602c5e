"""What Inspect's entry point loads: the name `decoder`, and nothing that is slow to import until it is used."""

from inspect_ai._util.error import PrerequisiteError  # its only name in inspect_ai 0.3.285, which the project pins
from inspect_ai.model import ModelAPI, modelapi


@modelapi(name="decoder")
def decoder() -> type[ModelAPI]:
    """The provider class behind `decoder/<model-ref>`, imported on first use as Inspect's own providers are."""
    try:
        from providers.inspect_decoder import DecoderAPI
    except ImportError as error:
        raise PrerequisiteError(
            f"the decoder provider needs this project's own package `llm`, and the one found first on the path is "
            f"another ({error}): uninstall it or put this project first on PYTHONPATH"
        ) from error
    return DecoderAPI
