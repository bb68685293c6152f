"""Talker, predictor and sampling against the official package, whose answers on tiny checkpoints are golden files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import speech_checkpoint
from onekernel.speech.config import read_speech
from onekernel.speech.lm.model import Generation, LanguageModel, begin
from onekernel.speech.lm.philox import exponentials, philox
from onekernel.speech.lm.sampling import Draw, by_counter, by_generator, penalise, suppress, warp
from onekernel.speech.request import Sampling

GOLDEN = sorted((Path(__file__).parent / "golden" / "speech").glob("lm_*.npz"))
GREEDY = Sampling(do_sample=False, sub_do_sample=False)
FRAMES, SEED = 24, 5  # of the golden files


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    """Compute nothing for a training that does not come."""
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function from the name of a golden file to its model; each is made once."""
    root = tmp_path_factory.mktemp("checkpoints")

    @cache
    def load(kind: str, size: str, dtype: torch.dtype) -> LanguageModel:
        folder = speech_checkpoint.write(root / f"{kind}_{size}", kind, size)
        tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
        return LanguageModel(read_speech(folder), tensors)

    def of(name: str) -> LanguageModel:
        size = "0b6" if "0b6" in name else "1b7"
        dtype = torch.bfloat16 if name.endswith("_bf16") else torch.float32
        return load(name.removeprefix("lm_").partition(f"_{size}")[0], size, dtype)

    return of


def speak(model: LanguageModel, asked: Any, sampling: Sampling, draw: Draw) -> tuple[list[list[int]], list[Any], str]:
    """Say up to FRAMES frames; returns codes, the talker's logits before each, and why it ended."""
    generation, trailing, pad = start(model, asked, sampling, draw)
    codes, logits = list[list[int]](), [generation.logits.numpy()]
    while (frame := generation.next_frame()) is not None:
        generation.advance(frame, trailing[len(codes)] if len(codes) < len(trailing) else pad)
        codes.append(frame)
        logits.append(generation.logits.numpy())
    return codes, logits, generation.finish


def start(model: LanguageModel, asked: Any, sampling: Sampling, draw: Draw) -> tuple[Generation, Any, Any]:
    dtype = model.embeddings.frames(torch.zeros(1, 16, dtype=torch.long)).dtype
    prefill, trailing, pad = (torch.from_numpy(asked[name]).to(dtype) for name in ("prefill", "trailing", "pad"))
    return begin(model, prefill, sampling, draw, most_frames=FRAMES), trailing, pad


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_codes_equal_those_of_the_official_package(models: Any, path: Path) -> None:
    """Greedy and sampled; logits exactly in bfloat16, to 1e-5 in float32."""
    model, golden = models(path.stem), np.load(path)
    codes, logits, _ = speak(model, golden, GREEDY, by_counter(0))
    assert codes == golden["codes"].tolist()
    allowed = 0.0 if path.stem.endswith("_bf16") else 1e-5
    for place, name in ((0, "first_logits"), (len(codes) - 1, "last_logits")):
        assert np.abs(logits[place] - golden[name]).max() <= allowed
    generator = torch.Generator().manual_seed(SEED)
    sampled, _, finish = speak(model, golden, Sampling(), by_generator(generator))
    assert sampled == golden["sampled"].tolist()
    assert finish == ("length" if len(sampled) == FRAMES else "eos")


def test_all_ways_to_ask_are_there() -> None:
    assert len(GOLDEN) == 20
    assert sum(not path.stem.endswith("_bf16") for path in GOLDEN) == 14
    assert any(len(np.load(path)["sampled"]) < FRAMES for path in GOLDEN)  # one ends by itself


def test_a_request_says_the_same_alone_and_among_others(models: Any) -> None:
    model, golden = models("lm_custom_voice_1b7"), np.load(GOLDEN[-4])
    alone = [speak(model, golden, Sampling(), by_counter(seed))[0] for seed in range(8)]
    together = [start(model, golden, Sampling(), by_counter(seed))[0] for seed in range(8)]
    said: list[list[list[int]]] = [[] for _ in together]
    trailing, pad = (torch.from_numpy(golden[name]) for name in ("trailing", "pad"))
    for frame in range(FRAMES):
        for place in np.random.default_rng(frame).permutation(8):
            if (codes := together[place].next_frame()) is not None:
                together[place].advance(codes, trailing[frame] if frame < len(trailing) else pad)
                said[place].append(codes)
    assert said == alone
    assert len({str(codes) for codes in alone}) == 8  # another seed says something else


