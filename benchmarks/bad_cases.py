"""The cases of `benchmarks.bad_inputs`: each spoils whole inputs in one way and says the command line that meets it."""

import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A copy of the whole inputs that a case may spoil."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def weights(self) -> Path:
        return self.model / "model.safetensors"

    @property
    def gguf(self) -> Path:
        return self.folder / "model.gguf"

    @property
    def arc(self) -> Path:
        return self.folder / "data" / "allenai" / "ai2_arc"

    @property
    def results(self) -> Path:
        (found,) = (self.folder / "run" / "lm_eval").rglob("results_*.json")
        return found

    @property
    def samples(self) -> Path:
        (found,) = (self.folder / "run" / "lm_eval").rglob("samples_*.jsonl")
        return found

    @property
    def log(self) -> Path:
        (found,) = (self.folder / "run" / "inspect").glob("*.eval")
        return found

    # the command lines

    def with_model(self, model: Path | str | None = None) -> list[str]:
        return ["arc_easy", "--limit", "1", "--model", str(model if model is not None else self.model), "--out", "out"]

    def with_data(self, task: str = "arc_easy") -> list[str]:
        return [task, "--model", str(self.model), "--data", str(self.folder / "data"), "--out", "out"]

    def with_logs(self) -> list[str]:
        return ["logs", "--lm-eval", str(self.folder / "run" / "lm_eval"), "--inspect", str(self.log), "--out", "out"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One bad input: `make` spoils a place and returns the command line."""

    name: str
    make: Callable[[Place], list[str]]


def _option(name: str, *arguments: str) -> Case:
    return Case(name=f"option: {name}", make=lambda place: list(arguments))


OPTIONS = (
    _option("no task at all"),
    _option("unknown task", "hellaswag"),
    _option("unknown option", "mmlu", "--fast"),
    _option("limit 0", "mmlu", "--limit", "0"),
    _option("limit -1", "mmlu", "--limit", "-1"),
    _option("limit 1.5", "mmlu", "--limit", "1.5"),
    _option("more shots than there are", "mmlu", "--num-fewshot", "6"),
    _option("unknown subject", "mmlu", "--subjects", "astronmy"),
    _option("no subject named", "mmlu", "--subjects", "nutrition,,nosuch"),
    _option("unknown metric", "arc_easy", "--metric", "f1"),
    _option("unknown tie-break", "arc_easy", "--inspect-tie-break", "coin"),
    _option("two normalisations at once", "arc_easy", "--metric", "acc", "--lm-eval-normalisation", "char"),
    _option(
        "generated readout of another template",
        "arc_easy",
        "--inspect-readout",
        "generate",
        "--inspect-template",
        "lm-eval",
    ),
    _option("choices' option for pages", "wikitext", "--inspect-normalisation", "char"),
    _option("a seed below 0", "arc_easy", "--seed", "-3"),
    _option("a gap that is not finite", "arc_easy", "--fail-over", "inf"),
    _option("unknown dtype", "arc_easy", "--dtype", "int4"),
    _option("unknown device", "arc_easy", "--device", "tpu"),
    _option("a model that is nowhere", "arc_easy", "--model", "nosuch"),
    _option("a Hub id without network", "arc_easy", "--model", "no/such-model"),
    _option("an empty model name", "arc_easy", "--model", ""),
    _option("model arguments without a model", "arc_easy", "--lm-eval-model-args", "a=1"),
    _option("an unknown lm-eval model", "arc_easy", "--lm-eval-model", "nosuch"),
    _option("an unknown Inspect provider", "arc_easy", "--inspect-model", "nosuch/model"),
    _option("a data folder that is nowhere", "arc_easy", "--data", "nowhere"),
    _option("one log", "logs", "--lm-eval", "nowhere"),
    _option("logs that are nowhere", "logs", "--lm-eval", "nowhere", "--inspect", "neither"),
    _option("agreement of one run", "agreement", "nowhere"),
    _option("report of nothing", "report", "nowhere"),
    _option("an unknown form", "report", "nowhere", "--format", "docx"),
    _option("diff of nothing", "diff", "nowhere", "neither"),
    _option("a size that is none", "cache", "prune", "--max-size", "plenty"),
    _option("a store that is nowhere", "cache", "verify", "--store", "nowhere.sqlite"),
)


def _out(name: str, spoil: Callable[[Path], object]) -> Case:
    def make(place: Place) -> list[str]:
        spoil(place.folder / "out")
        return ["arc_easy", "--model", str(place.model), "--limit", "1", "--out", str(place.folder / "out")]

    return Case(name=f"out: {name}", make=make)


def _own_folder(out: Path) -> None:
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")


OUTS = (
    _out("a folder with something else in it", _own_folder),
    _out("a file", lambda out: out.write_text("")),
    _out("a link", lambda out: out.symlink_to("/")),
    _out("a file where the unfinished work goes", lambda out: out.with_name("out.partial").write_text("")),
    Case(
        name="out: below a file",
        make=lambda place: ["arc_easy", "--model", str(place.model), "--out", str(place.gguf / "run")],
    ),
)


# models


def _weights(name: str, spoil: Callable[[bytes], bytes]) -> Case:
    def make(place: Place) -> list[str]:
        place.weights.write_bytes(spoil(place.weights.read_bytes()))
        return place.with_model()

    return Case(name=f"safetensors: {name}", make=make)


def _header(change: Callable[[Json], object]) -> Callable[[bytes], bytes]:
    """Rewrites the JSON header of a safetensors file."""

    def spoil(data: bytes) -> bytes:
        (size,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + size :]

    return spoil


NORM = "model.norm.weight"
SECOND = "model.layers.0.input_layernorm.weight"


def _tensors(name: str, change: Callable[[Json], object]) -> Case:
    def make(place: Place) -> list[str]:
        from safetensors.torch import load_file, save_file

        tensors = {key: value.clone() for key, value in load_file(place.weights).items()}
        change(tensors)
        save_file(tensors, place.weights)
        return place.with_model()

    return Case(name=f"safetensors: {name}", make=make)


def _set(value: float) -> Callable[[Json], object]:
    return lambda tensors: tensors[NORM].__setitem__(3, value)


def _pickled(place: Place) -> list[str]:
    place.weights.rename(place.model / "pytorch_model.bin")
    return place.with_model()


WEIGHTS = (
    _weights("cut by one byte", lambda data: data[:-1]),
    _weights("three bytes too many", lambda data: data + b"\0\0\0"),
    _weights("empty", lambda data: b""),
    _weights("a header of 2^60 bytes", lambda data: struct.pack("<Q", 1 << 60) + data[8:]),
    _weights("a header that ends past the file", lambda data: struct.pack("<Q", len(data)) + data[8:]),
    _weights("a header that is not JSON", lambda data: data[:8] + b"#" + data[9:]),
    _weights("an offset outside the file", _header(lambda h: h[NORM].update(data_offsets=[0, 1 << 40]))),
    _weights("two tensors in one place", _header(lambda h: h[NORM].update(data_offsets=h[SECOND]["data_offsets"]))),
    _weights("a shape that does not fit its bytes", _header(lambda h: h[NORM].update(shape=[31]))),
    _weights("an unknown dtype", _header(lambda h: h[NORM].update(dtype="F7"))),
    _weights("a zip file by that name", lambda data: b"PK\3\4" + data[4:]),
    _tensors("NaN", _set(float("nan"))),
    _tensors("infinity", _set(float("inf"))),
    _tensors("a tensor missing", lambda tensors: tensors.pop(NORM)),
    _tensors("a tensor too many", lambda tensors: tensors.update({"model.extra.weight": tensors[NORM].clone()})),
    _tensors("another shape", lambda tensors: tensors.update({NORM: tensors[NORM][:31].clone()})),
    _tensors("whole numbers", lambda tensors: tensors.update({NORM: tensors[NORM].int()})),
    Case(name="safetensors: a pickle instead", make=_pickled),
)


def _config(name: str, **changes: Any) -> Case:
    def make(place: Place) -> list[str]:
        path = place.model / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        return place.with_model()

    return Case(name=f"config.json: {name}", make=make)


def _file(
    kind: str,
    name: str,
    file: Callable[[Place], Path],
    content: Callable[[], str | bytes],
    command: Callable[[Place], list[str]],
) -> Case:
    def make(place: Place) -> list[str]:
        data = content()
        file(place).write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
        return command(place)

    return Case(name=f"{kind}: {name}", make=make)


def _config_text(name: str, content: Callable[[], str | bytes]) -> Case:
    return _file(
        "config.json", name, lambda place: place.model / "config.json", content, lambda place: place.with_model()
    )


CONFIGS = (
    _config_text("not JSON", lambda: "{"),
    _config_text("not an object", lambda: "[]"),
    _config_text("not text", lambda: b"\xff\xfe\0"),
    _config_text("nested 100,000 deep", lambda: "[" * 100_000),
    _config("no vocab_size", vocab_size=None),
    _config("a billion layers", num_hidden_layers=10**9),
    _config("a trillion columns", hidden_size=10**12, head_dim=8),
    _config("layers by name", num_hidden_layers="two"),
    _config("heads that do not divide", num_attention_heads=5),
    _config("an infinite theta", rope_theta=1e999),
    _config("an epsilon of 0", rms_norm_eps=0),
    _config("another architecture", model_type="gpt2", architectures=["GPT2LMHeadModel"]),
    _config("weights said to be quantised", quantization_config={"quant_method": "gptq"}),
    _config("an odd head", head_dim=7),
    _config("rope scaling without a factor", rope_scaling={"rope_type": "linear"}),
    _config("an end token that is a word", eos_token_id="end"),
)


def _tokenizer(name: str, content: Callable[[], str | bytes]) -> Case:
    where = lambda place: place.model / "tokenizer.json"  # noqa: E731
    return _file("tokenizer.json", name, where, content, lambda place: place.with_model())


def _foreign_tokenizer(place: Place) -> list[str]:
    path = place.model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary.update({f"word{number}": len(vocabulary) + number for number in range(500)})
    path.write_text(json.dumps(tokenizer))
    return place.with_model()


def _remote_code(place: Place) -> list[str]:
    (place.model / "config.json").write_text(
        json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.M"}})
    )
    (place.model / "evil.py").write_text("import pathlib\npathlib.Path('owned').write_text('owned')\n")
    return place.with_model(f"hf:{place.model}")


def _no_tokenizer(place: Place) -> list[str]:
    for path in place.model.glob("tokenizer*"):
        path.unlink()
    return place.with_model()


TOKENIZERS = (
    _tokenizer("not JSON", lambda: "{"),
    _tokenizer("an unknown model", lambda: '{"version": "1.0", "model": {"type": "Magic"}}'),
    Case(name="tokenizer.json: of another model", make=_foreign_tokenizer),
    Case(name="tokenizer.json: none", make=_no_tokenizer),
    Case(name="checkpoint: code of its own behind hf:", make=_remote_code),
)


# GGUF


def _gguf(name: str, spoil: Callable[[bytes], bytes]) -> Case:
    def make(place: Place) -> list[str]:
        place.gguf.write_bytes(spoil(place.gguf.read_bytes()))
        return place.with_model(place.gguf)

    return Case(name=f"GGUF: {name}", make=make)


def _replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def spoil(data: bytes) -> bytes:
        assert old in data
        assert len(old) == len(new)
        return data.replace(old, new, 1)

    return spoil


def _tensor_field(name: str, change: Callable[[list[int]], object]) -> Callable[[bytes], bytes]:
    """Changes a matrix's [columns, rows, type, offset] in the list of tensors."""

    def spoil(data: bytes) -> bytes:
        key = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", 2)
        at = data.index(key) + len(key)
        values = list(struct.unpack_from("<QQIQ", data, at))
        change(values)
        return data[:at] + struct.pack("<QQIQ", *values) + data[at + 28 :]

    return spoil


def _nested(data: bytes) -> bytes:
    """One key whose value is lists in lists."""
    inner = struct.pack("<IQ", 9, 1) * 5000 + struct.pack("<IQ", 4, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 9) + inner


GATE = "blk.0.ffn_gate.weight"
GGUFS = (
    _gguf("empty", lambda data: b""),
    _gguf("another magic", lambda data: b"GGML" + data[4:]),
    _gguf("version 9", lambda data: data[:4] + struct.pack("<I", 9) + data[8:]),
    _gguf("cut by one byte", lambda data: data[:-1]),
    _gguf("cut in its header", lambda data: data[:300]),
    _gguf("64 bytes too many", lambda data: data + bytes(64)),
    _gguf("2^62 tensors", lambda data: data[:8] + struct.pack("<Q", 1 << 62) + data[16:]),
    _gguf("2^62 keys", lambda data: data[:16] + struct.pack("<Q", 1 << 62) + data[24:]),
    _gguf("a key of 2^62 bytes", lambda data: data[:24] + struct.pack("<Q", 1 << 62) + data[32:]),
    _gguf("lists nested 5,000 deep", _nested),
    _gguf("an offset outside the file", _tensor_field(GATE, lambda v: v.__setitem__(3, 1 << 50))),
    _gguf("two tensors in one place", _tensor_field(GATE, lambda v: v.__setitem__(3, v[3] - 64))),
    _gguf("a matrix of 2^40 rows", _tensor_field(GATE, lambda v: v.__setitem__(1, 1 << 40))),
    _gguf("another shape", _tensor_field(GATE, lambda v: v.__setitem__(slice(0, 2), v[1::-1]))),
    _gguf("an unknown type", _tensor_field(GATE, lambda v: v.__setitem__(2, 99))),
    _gguf("a tensor by another name", _replaced(GATE.encode(), b"blk.7.ffn_gate.weight")),
    _gguf("a tensor listed twice", _replaced(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight")),
    _gguf("another architecture", _replaced(b"llama", b"mamba")),
    _gguf("an unknown pre-tokenizer", _replaced(b"gpt-2", b"gpt-9")),
    Case(name="GGUF: weights in a file of another kind", make=lambda place: place.with_model(place.weights)),
)


# data


def _arc(name: str, **changes: Any) -> Case:
    """Spoils the third question."""

    def make(place: Place) -> list[str]:
        (path,) = place.arc.rglob("test*.jsonl")
        lines = path.read_text(encoding="utf-8").split("\n")
        record = {**json.loads(lines[2]), **changes}
        lines[2] = json.dumps({key: value for key, value in record.items() if value is not None})
        path.write_text("\n".join(lines))
        return place.with_data()

    return Case(name=f"question: {name}", make=make)


def _lines(name: str, spoil: Callable[[bytes], bytes]) -> Case:
    def make(place: Place) -> list[str]:
        (path,) = place.arc.rglob("test*.jsonl")
        path.write_bytes(spoil(path.read_bytes()))
        return place.with_data()

    return Case(name=f"data file: {name}", make=make)


def _card(name: str, content: Callable[[], str | bytes]) -> Case:
    return _file("dataset card", name, lambda place: place.arc / "README.md", content, lambda place: place.with_data())


def _choices(*texts: Any) -> Json:
    return {"text": list(texts), "label": [chr(65 + number) for number in range(len(texts))]}


def _card_of(path: str) -> str:
    return (
        "---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n"
        f"  - split: test\n    path: {path}\n  - split: train\n    path: {path}\n---\n"
    )


DATA = (
    _arc("no text", question=None),
    _arc("empty", question="  "),
    _arc("a number", question=7),
    _arc("of five million characters", question="x" * 5_000_000),
    _arc("half a character", question="what is \ud800?"),
    _arc("no choices", choices=None),
    _arc("an empty list of choices", choices=_choices()),
    _arc("one choice", choices=_choices("alone"), answerKey="A"),
    _arc("an empty choice", choices=_choices("a", " ", "c"), answerKey="A"),
    _arc("identical choices", choices=_choices("same", "same", "same"), answerKey="A"),
    _arc("a choice that is a number", choices=_choices("a", 2, "c"), answerKey="A"),
    _arc("forty choices", choices=_choices(*map(str, range(40))), answerKey="A"),
    _arc("a right answer that is none of them", answerKey="Z"),
    _arc("no right answer", answerKey=None),
    _arc("labels twice", choices={"text": ["a", "b"], "label": ["A", "A"]}, answerKey="A"),
    _lines("a line that is cut", lambda data: data[: len(data) // 2]),
    _lines("a line that is a list", lambda data: b"[1, 2]\n" + data),
    _lines("not text", lambda data: b"\xff\xfe" + data),
    _lines("nested 100,000 deep", lambda data: b'{"question": ' + b"[" * 100_000),
    _lines("a number of 10,000 digits", lambda data: b'{"question": ' + b"1" * 10_000 + b"}"),
    _lines("empty", lambda data: b""),
    _card("none of its own", lambda: "# no header"),
    _card("not YAML", lambda: "---\nconfigs: [\n---\n"),
    _card("without files", lambda: "---\nconfigs:\n- config_name: ARC-Easy\n---\n"),
    _card("a file that is not there", lambda: _card_of("gone.jsonl")),
    _card("a file above its folder", lambda: _card_of("../../../run/reconcile.json")),
    _card("a file anywhere", lambda: _card_of("/etc/passwd")),
    _card("a list where a path belongs", lambda: _card_of("[[a], {b: c}]")),
    _card("a file of another kind", lambda: _card_of("README.md")),
    _card("nested 100,000 deep", lambda: "---\nconfigs: " + "[" * 100_000 + "\n---\n"),
)


# logs


def _results(name: str, change: Callable[[Json], object]) -> Case:
    def make(place: Place) -> list[str]:
        record = json.loads(place.results.read_text())
        change(record)
        place.results.write_text(json.dumps(record))
        return place.with_logs()

    return Case(name=f"lm-eval's results: {name}", make=make)


def _results_text(name: str, spoil: Callable[[bytes], bytes]) -> Case:
    def make(place: Place) -> list[str]:
        place.results.write_bytes(spoil(place.results.read_bytes()))
        return place.with_logs()

    return Case(name=f"lm-eval's results: {name}", make=make)


def _samples(name: str, spoil: Callable[[bytes], bytes]) -> Case:
    def make(place: Place) -> list[str]:
        place.samples.write_bytes(spoil(place.samples.read_bytes()))
        return place.with_logs()

    return Case(name=f"lm-eval's samples: {name}", make=make)


def _each_sample(name: str, change: Callable[[Json], object]) -> Case:
    def spoil(data: bytes) -> bytes:
        records = [json.loads(line) for line in data.splitlines()]
        for record in records:
            change(record)
        return b"".join(json.dumps(record).encode() + b"\n" for record in records)

    return _samples(name, spoil)


def _log(name: str, spoil: Callable[[Path], object]) -> Case:
    def make(place: Place) -> list[str]:
        spoil(place.log)
        return place.with_logs()

    return Case(name=f"Inspect's log: {name}", make=make)


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def _parts(change: Callable[[dict[str, bytes]], object]) -> Callable[[Path], object]:
    """Rewrites the parts of an .eval archive."""

    def spoil(path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            parts = {name: _unpacked(path, archive.getinfo(name)) for name in archive.namelist()}
        change(parts)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in parts.items():
                archive.writestr(name, data)

    return spoil


def _unpacked(path: Path, part: zipfile.ZipInfo) -> bytes:
    from reconcile.log_files import _inflated, _packed, _unzstd

    pieces = {zipfile.ZIP_STORED: _packed, zipfile.ZIP_DEFLATED: _inflated}.get(part.compress_type, _unzstd)
    return b"".join(pieces(path, part))


def _bomb(num_blocks: int, *, honest: bool) -> Callable[[Path], object]:
    """A header of `num_blocks` times 16 MiB of spaces in a few kilobytes, whose size is told truly or not."""

    def spoil(path: Path) -> None:
        block = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = block.compress(b" " * (16 << 20)) + block.flush(zlib.Z_FULL_FLUSH)
        data = packed * num_blocks + zlib.compressobj(9, zlib.DEFLATED, -15).flush()
        size = (num_blocks * (16 << 20) if honest else 1000) & 0xFFFFFFFF
        name = b"header.json"
        local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 20, 0, 8, 0, 33, 0, len(data), size, len(name), 0) + name
        central = struct.pack(
            "<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, 20, 0, 8, 0, 33, 0, len(data), size, len(name), 0, 0, 0, 0, 0, 0
        )
        end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, len(central) + len(name), len(local) + len(data), 0)
        path.write_bytes(local + data + central + name + end)

    return spoil


def _outside(parts: dict[str, bytes]) -> None:
    for name in list(parts):
        parts[f"../../../{name}"] = parts.pop(name)


def _headless(parts: dict[str, bytes]) -> None:
    for name in [name for name in parts if name == "header.json" or name.startswith("_journal/")]:
        parts.pop(name)


def _deep(parts: dict[str, bytes]) -> None:
    parts["header.json"] = b'{"version": 2, "eval": ' + b"[" * 200_000


LOGS = (
    _results_text("cut", lambda data: data[: len(data) // 2]),
    _results_text("nested 100,000 deep", lambda data: b'{"results": ' + b"[" * 100_000),
    _results_text("not text", lambda data: b"\xff" + data),
    _results("no task", lambda r: r.update(results={})),
    _results("scores that are words", lambda r: r.update(results={"arc_easy": "good"})),
    _results("groups that hold themselves", lambda r: r.update(group_subtasks={"arc_easy": ["arc_easy"]})),
    _results("another task's name", lambda r: r.update(results={"hellaswag": {"acc,none": 1.0}})),
    _samples("a line that is cut in the middle", lambda data: data[:100] + data[300:]),
    _samples("not text", lambda data: data + b"\xff\xfe\n"),
    _samples("empty", lambda data: b""),
    _samples("nested 100,000 deep", lambda data: b"[" * 100_000),
    _each_sample("no document", lambda r: r.pop("doc")),
    _each_sample("arguments that are a number", lambda r: r.update(arguments=5)),
    _each_sample("answers by name", lambda r: r.update(filtered_resps={"a": 1, "b": 2})),
    _each_sample("a probability above 1", lambda r: r.update(filtered_resps=[["0.25", "False"]] * 9)),
    _log("cut", _bytes(lambda data: data[: len(data) // 2])),
    _log("empty", _bytes(lambda data: b"")),
    _log("not a log", _bytes(lambda data: b"hello")),
    _log("without its header and its journal", _parts(_headless)),
    _log("a header nested 200,000 deep", _parts(_deep)),
    _log("a header that is a list", _parts(lambda parts: parts.update({"header.json": b"[]"}))),
    _log("parts above its folder", _parts(_outside)),
    _log("a zip bomb of 3 GiB", _bomb(192, honest=True)),
    _log("a zip bomb that says it is small", _bomb(192, honest=False)),
    Case(
        name="logs: of unlike tasks",
        make=lambda place: ["logs", "--lm-eval", str(place.folder / "data"), "--inspect", str(place.log), "--out", "o"],
    ),
)

CASES: tuple[Case, ...] = (*OPTIONS, *OUTS, *WEIGHTS, *CONFIGS, *TOKENIZERS, *GGUFS, *DATA, *LOGS)
