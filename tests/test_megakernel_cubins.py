"""Whole decoders as cubins for the parts of the table, built without a GPU: nothing spills, shared memory suffices."""

from __future__ import annotations

import pytest

from decoders import SMALL_TEXT, SPEECH
from onekernel.device.parts import find, shared_limit
from onekernel.jit import compile_request
from onekernel.megakernel.decoder import greedy_decoder, speech_decoder
from onekernel.megakernel.generate import kernel_request
from onekernel.megakernel.layout import Layout
from onekernel.megakernel.program import Program
from onekernel.megakernel.schedule import schedule_for

ARCHS = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]  # sm_75 has no tensor cores for bfloat16
PROGRAMS = {
    "speech 0.6B": speech_decoder(SPEECH[0]),
    "speech 1.7B": speech_decoder(SPEECH[1]),
    "text 135M": greedy_decoder(SMALL_TEXT),
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_nothing_spills(arch: str, program: Program) -> None:
    request = kernel_request(Layout(program, schedule_for(program, find(arch).multiprocessors, arch)), arch)
    assert request.shared <= shared_limit(arch)
    used = compile_request(request).resources
    assert (used.spill_bytes, used.stack_bytes) == (0, 0), used
    assert 0 < used.registers * request.threads <= 65536