def test_a_cached_prefix_changes_nothing(models: Any) -> None:
    model, golden = models("lm_custom_voice_1b7"), np.load(GOLDEN[-4])
    prefill = torch.from_numpy(golden["prefill"])
    prefix = model.talker.cache(4)
    model.talker(prefill[:20], prefix)
    whole = begin(model, prefill, GREEDY, by_counter(0), most_frames=2)
    for _ in range(2):  # a clone is used up, the prefix is not
        rest = begin(model, prefill[20:], GREEDY, by_counter(0), most_frames=2, cache=prefix.clone())
        assert (rest.hidden - whole.hidden).abs().max() < 1e-5
    assert prefix.length == 20


def test_speech_ends_neither_too_early_nor_too_late(models: Any) -> None:
    model, golden = models("lm_custom_voice_1b7"), np.load(GOLDEN[-4])
    generation, trailing, _ = start(model, golden, GREEDY, by_counter(0))
    ending = torch.full((3072,), -5.0)
    ending[2150] = 50.0
    for frame in range(2):
        generation.logits = ending
        codes = generation.next_frame()
        assert codes is not None
        assert max(codes) < 2048
        generation.advance(codes, trailing[frame])
    generation.logits = ending
    assert generation.next_frame() is None
    assert (generation.finish, generation.frames) == ("eos", 2)
    assert generation.next_frame() is None


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter: Any, key: Any, words: Any) -> None:
    """The known answers of Random123."""
    block = philox(tuple(np.array([word], np.uint64) for word in counter), key)  # type: ignore[arg-type]
    assert tuple(block[:, 0].tolist()) == words


def test_draws_are_exponential_and_each_is_its_own() -> None:
    drawn = np.stack([exponentials(7, frame, book, 3072) for frame in range(20) for book in range(4)])
    assert drawn.mean() == pytest.approx(1, abs=0.01)
    assert (drawn > 1).mean() == pytest.approx(np.exp(-1), abs=0.005)
    assert len({row.tobytes() for row in drawn}) == 80
    assert (exponentials(7, 3, 2, 100) == exponentials(7, 3, 2, 3072)[:100]).all()
    assert (exponentials(7 + 2**40, 3, 2, 9) != exponentials(7, 3, 2, 9)).any()
    assert np.isfinite(drawn).all()
    assert (drawn > 0).all()


def test_a_draw_follows_its_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.125, 0.0])
    draws = [by_counter(seed)(probabilities, 5, 3) for seed in range(4000)]
    shares = np.bincount(draws, minlength=5) / 4000
    assert np.abs(shares - probabilities.numpy()).max() < 0.03
    assert shares[4] == 0


@given(st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=60), st.integers(1, 60))
def test_top_k_keeps_the_k_largest_and_their_equals(values: list[float], k: int) -> None:
    scores = torch.tensor(values)
    kept = torch.isfinite(warp(scores, 1.0, k, 1.0))
    worst = sorted(values, reverse=True)[min(k, len(values)) - 1]
    assert kept.tolist() == [value >= worst for value in scores.tolist()]


@given(st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=60), st.floats(0.05, 0.999))
def test_top_p_keeps_the_fewest_that_hold_so_much(values: list[float], share: float) -> None:
    scores = torch.tensor(values)
    kept = torch.isfinite(warp(scores, 1.0, 0, share))
    probabilities = scores.softmax(-1)
    assert probabilities[kept].sum() >= share - 1e-5
    assert probabilities[kept].max() == probabilities.max()
    if kept.sum() > 1:
        assert probabilities[kept].sum() - probabilities[kept].min() <= share + 1e-5


def test_what_was_said_becomes_less_likely_once() -> None:
    scores = penalise(torch.tensor([2.0, -2.0, 1.0]), {0, 1}, 1.05)
    assert scores.tolist() == pytest.approx([2 / 1.05, -2 * 1.05, 1.0])


def test_only_codes_and_the_end_can_be_said() -> None:
    scores = suppress(torch.zeros(3072), 2048, 2150, end_allowed=True)
    assert torch.isfinite(scores).nonzero().flatten().tolist() == [*range(2048), 2150]
    assert torch.isfinite(suppress(torch.zeros(3072), 2048, 2150, end_allowed=False)).sum() == 2048
