"""Frames of speech in one launch: the kernel against the interpreter, and that against the reference engine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import speech_checkpoint
from benchmarks import frames, frames_parity, launches
from decoders import CAPACITY, SPEECH, rounded
from onekernel.device.emulated import EmulatedDevice, Order
from onekernel.errors import InvalidInput
from onekernel.jit import Kernel
from onekernel.megakernel.check import faults
from onekernel.megakernel.decoder import SpeechShape, speech_decoder
from onekernel.megakernel.generate import kernel_request
from onekernel.megakernel.interpret import Interpreter, State, rotations
from onekernel.megakernel.layout import Layout, Schedule
from onekernel.megakernel.program import When
from onekernel.megakernel.schedule import schedule_for
from onekernel.speech.config import read_speech
from onekernel.speech.lm.frames import FrameKernel
from onekernel.speech.lm.launches import FrameLaunches
from onekernel.speech.lm.model import LanguageModel, begin
from onekernel.speech.lm.program import ProgramWeights, speech_shape
from onekernel.speech.lm.sampling import by_counter, choose, penalise, suppress
from onekernel.speech.request import Sampling

SCHEDULE, SEED = Schedule(8, slots=4), 7
GREEDY = Sampling(do_sample=False, sub_do_sample=False)


class Speech:
    """The program of a checkpoint, its weights, and its kernel on the emulated device."""

    def __init__(self, config: Any, tensors: Any) -> None:
        self.tensors, self.shape, self.weights = tensors, speech_shape(config), ProgramWeights(config, tensors)
        self.program = speech_decoder(self.shape, near=4)

    def array(self, name: str, index: tuple[int, ...]) -> Any:
        """Return weights, or the table of a place, for the interpreter."""
        tables = {"code_table": self.weights.table, "sub_table": self.weights.sub_table}
        found = tables[name](index[0]) if name in tables else self.weights(name, index)
        return found.double().numpy()

    def steps(self, asked: Sampling, arch: str = "sm_90", **machine: Any) -> Any:
        """Begin a request to the launches of the program."""
        layout = Layout(self.program, replace(SCHEDULE, slots=0))
        frames = FrameLaunches(layout, EmulatedDevice(arch, **machine), self.shape, CAPACITY)
        frames.load(self.weights, self.weights.table, self.weights.sub_table)
        return frames.request(asked, SEED)

    def request(self, asked: Sampling, **machine: Any) -> Any:
        """Begin a request."""
        layout = Layout(self.program, SCHEDULE)
        kernel = Kernel(kernel_request(layout, "sm_90"), EmulatedDevice(**machine))
        frames = FrameKernel(kernel, layout, self.shape, CAPACITY)
        frames.load(self.weights, self.weights.table, self.weights.sub_table)
        return frames.request(asked, SEED)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function from a size to the reference model and the same for the program."""
    root = tmp_path_factory.mktemp("checkpoints")

    @cache
    def of(size: str) -> tuple[LanguageModel, Speech]:
        folder = speech_checkpoint.write(root / size, "custom_voice", size)
        tensors, config = load_file(folder / "model.safetensors"), read_speech(folder)
        wide = {name: tensor.float() for name, tensor in tensors.items()}
        return LanguageModel(config, wide), Speech(config, tensors)

    return of


