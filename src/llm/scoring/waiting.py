"""Awaiting a future of another thread, under asyncio or trio (anyio runs on either)."""

import asyncio
import contextlib
import importlib
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


async def wait_for(future: "Future[T]") -> T:
    """The future's result. If the caller is cancelled, the future is too."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return await _wait_in_trio(future)
    return await asyncio.wrap_future(future)


async def _wait_in_trio(future: "Future[T]") -> T:
    trio: Any = importlib.import_module("trio")
    done = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def wake(_: "Future[T]") -> None:
        with contextlib.suppress(trio.RunFinishedError):  # nobody is left to be woken
            token.run_sync_soon(done.set)

    future.add_done_callback(wake)
    try:
        await done.wait()
    except BaseException:
        future.cancel()
        raise
    return future.result()
