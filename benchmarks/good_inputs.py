"""Small whole inputs of every kind, to be spoiled: a checkpoint folder, a GGUF file, a data folder and two logs.

Everything is made here from a few numbers; nothing is downloaded and no other project's file is used.
"""

import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
SPECIAL = ("<s>", "</s>")


def make_checkpoint(folder: Path) -> Path:
    """A random two-layer Llama in Hub layout with a byte-level tokenizer."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(_tensors(), folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer().save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return folder


def _tensors() -> dict[str, Any]:
    import torch

    from llm.models.checkpoints import HEAD, hub_slots
    from llm.models.config import DecoderConfig

    rng = torch.Generator().manual_seed(0)
    slots = hub_slots(DecoderConfig.from_hf(CONFIG))
    return {name: torch.randn(slot.shape, generator=rng) / 8 for name, slot in slots.items() if name != HEAD}


def _letters() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *_letters()])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def make_gguf(path: Path) -> Path:
    """The same kind of model as one GGUF file."""
    from gguf import GGUFWriter

    from llm.models.gguf_files import _LAYER_NAMES, _TOP_NAMES

    writer = GGUFWriter(path, "llama")
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = [*SPECIAL, *_letters(), "ab"]
    tokens += [f"<filler {number}>" for number in range(CONFIG["vocab_size"] - len(tokens))]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, *[1] * (len(tokens) - 2)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    theirs = {ours: name for name, ours in {**_TOP_NAMES}.items()}
    layers = {ours: name for name, ours in _LAYER_NAMES.items()}
    for name, tensor in _tensors().items():
        if name in theirs:
            writer.add_tensor(theirs[name], tensor.numpy())
        else:
            _, _, number, stem = name.removesuffix(".weight").split(".", 3)
            writer.add_tensor(f"blk.{number}.{layers[stem]}.weight", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def check_models(*models: Path) -> None:
    """Loads each: what is to be spoiled must be whole."""
    from llm.models import load_model

    for model in models:
        load_model(str(model), device="cpu")


def make_data(folder: Path) -> Path:
    """A copy of the sample data, laid out like the Hub."""
    shutil.copytree(str(resources.files("llm.evaluation").joinpath("sample_data")), folder)
    return folder


def make_run(folder: Path, checkpoint: Path) -> Path:
    """A finished run of three items: its `lm_eval` folder and its Inspect log are the logs to spoil."""
    from reconcile.cli import main

    code = main(["arc_easy", "--model", str(checkpoint), "--limit", "3", "--out", str(folder), "--quiet"])
    if code not in (0, 1):
        raise SystemExit(f"the whole inputs themselves cannot be run: exit code {code}")
    return folder
