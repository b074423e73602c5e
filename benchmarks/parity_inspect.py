"""This project's Inspect provider beside Inspect's own `hf` provider: prompts, texts, log-probabilities."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

MAX_TOKENS, TOP = 16, 3


def chats() -> list[list[Any]]:
    """Conversations that templates and providers treat differently: system texts, turns, parts, repeats, thoughts."""
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageUser,
        ContentReasoning,
        ContentText,
    )

    user = ChatMessageUser(content="Which is a liquid?\nA) water\nB) stone")
    parts = ChatMessageUser(content=[ContentText(text="One part."), ContentText(text=" Another {x}. ")])
    thought = ChatMessageAssistant(content=[ContentReasoning(reasoning="Hm. Wet."), ContentText(text="Water.")])
    return [
        [user],
        [ChatMessageSystem(content="Be brief."), user],
        [ChatMessageSystem(content=" "), user, ChatMessageAssistant(content="Water."), ChatMessageUser(content="Why?")],
        [parts],
        [user, ChatMessageUser(content="And which is not?")],
        [user, parts],
        [user, thought, ChatMessageUser(content="naïve café → 水")],
    ]


def chat_rows(model: Any, tokenizer: Any, stock: Any) -> Iterator[tuple[str, list[float], list[float], int]]:
    """(what, our numbers, the peer's, answers that differ) of our provider beside `stock`."""
    from inspect_ai.model import get_model

    from llm.scoring.plain import make_scorer
    from providers.inspect_decoder import forget_loaded, register_loaded

    asked = chats()
    name = register_loaded("parity", model=model, tokenizer=tokenizer, scorer=make_scorer(model))
    try:
        ours = get_model(name, memoize=False)
        prompts = [(ours.api.render(tokenizer, chat), stock.api.hf_chat(_collapsed(stock, chat), [])) for chat in asked]
        none = [0.0] * len(asked)
        yield "chat prompts", none, none, sum(a != b for a, b in prompts)
        pairs = asyncio.run(_answers(ours, stock, asked))
    finally:
        forget_loaded("parity")
    yield "chat texts", none, none, sum(a.completion != b.completion for a, b in pairs)
    entries = [entry for mine, theirs in pairs for entry in token_pairs(tokenizer, mine, theirs)]
    yield "chat logprobs", [a for a, _, _ in entries], [b for _, b, _ in entries], sum(not e[2] for e in entries)


def _collapsed(stock: Any, chat: Sequence[Any]) -> list[Any]:
    """What Inspect hands the provider of the messages: consecutive ones joined as it asks for."""
    from inspect_ai.model._model import collapse_consecutive_messages_for_api

    return collapse_consecutive_messages_for_api(list(chat), stock.api)


async def _answers(ours: Any, stock: Any, asked: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Every chat answered by both; the peer in batches of one, since padding on its left would move its numbers."""
    from inspect_ai.model import GenerateConfig

    config = GenerateConfig(max_tokens=MAX_TOKENS, logprobs=True, top_logprobs=TOP)
    alone = config.merge(GenerateConfig(max_connections=1))
    mine = asyncio.gather(*(ours.generate(chat, config=config) for chat in asked))
    theirs = asyncio.gather(*(stock.api.generate(_collapsed(stock, chat), [], "none", alone) for chat in asked))
    return list(zip(await mine, await theirs, strict=True))


def token_pairs(tokenizer: Any, mine: Any, theirs: Any) -> Iterator[tuple[float, float, bool]]:
    """Log-probabilities of chosen tokens and of their alternatives on both sides, and whether the tokens are the same.

    The peer names tokens by the vocabulary's own spelling, ours by their text.
    """
    ours, stock = mine.choices[0].logprobs.content, theirs.choices[0].logprobs.content
    if len(ours) != len(stock):
        yield 0.0, 0.0, False
    for a, b in zip(ours, stock, strict=False):
        for entry, other in [(a, b), *zip(a.top_logprobs, b.top_logprobs, strict=True)]:
            same = entry.token == tokenizer.convert_tokens_to_string([other.token])
            yield entry.logprob, float(other.logprob), same
