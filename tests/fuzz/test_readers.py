"""Readers of files that anyone may have written, given what nobody would write: one error type, whatever the bytes.

Hypothesis looks for what breaks them; faults found stand below as cases of their own. More time finds more:
`BRIDGE_FUZZ=100000 pytest tests/fuzz` gives each test so many examples.
"""

import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm.errors import InputError
from llm.evaluation import data
from llm.evaluation.hub_layout import open_repository, read_rows

EXAMPLES = int(os.environ.get("BRIDGE_FUZZ", "40"))
often = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="BRIDGE_FUZZ" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**30), max_value=10**30),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "A", "acc,none", "-inf", "nan", "0", "\ud800", "\0", "../x", "x" * 2000]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
)


def refused(call: Callable[[], object]) -> str | None:
    """The one sentence, None where the call accepts what it is given; any other exception fails the test."""
    said = None
    try:
        call()
    except InputError as error:
        said = str(error)
    if said is not None:
        assert "\n" not in said
        assert len(said) < 1500, said[:200]
    return said


def mutated(draw: Any, source: Any) -> Any:
    """A JSON value with one of its parts replaced, dropped or doubled."""
    whole = json.loads(json.dumps(source))
    holder: Any = {"top": whole}
    key: Any = "top"
    while isinstance(holder[key], dict | list) and holder[key] and draw(st.integers(0, 4)):
        holder = holder[key]
        key = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else list(range(len(holder)))))
    match draw(st.integers(0, 2)):
        case 0:
            holder[key] = draw(values)
        case 1:
            del holder[key]
        case _ if isinstance(holder, list):
            holder.insert(key, holder[key])
        case _:
            holder[draw(st.text(max_size=6))] = holder[key]
    return whole


