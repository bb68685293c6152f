"""Many sessions in one launch on a GPU: each says what it says alone, and blocks that are late change nothing."""

from __future__ import annotations

import pytest

from many_sessions import EQUAL, WIDER, alone, begun, many, same, twin
from onekernel import device
from onekernel.megakernel.decoder import SpeechShape
from test_megakernel_gpu import late

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "late"])
@pytest.mark.parametrize("sessions", [2, 4, 8])
@pytest.mark.parametrize("shape", [EQUAL, WIDER], ids=["equal", "wider"])
def test_sessions_say_what_each_says_alone(shape: SpeechShape, sessions: int, is_late: bool) -> None:
    on = device.get("cuda")
    one = alone(shape, on)
    apart, texts = begun(one, sessions - 1)
    together = list(map(twin, apart))
    kernel = many(one, sessions, on, late if is_late else str)
    for frames in (1, 3):
        said = kernel.say(together, texts, frames)
        expected = [request.say(None, text, frames) for request, text in zip(apart, texts, strict=True)]
        assert said.tolist() == [frames.tolist() for frames in expected]
    kernel.check()
    assert all(same(*pair) for pair in zip(apart, together, strict=True))
