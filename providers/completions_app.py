"""The HTTP side of the completions server: routes, limits, errors in the API's shape. No arithmetic on scores.

A call is admitted, read, checked and answered by a `Completer`; at most `concurrency` are at work and `queue` wait. A
client that goes away takes its work with it.
"""

import asyncio
import json
import sys
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llm.errors import InputError
from providers.api_errors import ApiError
from providers.completer import Completer, Completion
from providers.completions_format import TokenNames, choice_body, usage_body
from providers.completions_requests import CompletionRequest, parse_flag, parse_ids, parse_text

T = TypeVar("T")

LARGE_ANSWER = 10_000
"""Tokens beyond which an answer is written in a thread of its own."""
Handler = Callable[[Request, dict[str, Any]], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server takes on; times are seconds, `timeout` for all of a call, `body_timeout` for reading it."""

    max_body_bytes: int = 4 << 20
    concurrency: int = 64
    queue: int = 1024
    timeout: float = 600.0
    body_timeout: float = 30.0


class Gate:
    """Lets `concurrency` calls work while `queue` wait; more are turned away."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._num_admitted = 0
        self.slot = asyncio.Semaphore(limits.concurrency)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """For the length of a call; ApiError 429 where the queue is full."""
        if self._num_admitted >= self._limits.concurrency + self._limits.queue:
            raise ApiError(
                429,
                f"{self._limits.concurrency} calls are at work and {self._limits.queue} wait: try again later",
                kind="rate_limit_error",
                code="queue_full",
            )
        self._num_admitted += 1
        try:
            yield
        finally:
            self._num_admitted -= 1


class CompletionsApp:
    """The routes over one decoder. `names` are what a call may call the model, the first is shown."""

    def __init__(self, completer: Completer, *, names: tuple[str, ...], limits: Limits) -> None:
        self._completer = completer
        self._names = names
        self._limits = limits
        self._gate = Gate(limits)
        self._tokens = TokenNames(completer.tokenizer)
        self._created = int(time.time())
        self._fingerprint = getattr(completer.decoder.model, "fingerprint", None)

    def asgi(self) -> Starlette:
        """The application for an ASGI server."""
        routes = [
            Route("/v1/completions", self._post(self._complete), methods=["POST"]),
            Route("/v1/models", self._get(self._models)),
            Route("/v1/models/{name:path}", self._get(self._model)),
            Route("/tokenize", self._post(self._tokenize), methods=["POST"]),
            Route("/detokenize", self._post(self._detokenize), methods=["POST"]),
            Route("/tokenizer_info", self._get(self._tokenizer_info)),
            Route("/health", self._get(lambda _: {"status": "ok"})),
        ]
        handlers: dict[Any, Any] = {HTTPException: _http_error}
        return Starlette(routes=routes, exception_handlers=handlers)

    # -- what is served ------------------------------------------------------------------------------------------

    async def _complete(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        asked = CompletionRequest.parse(body)
        self._check_model(asked.model)
        async with self._gate.slot:
            completions = await self._completer.complete(asked)
        return await _written(self._completion_body, asked, completions, size=num_tokens(completions))

    def _completion_body(self, asked: CompletionRequest, completions: list[Completion]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._names[0],
            "system_fingerprint": self._fingerprint,
            "choices": [choice_body(self._tokens, asked, *numbered) for numbered in enumerate(completions)],
            "usage": usage_body(completions, asked.n),
        }

    async def _tokenize(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        self._check_model(body.get("model"))
        text = parse_text(body, "prompt")
        special = parse_flag(body, "add_special_tokens", default=True)
        ids = (await self._completer.encode([text], special=special))[0]
        named = parse_flag(body, "return_token_strs", default=False)
        return {
            "count": len(ids),
            "max_model_len": self._completer.max_length,
            "tokens": ids,
            "token_strs": self._tokens.joined(ids) if named else None,
        }

    async def _detokenize(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        self._check_model(body.get("model"))
        return {"prompt": await self._completer.decode(parse_ids(body, "tokens"))}

    def _models(self, request: Request) -> dict[str, Any]:
        return {"object": "list", "data": [self._model_card()]}

    def _model(self, request: Request) -> dict[str, Any]:
        self._check_model(request.path_params["name"])
        return self._model_card()

    def _model_card(self) -> dict[str, Any]:
        return {
            "id": self._names[0],
            "object": "model",
            "created": self._created,
            "owned_by": "harness-bridge",
            "max_model_len": self._completer.max_length,
        }

    def _tokenizer_info(self, request: Request) -> dict[str, Any]:
        tokenizer = self._completer.tokenizer
        special = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        return special | {"chat_template": tokenizer.chat_template, "model_max_length": self._completer.max_length}

    def _check_model(self, name: Any) -> None:
        if name is not None and name not in self._names:
            raise ApiError(
                404,
                f"the model {str(name)[:100]!r} is not served here: this is {self._names[0]!r}",
                param="model",
                code="model_not_found",
            )

    # -- how it is served ----------------------------------------------------------------------------------------

    def _get(self, answer: Callable[[Request], dict[str, Any]]) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def respond(request: Request) -> Response:
            try:
                return JSONResponse(answer(request))
            except ApiError as error:
                return _error_response(error)

        return respond

    def _post(self, handle: Handler) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def respond(request: Request) -> Response:
            try:
                with self._gate.admitted():
                    body = await read_json(request, self._limits)
                    answer = await _while_connected(request, handle(request, body), self._limits.timeout)
                    size = answer.get("usage", {}).get("total_tokens", 0)
                    return await _written(JSONResponse, answer, size=size)
            except ClientDisconnect:
                return Response(status_code=499)
            except ApiError as error:
                return _error_response(error)
            except InputError as error:
                return _error_response(ApiError(400, str(error)))
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                reason = f"internal fault ({type(error).__name__}): the server's own output says more"
                return _error_response(ApiError(500, reason, kind="server_error", code="internal_fault"))

        return respond


def num_tokens(completions: list[Completion]) -> int:
    """Tokens that an answer may list."""
    return sum(len(done.prompt_ids) + len(done.generation.token_ids if done.generation else ()) for done in completions)


async def _written(write: Callable[..., T], *arguments: Any, size: int) -> T:
    """What `write` makes, in a thread where the answer is large: it would hold up every other call. (Small ones are
    quicker here, and threads that come and go keep memory in pieces.)
    """
    if size <= LARGE_ANSWER:
        return write(*arguments)
    return await anyio.to_thread.run_sync(write, *arguments)


async def read_json(request: Request, limits: Limits) -> dict[str, Any]:
    """The JSON object in a request's body; ApiError where it is too large, too slow or no such object."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(400, f"the content type is {kind[:60]!r}: send application/json")
    try:
        async with asyncio.timeout(limits.body_timeout):
            raw = await _read(request, limits.max_body_bytes)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {limits.body_timeout:g} seconds") from None
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise ApiError(400, f"the body is not JSON: {reason[:200]}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the body is a JSON {type(body).__name__}: send an object", code="invalid_json")
    return body


async def _read(request: Request, most: int) -> bytes:
    too_large = ApiError(413, f"the body is larger than {most} bytes: send smaller calls", code="body_too_large")
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > most:
        raise too_large
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


async def _while_connected(request: Request, answer: Awaitable[T], timeout: float) -> T:
    """The answer, unless the client leaves (ClientDisconnect) or it takes too long (ApiError 503): both cancel it."""
    work = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if gone.done():
            raise ClientDisconnect
        raise ApiError(
            503,
            f"no answer within {timeout:g} seconds: ask for less, or try again later",
            kind="server_error",
            code="timeout",
        )
    finally:
        work.cancel()
        gone.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _error_response(error: ApiError) -> Response:
    headers = {"retry-after": "1"} if error.status in (429, 503) else None
    return JSONResponse(error.as_body(), status_code=error.status, headers=headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    """What Starlette itself refuses: a path or a method that is not served."""
    reason = f"{request.method} {request.url.path} is not served here ({error.detail})"
    return _error_response(ApiError(error.status_code, reason))
