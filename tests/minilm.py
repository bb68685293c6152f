"""all-MiniLM-L6-v2 as an ONNX model, from its real weights, spelled as an opset 13 export spells it.

No torch: the safetensors file is read by hand and the encoder is written with onnx.helper, every LayerNorm in
nine nodes and every GELU in five.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, npt.NDArray[Any]]


def read_safetensors(path: Path) -> Arrays:
    """Read the float32 tensors: 8 bytes of length, a JSON header, then the data."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    return {
        name: np.frombuffer(content[start + row["data_offsets"][0] : start + row["data_offsets"][1]], "<f4").reshape(
            row["shape"]
        )
        for name, row in header.items()
        if row.get("dtype") == "F32"
    }


@dataclass
class Encoder:
    """Writes a BERT encoder node by node; a method returns the name of the value it wrote."""

    weights: Arrays
    config: Mapping[str, Any]
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"node_{output}", **attributes))
        return output

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.asarray(value, dtype), name)
        return name

    def weight(self, name: str, *, transposed: bool = False) -> str:
        data = self.weights[name].T.copy() if transposed else self.weights[name]
        self.constants[name] = numpy_helper.from_array(data, name)
        return name

    def linear(self, x: str, name: str) -> str:
        product = self.node("MatMul", x, self.weight(f"{name}.weight", transposed=True))
        return self.node("Add", self.weight(f"{name}.bias"), product)

    def norm(self, x: str, name: str) -> str:
        centred = self.node("Sub", x, self.node("ReduceMean", x, axes=[-1]))
        variance = self.node("ReduceMean", self.node("Pow", centred, self.constant(2.0)), axes=[-1])
        epsilon = self.constant(self.config["layer_norm_eps"])
        standard = self.node("Div", centred, self.node("Sqrt", self.node("Add", variance, epsilon)))
        scaled = self.node("Mul", standard, self.weight(f"{name}.weight"))
        return self.node("Add", scaled, self.weight(f"{name}.bias"))

    def gelu(self, x: str) -> str:
        erf = self.node("Erf", self.node("Div", x, self.constant(math.sqrt(2.0))))
        return self.node("Mul", self.node("Mul", x, self.node("Add", erf, self.constant(1.0))), self.constant(0.5))

    def heads(self, x: str, name: str, *, key: bool = False) -> str:
        count = self.config["num_attention_heads"]
        width = self.config["hidden_size"] // count
        split = self.node("Reshape", self.linear(x, name), self.constant([0, 0, count, width], np.int64))
        return self.node("Transpose", split, perm=[0, 2, 3, 1] if key else [0, 2, 1, 3])

    def attention(self, x: str, layer: str) -> str:
        width = self.config["hidden_size"] // self.config["num_attention_heads"]
        query, value = (self.heads(x, f"{layer}.attention.self.{part}") for part in ("query", "value"))
        scores = self.node("MatMul", query, self.heads(x, f"{layer}.attention.self.key", key=True))
        scaled = self.node("Div", scores, self.constant(math.sqrt(width)))
        mixed = self.node("MatMul", self.node("Softmax", scaled, axis=-1), value)
        joined = self.node("Transpose", mixed, perm=[0, 2, 1, 3])
        return self.node("Reshape", joined, self.constant([0, 0, self.config["hidden_size"]], np.int64))

    def layer(self, x: str, name: str) -> str:
        mixed = self.linear(self.attention(x, name), f"{name}.attention.output.dense")
        x = self.norm(self.node("Add", mixed, x), f"{name}.attention.output.LayerNorm")
        inner = self.gelu(self.linear(x, f"{name}.intermediate.dense"))
        outer = self.linear(inner, f"{name}.output.dense")
        return self.norm(self.node("Add", outer, x), f"{name}.output.LayerNorm")

    def embeddings(self, length: int) -> str:
        words = self.node("Gather", self.weight("embeddings.word_embeddings.weight"), "input_ids")
        places = self.constant(self.weights["embeddings.position_embeddings.weight"][:length])
        kinds = self.constant(self.weights["embeddings.token_type_embeddings.weight"][0])
        total = self.node("Add", self.node("Add", words, kinds), places)
        return self.norm(total, "embeddings.LayerNorm")


def build(folder: Path, length: int) -> onnx.ModelProto:
    """Write the encoder for `input_ids` int64[1, length]; the output is float32[1, length, 384]."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    encoder = Encoder(read_safetensors(folder / "model.safetensors"), config)
    x = encoder.embeddings(length)
    for number in range(config["num_hidden_layers"]):
        x = encoder.layer(x, f"encoder.layer.{number}")
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, length])
    hidden = helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, length, config["hidden_size"]])
    graph = helper.make_graph(encoder.nodes, "minilm", [ids], [hidden], list(encoder.constants.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)


def encode_words(folder: Path, sentence: str) -> npt.NDArray[np.int64]:
    """Look up whole words of the vocabulary between [CLS] and [SEP]. Returns int64[1, P]."""
    vocabulary = (folder / "vocab.txt").read_text("utf-8").splitlines()
    words = ["[CLS]", *sentence.split(), "[SEP]"]
    return np.asarray([[vocabulary.index(word) for word in words]], np.int64)