def rows(model: Speech, prompt: int, text: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Make a prompt and text of random rows."""
    random, hidden = torch.Generator().manual_seed(5), model.shape.talker.hidden
    return torch.randn(prompt, hidden, generator=random), torch.randn(text, hidden, generator=random)


def interpret(model: Speech, asked: Sampling, prompt: Any, text: Any, frames: int, keep: Any) -> State:
    """Run the program with float64 arrays, drawing as the reference does."""

    def draw(logits: Any, frame: int, place: int, before: list[int]) -> int:
        scores = torch.from_numpy(np.array(logits)).float()
        race = lambda probabilities: by_counter(SEED)(probabilities, frame, place)  # noqa: E731
        if place > 0:
            its = race if asked.sub_do_sample else None
            return choose(scores, its, asked.sub_temperature, asked.sub_top_k, asked.sub_top_p)
        scores = penalise(scores, set(before), asked.repetition_penalty)
        scores = suppress(scores, model.shape.codes, model.shape.end, end_allowed=frame >= 2)
        return choose(scores, race if asked.do_sample else None, asked.temperature, asked.top_k, asked.top_p)

    rotation = rotations(CAPACITY, model.shape.talker.head_dim, model.shape.talker.theta).astype(np.float64)
    arrays = cache(model.array)
    state = State(list(prompt.double().numpy()), text=list(text.double().numpy()))
    return Interpreter(model.program, arrays, rotation, keep=keep, choose=draw).run(state, len(prompt) - 1 + frames)


@pytest.mark.parametrize("asked", [GREEDY, Sampling()], ids=["greedy", "drawn"])
@pytest.mark.parametrize("size", ["0b6", "1b7"])
def test_the_interpreter_says_what_the_reference_engine_says(load: Any, size: str, asked: Sampling) -> None:
    engine, model = load(size)
    prompt, text = rows(model, 5)
    with torch.no_grad():
        generation, said = begin(engine, prompt, asked, by_counter(SEED), most_frames=4), list[list[int]]()
        while (frame := generation.next_frame()) is not None:
            said.append(frame)
            generation.advance(frame, text[min(len(said), len(text)) - 1])
    found = interpret(model, asked, prompt, text, 4, keep=lambda array: array).frames
    assert found == said
    assert len(said) == 4


@pytest.mark.parametrize(("size", "asked"), [("0b6", GREEDY), ("1b7", Sampling())], ids=["greedy", "drawn"])
def test_the_kernel_says_what_the_interpreter_says(load: Any, size: str, asked: Sampling) -> None:
    """In one launch, or frame by frame; the cache is bfloat16."""
    _, model = load(size)
    prompt, text = rows(model, 3)
    expected = interpret(model, asked, prompt, text, 3, keep=rounded).frames
    request = model.request(asked)
    assert request.say(prompt, text, 2).tolist() + request.say(None, text, 1).tolist() == expected


def test_launches_say_what_the_kernel_says(load: Any) -> None:
    """They exchange the same values and remember the same, with near positions and with far ones."""
    _, model = load("1b7")
    prompt, text = rows(model, 4)
    one, many = model.request(Sampling()), model.steps(Sampling(), order=Order.RANDOM, seed=3)
    begun = [request.say(prompt, text, 2) for request in (one, many)]
    assert torch.equal(*begun)
    for name in (exchange.name for exchange in model.program.exchanges):
        assert torch.equal(one.mailbox.exchange(name), many.mailbox.exchange(name)), name
    assert torch.equal(one.cache.view(torch.int16), many.cache.view(torch.int16))
    assert torch.equal(one.memory, many.memory)
    assert many.say(None, text, 1).tolist() == one.say(None, text, 1).tolist()


def test_a_draw_that_the_kernel_does_not_have_is_refused(load: Any) -> None:
    _, model = load("0b6")
    with pytest.raises(InvalidInput, match="bound the draw by top_k"):
        model.request(Sampling(sub_top_p=0.5))


def test_a_block_may_lag_behind_all_others(load: Any) -> None:
    _, model = load("0b6")
    prompt, text = rows(model, 2)
    first, other = model.request(Sampling()), model.request(Sampling(), order=Order.LAGGING, seed=5)
    assert torch.equal(first.say(prompt, text, 1), other.say(prompt, text, 1))
    assert torch.equal(first.mailbox.words, other.mailbox.words)


@pytest.mark.parametrize("shape", SPEECH, ids=["0.6B", "1.7B"])
def test_released_sizes_have_a_schedule_that_is_safe(shape: SpeechShape) -> None:
    program = speech_decoder(shape)
    schedule = schedule_for(program, 132, "sm_90")
    assert list(faults(Layout(program, schedule))) == []
    assert any(isinstance(item, When) for item in program.body[0].body)  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", [False, True], ids=["as it is", "one weight wrong"])
def test_the_benchmark_finds_what_is_wrong(load: Any, wrong: bool) -> None:
    """On the emulated device, for one frame; the weight is one of a norm in the middle of the talker."""
    engine, model = load("0b6")
    tensors = dict(model.tensors)
    if wrong:
        name = "talker.model.layers.1.input_layernorm.weight"
        tensors[name] = tensors[name] * 1.01
    speech = frames.prepare(engine.config, tensors, EmulatedDevice(), "float32", SCHEDULE)
    rows = list(frames_parity.parity(replace(speech, tensors=model.tensors), frames=1, prompted=2))
    assert len(rows) == 5
    assert frames.failed(rows) == wrong


def test_the_benchmark_compares_launches_with_one(load: Any) -> None:
    """On the emulated device, for one frame."""
    engine, model = load("0b6")
    one = frames.prepare(engine.config, model.tensors, EmulatedDevice(), "float32", SCHEDULE)
    rows = list(launches.parity(one, launches.beside(one, EmulatedDevice()), count=1, prompted=2))
    assert len(rows) == 4
    assert not launches.failed(rows)
