"""Whole decoders as cubins for the parts of the table, built without a GPU: nothing spills, shared memory suffices."""

from __future__ import annotations

import pytest

from decoders import SMALL_TEXT, SPEECH, SPEECH_FLOAT16
from onekernel.device.parts import find, shared_limit
from onekernel.jit import compile_request
from onekernel.megakernel.decoder import greedy_decoder, speech_decoder
from onekernel.megakernel.generate import kernel_request
from onekernel.megakernel.layout import Layout
from onekernel.megakernel.schedule import schedule_for
from onekernel.megakernel.sessions.layout import SESSIONS, sessions_layout
from onekernel.megakernel.sessions.text import sessions_request

ARCHS = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
PROGRAMS = {
    "speech 0.6B": speech_decoder(SPEECH[0]),
    "speech 1.7B": speech_decoder(SPEECH[1]),
    "text 135M": greedy_decoder(SMALL_TEXT),
}
CASES = [(name, arch) for name in PROGRAMS for arch in ARCHS]
CASES.append(("text 135M", "sm_75"))  # speech needs more shared memory than there is: it goes by launches
PROGRAMS["speech in float16"] = speech_decoder(SPEECH_FLOAT16)
CASES.append(("speech in float16", "sm_90"))


@pytest.mark.parametrize(("name", "arch"), CASES)
def test_nothing_spills(name: str, arch: str) -> None:
    program = PROGRAMS[name]
    request = kernel_request(Layout(program, schedule_for(program, find(arch).multiprocessors, arch)), arch)
    assert request.shared <= shared_limit(arch)
    used = compile_request(request).resources
    assert (used.spill_bytes, used.stack_bytes) == (0, 0), used
    assert 0 < used.registers * request.threads <= 65536


@pytest.mark.parametrize("sessions", SESSIONS)
def test_nothing_spills_with_many_sessions(sessions: int) -> None:
    """At width 1024; at width 2048 a few registers do (docs/frames.md)."""
    schedule = schedule_for(PROGRAMS["speech 0.6B"], find("sm_90").multiprocessors, "sm_90")
    layout = sessions_layout(speech_decoder(SPEECH[0], paired=False), schedule, sessions, "sm_90")
    used = compile_request(sessions_request(layout, "sm_90")).resources
    assert (used.spill_bytes, used.stack_bytes) == (0, 0), used
