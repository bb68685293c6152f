"""Chains of real and generated models: how many, what is in them, and that they compute the same."""

from __future__ import annotations

from onekernel.fusion.rules import normal_form
from onekernel.fusion.search import find_chains
from onekernel.graph.onnx_reader import load, read
from onnx_models import chain_errors, piper, recognition


def test_piper_has_36_chains_and_none_is_left() -> None:
    path, inputs = piper()
    proto = load(path)
    search = find_chains(normal_form(read(proto, inputs)))
    assert (len(search.chains), search.left) == (36, ())
    assert sum("gelu" in chain.name for chain in search.chains) == 24
    assert {chain.layout for chain in search.chains} == {"columns"}
    assert max(chain_errors(proto, inputs, search.chains)) < 1e-5


def test_recognition_has_5_chains() -> None:
    path, inputs = recognition()
    proto = load(path)
    search = find_chains(normal_form(read(proto, inputs)))
    assert (len(search.chains), search.left) == (5, ())
    assert {chain.layout for chain in search.chains} == {"rows"}
    assert max(chain_errors(proto, inputs, search.chains)) < 1e-5
