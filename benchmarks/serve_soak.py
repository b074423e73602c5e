"""Soak of the completions server: thousands of calls, some malformed, some abandoned, each answer held to its solo one.

    python -m benchmarks.serve_soak [--model REF] [--requests 2000] [--concurrency 16] [--seconds 900]

A server process is started on the loopback. A pool of distinct well-formed calls is answered one at a time first; then
calls drawn from it go out concurrently, one in ten malformed and one in ten abandoned by its client. Prints one JSON
object; exit code 0 if nothing crashed, every answer equals its solo value and memory has not grown past 1.2 times its
size at 200 requests.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

ALLOWED_GROWTH = 1.2
FIRST_READING = 200
SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Question: what is water?\nAnswer:",
    "In 1969 three astronauts flew to the Moon, and two of them walked there.",
    "Café, naïve, 東京: not every character is one byte.",
    "A. B. C. D.",
)
MALFORMED: tuple[bytes, ...] = (
    b"{",
    b"[]",
    b'{"prompt": 5}',
    b'{"prompt": []}',
    b'{"prompt": [999999999]}',
    b'{"prompt": "a", "max_tokens": -1}',
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "logprobs": 99}',
    b'{"prompt": "a", "stream": true}',
    b'{"prompt": "a", "model": "someone-elses"}',
    b'{"prompt": "a", "no_such_field": 1}',
    b'{"prompt": "' + b"a b " * 20000 + b'"}',
    b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
)


@dataclass(kw_only=True)
class Tally:
    """What came back."""

    statuses: Counter[int] = field(default_factory=Counter)
    num_equal: int = 0
    num_cancelled: int = 0
    num_done: int = 0
    faults: list[str] = field(default_factory=list)
    rss_first: int = 0


def pool(rng: random.Random, size: int) -> list[dict[str, Any]]:
    """Distinct well-formed calls of every kind the server answers."""
    calls: list[dict[str, Any]] = []
    for number in range(size):
        prompt = " ".join(rng.choices(SENTENCES, k=rng.randint(1, 4)))
        kinds: tuple[dict[str, Any], ...] = (
            {"prompt": prompt, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1},
            {"prompt": prompt, "max_tokens": 0, "prompt_logprobs": rng.randint(0, 5)},
            {"prompt": [prompt, rng.choice(SENTENCES)], "max_tokens": 0, "echo": True, "logprobs": 3},
            {"prompt": prompt, "max_tokens": rng.randint(1, 24), "temperature": 0, "stop": ["."]},
            {"prompt": prompt, "max_tokens": rng.randint(1, 24), "seed": number, "top_p": 0.9, "n": 2, "logprobs": 2},
            {"prompt": [rng.randrange(250) for _ in range(rng.randint(2, 60))], "max_tokens": 4, "seed": number},
        )
        calls.append(kinds[number % len(kinds)])
    return calls


async def post(port: int, body: bytes, *, leave_after: float | None = None) -> tuple[int, Any]:
    """(status, decoded body) of a call; (0, None) where the client leaves `leave_after` seconds after sending it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = "POST /v1/completions HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\nconnection: close\r\n"
        writer.write(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        if leave_after is not None:
            await asyncio.sleep(leave_after)
            return 0, None
        answer = await reader.read()
    finally:
        writer.close()
    top, _, content = answer.partition(b"\r\n\r\n")
    return int(top.split(None, 2)[1]), json.loads(content)


async def one(port: int, rng: random.Random, calls: list[dict[str, Any]], solo: list[Any], tally: Tally) -> None:
    """Send one call of a drawn kind and hold its answer to what it should be."""
    kind = rng.random()
    if kind < 0.1:
        status, answer = await post(port, rng.choice(MALFORMED))
        if not 400 <= status < 500 or set(answer.get("error", ())) != {"message", "type", "param", "code"}:
            tally.faults.append(f"a malformed call was answered {status}: {json.dumps(answer)[:200]}")
        tally.statuses[status] += 1
        return
    number = rng.randrange(len(calls))
    body = json.dumps(calls[number]).encode()
    if kind < 0.2:
        await post(port, body, leave_after=rng.random() * 0.1)
        tally.num_cancelled += 1
        return
    status, answer = await post(port, body)
    tally.statuses[status] += 1
    if status == 200 and answer["choices"] == solo[number]:
        tally.num_equal += 1
    else:
        tally.faults.append(f"call {number} was answered {status}, unlike its solo run: {json.dumps(answer)[:200]}")


async def soak(port: int, pid: int, options: argparse.Namespace) -> tuple[Tally, int]:
    """The tally, and the server's memory afterwards in bytes."""
    rng = random.Random(options.seed)
    calls = pool(rng, options.pool)
    solo = [(await post(port, json.dumps(call).encode()))[1]["choices"] for call in calls]
    tally, left = Tally(), iter(range(options.requests))

    async def client(number: int) -> None:
        own = random.Random(options.seed * 1000 + number)
        for _ in left:
            await one(port, own, calls, solo, tally)
            tally.num_done += 1
            if tally.num_done == min(FIRST_READING, options.requests):
                tally.rss_first = resident_bytes(pid)

    async with asyncio.timeout(options.seconds):
        async with asyncio.TaskGroup() as group:
            for number in range(options.concurrency):
                group.create_task(client(number))
    return tally, resident_bytes(pid)


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    found = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(found.stdout) * 1024


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start a server, soak it, end it; what was seen."""
    command = [sys.executable, "-m", "providers.serve", "--model", options.model, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", server.stdout.readline())
        if found is None:
            raise SystemExit("serve_soak: the server did not start")
        start = time.monotonic()
        try:
            tally, rss_last = asyncio.run(soak(int(found[1]), server.pid, options))
            crashed = server.poll() is not None
        finally:
            server.send_signal(signal.SIGINT)
    seconds = time.monotonic() - start
    growth = rss_last / tally.rss_first
    answered = sum(tally.statuses.values())
    return {
        "ok": not (crashed or tally.faults) and growth <= ALLOWED_GROWTH,
        "model": options.model,
        "requests": options.requests,
        "concurrency": options.concurrency,
        "distinct_calls": options.pool,
        "well_formed_equal_to_solo": tally.num_equal,
        "malformed_refused": answered - tally.statuses[200],
        "cancelled": tally.num_cancelled,
        "statuses": dict(sorted(tally.statuses.items())),
        "faults": tally.faults[:10],
        "num_faults": len(tally.faults),
        "crashed": crashed,
        "rss_mib_at_200": round(tally.rss_first / 2**20, 1),
        "rss_mib_after": round(rss_last / 2**20, 1),
        "rss_growth": round(growth, 4),
        "seconds": round(seconds, 1),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
    }


def main() -> int:
    """Run the soak and print its JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve_soak", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", metavar="REF")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--pool", type=int, default=60, help="distinct well-formed calls")
    parser.add_argument("--seconds", type=float, default=900.0, help="give up after this long")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        result = run(options)
    except TimeoutError:
        result = {"ok": False, "faults": [f"not done within {options.seconds:g} seconds"]}
    print(json.dumps(result, indent=2))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
