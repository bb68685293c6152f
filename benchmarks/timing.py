"""Device time of work, inside a CUDA graph or launch by launch, for ours and for peers alike.

In a graph each contender is captured `calls` times; graphs are replayed in turn, round after round, so that a drifting
clock meets all of them. One sample is one replay, divided by `calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch

from benchmarks.sample import Sample, summary

Work = Callable[[], object]


def time_in_graph(contenders: Mapping[str, Work], *, calls: int, rounds: int = 25) -> dict[str, Sample]:
    """Time contenders against each other, in microseconds per call."""
    graphs = {name: _capture(work, calls) for name, work in contenders.items()}
    for graph in graphs.values():
        for _ in range(3):
            graph.replay()
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            samples[name].append(_replay(graph) / calls)
    return {name: summary(values) for name, values in samples.items()}


def back_to_back(work: Work, count: int) -> list[float]:
    """Return milliseconds of each of so many calls on the current stream, none of which waits for the host."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairwise(marks)]


def _capture(work: Work, calls: int) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # compile, load and allocate outside the capture
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            work()
    return graph


def _replay(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
