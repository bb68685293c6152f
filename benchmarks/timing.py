"""Device time of work inside a CUDA graph, for ours and for peers alike.

Each contender is captured `calls` times into one graph; graphs are replayed in turn, round after round, so that a
drifting clock meets all of them. One sample is one replay, divided by `calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
