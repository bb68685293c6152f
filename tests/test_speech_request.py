"""What can be asked: every option has a default in its range, and says so when a value is not."""

from __future__ import annotations

from dataclasses import fields

import pytest

from onekernel.errors import InvalidInput
from onekernel.speech.request import Sampling, SpeechRequest

RANGED = [item for item in fields(SpeechRequest) if item.metadata["low"] is not None]


def test_every_option_has_a_meaning_and_the_defaults_are_the_official_ones() -> None:
    assert all(item.metadata["meaning"] for item in fields(SpeechRequest))
    assert SpeechRequest().sampling(Sampling()) == Sampling()


@pytest.mark.parametrize("item", RANGED, ids=lambda item: item.name)
def test_a_value_out_of_range_is_refused(item: object) -> None:
    name, low, high = item.name, item.metadata["low"], item.metadata["high"]  # type: ignore[attr-defined]
    for value in (low, high):
        SpeechRequest(**{name: value})
    for value in (low - 1, high + 1, float("nan")):
        with pytest.raises(InvalidInput, match=f"{name} from"):
            SpeechRequest(**{name: value})


def test_what_is_asked_for_goes_over_what_the_model_says() -> None:
    model = Sampling(temperature=0.7, top_k=20, sub_top_k=10, repetition_penalty=1.2, sub_do_sample=False)
    assert SpeechRequest().sampling(model) == model
    asked = SpeechRequest(temperature=0.5, top_k=0, repetition_penalty=1.0).sampling(model)
    assert (asked.temperature, asked.sub_temperature, asked.do_sample, asked.sub_do_sample) == (0.5, 0.5, True, True)
    assert (asked.top_k, asked.sub_top_k, asked.repetition_penalty, asked.top_p) == (0, 0, 1.0, model.top_p)


def test_temperature_zero_takes_the_likeliest() -> None:
    sampling = SpeechRequest(temperature=0).sampling(Sampling())
    assert (sampling.do_sample, sampling.sub_do_sample, sampling.temperature) == (False, False, 0.9)


@pytest.mark.parametrize(
    ("first", "most", "sizes"),
    [(1, 8, [1, 2, 4, 8, 8]), (4, 4, [4, 4]), (3, 8, [3, 6, 8, 8]), (9, 2, [2, 2]), (1, 1, [1, 1])],
)
def test_pieces_grow(first: int, most: int, sizes: list[int]) -> None:
    policy = SpeechRequest(first_chunk=first, chunk=most).chunks()
    assert [policy.next() for _ in sizes] == sizes


def test_the_cap_grows_with_the_text_and_can_be_set() -> None:
    assert SpeechRequest().frame_cap(0) == 64
    assert SpeechRequest().frame_cap(10) == 184
    assert SpeechRequest(max_frames=7).frame_cap(10**5) == 7