def damaged(draw: Any, content: bytes, near: int) -> bytes:
    """Bytes with a few of the first `near` changed, and perhaps cut or made longer."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, min(near, len(changed)) - 1))
        changed[at] = draw(st.integers(0, 255))
    match draw(st.integers(0, 5)):
        case 0:
            del changed[draw(st.integers(0, len(changed))) :]
        case 1:
            changed += bytes(draw(st.integers(1, 300)))
    return bytes(changed)


# data


ARC_ROW = {
    "id": "q",
    "question": "Which is hot?",
    "choices": {"text": ["ice", "fire", "snow"], "label": ["A", "B", "C"]},
    "answerKey": "B",
}
CARD = "---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n  - split: test\n    path: test.jsonl\n---\n"


def arc_folder(root: Path, rows: bytes, card: bytes = CARD.encode()) -> Path:
    folder = root / "allenai" / "ai2_arc"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_bytes(card)
    (folder / "test.jsonl").write_bytes(rows)
    return root


@often
@given(source=st.data())
def test_rows(tmp_path_factory: pytest.TempPathFactory, source: st.DataObject) -> None:
    row = mutated(source.draw, ARC_ROW)
    root = arc_folder(tmp_path_factory.getbasetemp() / "rows", json.dumps(row).encode())
    if refused(lambda: data.load_items("arc_easy", str(root))) is None:
        (item,) = data.load_items("arc_easy", str(root))
        assert item.choices[item.gold]
        "".join([item.question, *item.choices]).encode()


@often
@given(source=st.data())
def test_bytes_of_rows(tmp_path_factory: pytest.TempPathFactory, source: st.DataObject) -> None:
    content = damaged(source.draw, json.dumps(ARC_ROW).encode() * 3, 200)
    refused(lambda: data.load_items("arc_easy", str(arc_folder(tmp_path_factory.getbasetemp() / "bytes", content))))


@often
@given(source=st.data())
def test_cards(tmp_path_factory: pytest.TempPathFactory, source: st.DataObject) -> None:
    import yaml  # type: ignore[import-untyped]

    header = yaml.safe_load(CARD.split("---")[1])
    if source.draw(st.booleans()):
        card = f"---\n{json.dumps(mutated(source.draw, header))}\n---\n".encode("utf-8", "surrogatepass")
    else:
        card = damaged(source.draw, CARD.encode(), len(CARD))
    root = arc_folder(tmp_path_factory.getbasetemp() / "cards", json.dumps(ARC_ROW).encode(), card)
    refused(lambda: data.load_items("arc_easy", str(root)))


@often
@given(source=st.data())
def test_parquet_bytes(tmp_path_factory: pytest.TempPathFactory, source: st.DataObject) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path_factory.getbasetemp() / "whole.parquet"
    if not path.exists():
        parquet.write_table(pyarrow.Table.from_pylist([ARC_ROW] * 5), path)
    content = bytearray(path.read_bytes())
    for _ in range(source.draw(st.integers(1, 6))):
        content[source.draw(st.integers(0, len(content) - 1))] = source.draw(st.integers(0, 255))
    spoiled = path.with_name("spoiled.parquet")
    spoiled.write_bytes(content)
    refused(lambda: read_rows(spoiled))


# models


@often
@given(source=st.data())
def test_configs(source: st.DataObject) -> None:
    from llm.models.config import DecoderConfig
    from llm.models.loading import _named

    whole = {
        "model_type": source.draw(st.sampled_from(["llama", "mistral", "qwen2", "qwen3"])),
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 32},
        "sliding_window": 16,
        "use_sliding_window": True,
        "layer_types": ["sliding_attention"] * 2,
        "eos_token_id": [1, 2],
        "hidden_act": "silu",
    }  # fmt: skip
    config = mutated(source.draw, whole)
    if isinstance(config, dict):
        refused(lambda: _named(Path("config.json"), lambda: DecoderConfig.from_hf(config)))


@often
@given(source=st.data())
def test_gguf_bytes(tmp_path_factory: pytest.TempPathFactory, whole_gguf: bytes, source: st.DataObject) -> None:
    from llm.models.loading import _from_gguf

    path = tmp_path_factory.getbasetemp() / "spoiled.gguf"
    path.write_bytes(damaged(source.draw, whole_gguf, 9000))
    refused(lambda: _from_gguf(path, "float32", _cpu()))


@often
@given(source=st.data())
def test_safetensors_headers(
    tmp_path_factory: pytest.TempPathFactory, whole_checkpoint: Path, source: st.DataObject
) -> None:
    from llm.models.loading import _from_folder

    folder = tmp_path_factory.getbasetemp() / "spoiled-weights"
    if not folder.exists():
        shutil.copytree(whole_checkpoint, folder)
    content = (whole_checkpoint / "model.safetensors").read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    if source.draw(st.booleans()):
        header = json.dumps(mutated(source.draw, json.loads(content[8 : 8 + size])), allow_nan=True).encode()
        content = struct.pack("<Q", len(header)) + header + content[8 + size :]
    else:
        content = damaged(source.draw, content, size + 8)
    (folder / "model.safetensors").write_bytes(content)
    refused(lambda: _from_folder(folder, "float32", _cpu()))


@often
@given(source=st.data())
def test_tokenizer_files(
    tmp_path_factory: pytest.TempPathFactory, whole_checkpoint: Path, source: st.DataObject
) -> None:
    from llm.models.tokenizer import folder_tokenizer

    folder = tmp_path_factory.getbasetemp() / "spoiled-tokenizer"
    folder.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        whole = json.loads((whole_checkpoint / name).read_text())
        if name == "tokenizer.json":
            whole["model"]["vocab"] = dict(list(whole["model"]["vocab"].items())[:20])
        (folder / name).write_bytes(json.dumps(mutated(source.draw, whole)).encode())
    refused(lambda: folder_tokenizer(folder))


def _cpu() -> Any:
    import torch

    return torch.device("cpu")


@pytest.fixture(scope="module")
def whole_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from benchmarks.good_inputs import make_checkpoint

    return make_checkpoint(tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture(scope="module")
def whole_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from benchmarks.good_inputs import make_gguf

    return make_gguf(tmp_path_factory.mktemp("whole") / "model.gguf").read_bytes()


# logs


RESULTS: dict[str, Any] = {
    "results": {"arc_easy": {"alias": "arc_easy", "acc,none": 1.0, "acc_stderr,none": 0.1, "acc_norm,none": 0.0}},
    "group_subtasks": {"arc_easy": []},
    "configs": {"arc_easy": {"task": "arc_easy", "target_delimiter": " ", "metadata": {"protocol": {"seed": 1}}}},
    "versions": {"arc_easy": 1.0},
    "n-shot": {"arc_easy": 0},
    "n-samples": {"arc_easy": {"original": 9, "effective": 1}},
    "config": {"model": "hf", "limit": 1.0, "fewshot_seed": 1234},
    "lm_eval_version": "0.4.13",
}
SAMPLE: dict[str, Any] = {
    "doc_id": 0,
    "doc": ARC_ROW,
    "target": 1,
    "arguments": {
        f"gen_args_{number}": {"arg_0": "Question: Which is hot?\nAnswer:", "arg_1": f" {text}"}
        for number, text in enumerate(["ice", "fire", "snow"])
    },
    "resps": [[["-3.0", "False"]], [["-1.0", "True"]], [["-2.0", "False"]]],
    "filtered_resps": [["-3.0", "False"], ["-1.0", "True"], ["-2.0", "False"]],
    "filter": "none",
    "metrics": ["acc", "acc_norm"],
    "acc": 1.0,
    "acc_norm": 0.0,
    "doc_hash": "0",
    "prompt_hash": "1",
    "target_hash": "2",
}


def lm_eval_folder(folder: Path, results: bytes, samples: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "results_2024-01-01T00-00-00.json").write_bytes(results)
    (folder / "samples_arc_easy_2024-01-01T00-00-00.jsonl").write_bytes(samples)
    return folder


@often
@given(source=st.data())
def test_lm_eval_logs(tmp_path_factory: pytest.TempPathFactory, source: st.DataObject) -> None:
    from reconcile.logs import read_lm_eval_run

    results, sample = json.dumps(RESULTS).encode(), json.dumps(SAMPLE).encode()
    match source.draw(st.integers(0, 3)):
        case 0:
            results = json.dumps(mutated(source.draw, RESULTS)).encode()
        case 1:
            sample = json.dumps(mutated(source.draw, SAMPLE)).encode()
        case 2:
            results = damaged(source.draw, results, len(results))
        case _:
            sample = damaged(source.draw, sample, len(sample))
    folder = lm_eval_folder(tmp_path_factory.getbasetemp() / "lm_eval_logs", results, sample + b"\n" + sample + b"\n")
    refused(lambda: read_lm_eval_run(folder))


def test_the_log_that_is_spoiled_is_whole(tmp_path: Path) -> None:
    from reconcile.logs import read_lm_eval_run

    sample = json.dumps(SAMPLE).encode()
    run = read_lm_eval_run(lm_eval_folder(tmp_path / "log", json.dumps(RESULTS).encode(), sample))
    assert [one.logprob for one in run.samples[0].scores] == [-3.0, -1.0, -2.0]


# faults that were found


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (b'{"question": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"question": ' + b"1" * 5000 + b"}", "a number that cannot be read"),
        (json.dumps({**ARC_ROW, "question": "what is \ud800?"}).encode(), r"U\+D800, half a character"),
        (json.dumps({**ARC_ROW, "question": "x" * 5_000_000}).encode(), "5000000 characters"),
        (json.dumps({**ARC_ROW, "question": list(range(100_000))}).encode(), "must be a text"),
    ],
)
def test_rows_that_were_internal_faults(tmp_path: Path, rows: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        data.load_items("arc_easy", str(arc_folder(tmp_path, rows)))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "path", ["../../secret.jsonl", "/etc/passwd", "a/../../b.jsonl", "[[a], {b: c}]", "7", '"a\\0"']
)
def test_cards_that_lead_elsewhere(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.jsonl").write_text(json.dumps(ARC_ROW))
    card = CARD.replace("test.jsonl", path).encode()
    with pytest.raises(InputError, match="dataset card"):
        open_repository(arc_folder(tmp_path / "d", b"", card) / "allenai" / "ai2_arc")


def test_a_parquet_file_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "bomb.parquet"
    row = pyarrow.table({"x": np.zeros(8 << 20)})
    with parquet.ParquetWriter(path, row.schema, compression="zstd", use_dictionary=False) as writer:
        for _ in range(17):
            writer.write_table(row)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(InputError, match=r"unpacks to \d+ bytes"):
        read_rows(path)


def zip_part(name: bytes, packed: bytes, size: int, method: int = 8) -> bytes:
    """A zip file of one part, whose size is what the caller says."""
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 20, 0, method, 0, 33, 0, len(packed), size, len(name), 0) + name
    head = (b"PK\1\2", 20, 20, 0, method, 0, 33, 0, len(packed), size, len(name), 0, 0, 0, 0, 0, 0)
    central = struct.pack("<4sHHHHHHIIIHHHHHII", *head) + name
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, len(central), len(local) + len(packed), 0)
    return local + packed + central + end


@pytest.mark.parametrize("method", [8, 93], ids=["deflate", "zstd"])
@pytest.mark.parametrize("honest", [True, False], ids=["honest", "lying"])
def test_an_archive_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path: Path, method: int, honest: bool) -> None:
    import zlib

    from reconcile.log_files import MOST_DOCUMENT_BYTES, check_archive

    if method == 8:
        block = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = (block.compress(b" " * (1 << 24)) + block.flush(zlib.Z_FULL_FLUSH)) * 20
        packed += zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    else:
        zstandard = pytest.importorskip("zstandard")
        packer = zstandard.ZstdCompressor().compressobj()
        packed = b"".join(packer.compress(b" " * (1 << 24)) for _ in range(20)) + packer.flush()
    assert 20 << 24 > MOST_DOCUMENT_BYTES > len(packed) * 100
    path = tmp_path / "bomb.eval"
    path.write_bytes(zip_part(b"header.json", packed, 20 << 24 if honest else 1000, method))
    with pytest.raises(InputError, match=r"'header\.json', that unpacks to more than"):
        check_archive(path)


def test_whole_archives_pass(tmp_path: Path) -> None:
    from reconcile.log_files import check_archive

    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", "{}" * 1000)
        archive.writestr("samples/1.json", "x" * (4 << 20))
    check_archive(path)


@pytest.mark.parametrize("name", ["a list of", "lists in lists"])
def test_gguf_headers_that_would_fill_the_memory(tmp_path: Path, name: str) -> None:
    from llm.models.gguf_files import GGUFFile

    nested = struct.pack("<IQ", 9, 1) * 5000 + struct.pack("<IQ", 4, 0)
    long = struct.pack("<IQ", 0, 1 << 25) + bytes(1 << 25)
    path = tmp_path / "spoiled.gguf"
    key = struct.pack("<Q", 1) + b"k" + struct.pack("<I", 9)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + (long if name == "a list of" else nested))
    with pytest.raises(InputError, match=name):
        GGUFFile(path)
