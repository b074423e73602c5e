"""Tiny random checkpoints of each architecture, as transformers itself makes and saves them, for holding code to code.

Weights are drawn wide enough that no tensor can go unnoticed: norms and biases are random too. The tokenizer is a real
byte-level BPE with a chat template, trained on the sample data.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONTEXT, WINDOW = 128, 24
_VOCABULARY = 600
_SIZES = {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 4}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A transformers family (`FAMILYConfig`) with the settings that make its twin; `adapted` ones
    enter through `hf:`, `adds_bos` gives the tokenizer one of its own.
    """

    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    adapted: bool = False
    adds_bos: bool = False

    def ref(self, folder: Path) -> str:
        """The model reference of its checkpoint in `folder`."""
        return f"hf:{folder}" if self.adapted else str(folder)


_GROUPED = {**_SIZES, "num_key_value_heads": 2}
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(family="Llama", settings=_GROUPED),
    "llama rope llama3": Architecture(
        family="Llama",
        settings={**_GROUPED, "rope_parameters": {**_LLAMA3, "original_max_position_embeddings": 64}},
        adds_bos=True,
    ),
    "llama rope linear": Architecture(
        family="Llama",
        settings={**_GROUPED, "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    ),
    "mistral": Architecture(family="Mistral", settings={**_GROUPED, "sliding_window": WINDOW}, adds_bos=True),
    "qwen2": Architecture(family="Qwen2", settings={**_GROUPED, "tie_word_embeddings": True}),
    "qwen3": Architecture(family="Qwen3", settings={**_GROUPED, "head_dim": 24}),
    "gpt2": Architecture(
        family="GPT2", settings={"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": CONTEXT}, adapted=True
    ),
    "gpt_neox": Architecture(family="GPTNeoX", settings=_SIZES, adapted=True),
    "gemma3": Architecture(
        family="Gemma3Text",
        settings={
            **_GROUPED,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
        adapted=True,
        adds_bos=True,
    ),
    "olmo2": Architecture(family="Olmo2", settings=_GROUPED, adapted=True),
    "gemma2": Architecture(
        family="Gemma2",
        settings={**_GROUPED, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": WINDOW},
        adapted=True,
        adds_bos=True,
    ),
    "bloom": Architecture(family="Bloom", settings={"hidden_size": 64, "n_layer": 3, "n_head": 4}, adapted=True),
}


def make_twin(architecture: Architecture, folder: Path) -> None:
    """Write the architecture's tiny checkpoint and tokenizer into `folder`; the same bits each time."""
    import torch
    import transformers

    tokenizer = _tokenizer(adds_bos=architecture.adds_bos)
    config_class = getattr(transformers, f"{architecture.family}Config")
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
    context = {} if "n_positions" in architecture.settings else {"max_position_embeddings": CONTEXT}
    torch.manual_seed(0)
    config = config_class(vocab_size=len(tokenizer), **ends, **context, **architecture.settings)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "ln_" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(*, adds_bos: bool) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        _corpus(), trainers.BpeTrainer(vocab_size=_VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    )
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=special[0], eos_token=special[2], chat_template=CHAT_TEMPLATE
    )


def _corpus() -> Iterator[str]:
    from llm.evaluation.data import load_items

    for item in load_items("arc_easy", "sample"):
        yield item.question
        yield from (f"Answer: {choice}" for choice in item.choices)
