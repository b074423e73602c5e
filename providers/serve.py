"""An OpenAI-compatible completions server over the decoder: what a vLLM cluster offers both harnesses, on one machine.

    python -m providers.serve --model REF [--port 8000]
    python -m providers.serve --model REF --write-tokenizer DIR

Bound to the loopback unless told otherwise. A signal ends it once the calls at work are answered, or after a while.
Exit codes: 2 usage or input at fault, said in one sentence; 130 interrupted. This module is the command line; the calls
are answered in `completions_app`.
"""

import argparse
import importlib.util
import ipaddress
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from llm.errors import InputError
from llm.models import DEFAULT_REF, load_tokenizer, resolve_ref
from providers.inspect_arguments import DecoderArguments
from providers.inspect_sessions import LoadedDecoder, Session

if TYPE_CHECKING:
    import uvicorn

    from providers.completions_app import Limits

EXIT_USAGE, EXIT_INTERRUPTED = 2, 130

GRACE_SECONDS = 10
"""How long calls at work may go on once the server is told to end."""
IDLE_SECONDS = 75
"""How long an idle connection stays open: longer than clients keep theirs in a pool."""


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are one sentence, without the usage block."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to end, or write the tokenizer and return."""
    try:
        options = _parser().parse_args(argv)
        if options.write_tokenizer is not None:
            return write_tokenizer(options.model, options.write_tokenizer)
        return serve(options)
    except InputError as error:
        print(f"serve: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def serve(options: argparse.Namespace) -> int:
    """Load the model and answer calls until a signal ends it.

    Raises:
        InputError: the model, an option or the address cannot be used.
    """
    check_packages()
    from providers.completions_app import Limits

    resolve_ref(options.model)
    arguments = DecoderArguments(dtype=options.dtype, logits_dtype=options.logits_dtype, device=options.device)
    limits = Limits(
        max_body_bytes=options.max_body_bytes,
        concurrency=options.max_concurrency,
        queue=options.queue,
        timeout=options.timeout,
        body_timeout=min(options.timeout, Limits.body_timeout),
    )
    names = model_names(options.model, options.name)
    with bind(options.host, options.port) as listener:
        decoder = Session(options.model, arguments).load()
        server = make_server(decoder, names, limits)
        print(f"serving {names[0]} at {_url(listener)}/v1 (Ctrl-C ends)", flush=True)
        try:
            server.run(sockets=[listener])
        finally:
            decoder.service.close()
    return 0


def make_server(decoder: LoadedDecoder, names: tuple[str, ...], limits: "Limits") -> "uvicorn.Server":
    """A server that `run(sockets=[…])` starts, in any thread, and `should_exit = True` ends."""
    import uvicorn

    from providers.completer import Completer
    from providers.completions_app import CompletionsApp

    app = CompletionsApp(Completer(decoder), names=names, limits=limits).asgi()
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )


@contextmanager
def serving(decoder: LoadedDecoder, name: str, limits: "Limits | None" = None) -> Iterator[str]:
    """A server in a thread of this process, on a free port of the loopback, for as long as the context lasts; its URL.

    Raises:
        InputError: the server's packages are not installed.
    """
    check_packages()
    from providers.completions_app import Limits

    server = make_server(decoder, (name,), limits or Limits())
    with bind("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="completions-server")
        thread.start()
        try:
            yield _url(listener)
        finally:
            server.should_exit = True
            thread.join()


def write_tokenizer(ref: str, folder: Path) -> int:
    """Save the model's tokenizer in the form that transformers, and so lm-eval, loads from a folder.

    Raises:
        InputError: the folder holds other files, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already: name a folder that is new or empty")
    tokenizer = load_tokenizer(ref)
    try:
        tokenizer.save_pretrained(folder)
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror})") from error
    print(f"wrote the tokenizer of {ref} to {folder}")
    return 0


def check_packages() -> None:
    """Raises InputError with the install hint where what the server is made of is not installed."""
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"{package} is not installed: pip install 'harness-bridge[serve]'")


def model_names(ref: str, name: str | None) -> tuple[str, ...]:
    """What calls may name the model, the shown name first: the one given, else the reference's last part."""
    own = name or Path(ref).name.removesuffix(".gguf") or ref
    return tuple(dict.fromkeys((own, ref)))


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, taken before the model is loaded; port 0 picks a free one.

    Raises:
        InputError: the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"host {host!r} is not known: 127.0.0.1 serves this machine alone") from error
    if not ipaddress.ip_address(str(address[0])).is_loopback:
        print(
            f"serve: warning: {host} can be reached from other machines, and nothing here asks who calls",
            file=sys.stderr,
        )
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise InputError(f"{host} port {port} cannot be had ({error.strerror}): name another --port") from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m providers.serve", description="Serve a decoder as an OpenAI-compatible completions API."
    )
    add = parser.add_argument
    add("--model", default=DEFAULT_REF, metavar="REF", help="default: %(default)s; or a .gguf file, a folder, a Hub id")
    add("--name", help="what calls name the model (default: the last part of REF)")
    add("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    add("--logits-dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    add("--host", default="127.0.0.1", help="default: %(default)s, which only this machine reaches")
    add("--port", type=_whole(0, 65535), default=8000, help="default: %(default)s; 0 picks a free one")
    add("--max-body-bytes", type=_whole(1), default=4 << 20, metavar="N", help="of one call (default: %(default)s)")
    add(
        "--max-concurrency",
        type=_whole(1),
        default=64,
        metavar="N",
        help="calls at work at once (default: %(default)s)",
    )
    add("--queue", type=_whole(0), default=1024, metavar="N", help="calls that may wait for it (default: %(default)s)")
    add("--timeout", type=_seconds, default=600.0, metavar="S", help="seconds a call may take (default: %(default)g)")
    add(
        "--write-tokenizer",
        type=Path,
        metavar="DIR",
        help="save the model's tokenizer for lm-eval's tokenizer=DIR, and end",
    )
    return parser


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    def convert(text: str) -> int:
        allowed = f"a whole number from {least}" + ("" if most is None else f" to {most}")
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}") from None
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{value} is not {allowed}")
        return value

    return convert


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
