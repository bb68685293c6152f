"""The house rules as data, checked on the package, and proof that each check catches a planted fault."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import architecture as house

ROOT = Path(__file__).parents[1]
PACKAGE = house.Package(ROOT / "src" / "onekernel")

# Who may import whom. An edge that is not listed fails; so does a room that is not listed.
BASE = frozenset({"device", "errors", "settings", "_version"})
MAY_IMPORT = {
    "_version": frozenset(),
    "errors": frozenset(),
    "settings": frozenset({"errors", "_version"}),
    "device": BASE - {"device"},
    "ops": BASE,
    "kernels": frozenset(),
    "jit": BASE,
    "graph": BASE | {"ops"},
    "fusion": BASE | {"graph", "jit", "ops"},
    "splice": BASE | {"graph", "fusion", "jit"},
    "megakernel": BASE | {"jit", "ops"},
    "verify": BASE,
    "checkpoint": BASE,
    "fallback": BASE,
    "section": BASE,
    "speech": BASE | {"checkpoint", "jit", "megakernel", "section", "verify"},
    "text": BASE | {"checkpoint", "fallback", "jit", "megakernel", "section"},
    "targets": BASE | {"graph", "splice", "verify"},
    "proof": BASE | {"targets", "verify"},
    "doctor": BASE | {"jit"},
    "optimize": BASE | {"targets", "fusion", "splice", "verify"},
    "cli": BASE | {"speech", "onekernel", "jit", "optimize", "targets", "verify"},
    "__main__": frozenset({"cli"}),
    "onekernel": BASE | {"speech", "text", "doctor", "optimize", "proof", "splice", "verify", "jit"},
}

# Where a heavy library may be imported at all.
HOMES = {
    "cuda": frozenset({"device", "jit"}),
    "onnx": frozenset({"graph", "splice", "targets"}),
    "onnxruntime": frozenset({"graph", "splice", "targets"}),
    "torch": frozenset({"checkpoint", "megakernel", "speech", "splice", "text", "verify"}),
    "safetensors": frozenset({"checkpoint"}),
    "huggingface_hub": frozenset({"checkpoint"}),
    "tokenizers": frozenset({"speech", "text"}),
    "soundfile": frozenset({"speech"}),
    "soxr": frozenset({"speech"}),
    "rich": frozenset({"cli"}),
    "click": frozenset({"cli"}),
    "pynvml": frozenset({"device"}),
    "matplotlib": frozenset({"verify"}),
}

# Sizes in lines, or in pieces. An exception names the thing, its own limit, and the note that argues it.
BUDGETS = {
    "python file": 300,
    "python function": 40,
    "parameters": 6,
    "files in a folder": 12,
    "cuda file": 600,
    "device function": 40,
    "kernel body": 120,
    "public names of a room": 10,
}
EXCEPTIONS = {
    ("public names of a room", "fusion"): (14, "docs/decisions/0006-fusion-offers-its-records.md"),
    ("public names of a room", "megakernel"): (11, "docs/decisions/0018-a-session-is-a-vector-and-a-block.md"),
}

NOT_AT_IMPORT = (
    "torch", "safetensors", "tokenizers", "onnx", "onnxruntime", "cuda", "tensorrt", "numpy", "rich", "click",
    "matplotlib",
)  # fmt: skip


def sizes(package: house.Package) -> Iterator[tuple[str, str, int]]:
    """Chain every measure of a package as (what, where, size)."""
    yield from house.python_sizes(package)
    yield from house.folder_sizes(package)
    yield from house.cuda_sizes(package)
    for room, names in house.public_names(package).items():
        yield "public names of a room", room, len(names)


def over_budget(measured: Iterable[tuple[str, str, int]]) -> list[str]:
    """Name everything that is larger than its budget and has no exception."""
    limits = {key: limit for key, (limit, _) in EXCEPTIONS.items()}
    return [
        f"{where}: {what} {size} > {limit}"
        for what, where, size in measured
        if size > (limit := limits.get((what, where), BUDGETS[what]))
    ]


def test_rooms_import_only_what_is_listed() -> None:
    assert house.forbidden_edges(PACKAGE, MAY_IMPORT) == []


def test_modules_form_no_cycle() -> None:
    assert house.cycles(PACKAGE) == []


def test_rooms_form_no_cycle() -> None:
    """Deferred imports count here: they are edges of the table too."""
    TopologicalSorter(MAY_IMPORT).prepare()


def test_verbs_import_inside_functions() -> None:
    assert house.undeferred_edges(PACKAGE, "cli", frozenset({"errors", "settings", "_version"})) == []


def test_product_never_sees_its_tests() -> None:
    roots = frozenset({"tests", "benchmarks", "examples", "training", "pytest", "hypothesis"})
    assert house.forbidden_roots(PACKAGE, roots) == []


def test_heavy_libraries_stay_at_home() -> None:
    assert house.strayed_libraries(PACKAGE, HOMES) == []


def test_no_star_import() -> None:
    assert house.star_imports(PACKAGE) == []


def test_settings_alone_reads_the_environment() -> None:
    assert house.environment_readers(PACKAGE, "onekernel.settings") == []


def test_everything_fits_its_budget() -> None:
    measured = list(sizes(PACKAGE))
    assert {"python file", "python function", "parameters"} <= {what for what, _, _ in measured}
    assert over_budget(measured) == []


def test_exceptions_are_needed_and_argued() -> None:
    measured = {(what, where): size for what, where, size in sizes(PACKAGE)}
    for key, (limit, note) in EXCEPTIONS.items():
        assert measured[key] > BUDGETS[key[0]], f"{key} needs no exception any more"
        assert measured[key] <= limit
        assert (ROOT / note).is_file()


def test_import_is_light() -> None:
    """The floor of several fresh processes is a property of the code, not of the machine's load."""
    code = """
        import json, sys, time
        start = time.perf_counter()
        import onekernel
        print(json.dumps([time.perf_counter() - start, sorted(sys.modules)]))
    """
    runs = [_fresh(code) for _ in range(5)]
    modules = {name.split(".")[0] for name in runs[0][1]}
    assert modules.isdisjoint(NOT_AT_IMPORT)
    assert min(seconds for seconds, _ in runs) < 0.2


def _fresh(code: str) -> tuple[float, list[str]]:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    seconds, modules = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return seconds, modules


# --- planted faults: a small package that breaks one rule, and the check that must say so


Plant = Callable[[dict[str, str]], house.Package]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Write the files of a tiny package `fake` and return it."""

    def write(files: dict[str, str]) -> house.Package:
        for name, text in {"__init__.py": "", **files}.items():
            path = tmp_path / "fake" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        return house.Package(tmp_path / "fake")

    return write


RULES = {"low": frozenset[str](), "high": frozenset({"low"}), "fake": frozenset[str]()}
ROOM = {"low/__init__.py": "", "low/part.py": "", "high/__init__.py": ""}


@pytest.mark.parametrize(
    "statement",
    [
        "import fake.high",
        "from fake import high",
        "from fake.high import thing",
        "from .. import high",
        "from ..high import thing",
        "def late():\n    from fake.high import thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fake.high import thing",
    ],
)
def test_forbidden_import_is_caught(plant: Plant, statement: str) -> None:
    package = plant({**ROOM, "low/part.py": statement})
    (finding,) = house.forbidden_edges(package, RULES)
    assert finding.endswith("low -> high")


def test_allowed_import_is_not_caught(plant: Plant) -> None:
    package = plant({**ROOM, "high/part.py": "from fake.low.part import thing\nfrom . import other"})
    assert house.forbidden_edges(package, RULES) == []


def test_unknown_room_is_caught(plant: Plant) -> None:
    package = plant({**ROOM, "cellar.py": "import fake.low"})
    (finding,) = house.forbidden_edges(package, RULES)
    assert finding.endswith("cellar -> low")


def test_cycle_is_caught(plant: Plant) -> None:
    package = plant({"one.py": "from fake import two", "two.py": "from fake.one import x"})
    (finding,) = house.cycles(package)
    assert "fake.one" in finding
    assert "fake.two" in finding


def test_deferred_import_makes_no_cycle(plant: Plant) -> None:
    package = plant({"one.py": "from fake import two", "two.py": "def late():\n    from fake.one import x"})
    assert house.cycles(package) == []


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (lambda package: house.star_imports(package), "from math import *"),
        (lambda package: house.environment_readers(package, "fake.settings"), "import os\nos.environ['A']"),
        (lambda package: house.environment_readers(package, "fake.settings"), "from os import getenv"),
        (lambda package: house.forbidden_roots(package, frozenset({"tests"})), "import tests.oracle"),
        (
            lambda package: house.strayed_libraries(package, {"onnx": frozenset({"low"})}),
            "import onnx.helper",
        ),
        (lambda package: house.undeferred_edges(package, "bad", frozenset()), "import fake.low"),
        (lambda package: over_budget(sizes(package)), "x = 1\n" * 301),
        (lambda package: over_budget(sizes(package)), "def f():\n" + "    x = 1\n" * 40),
        (
            lambda package: over_budget(sizes(package)),
            "class A:\n    def f(self, a, b, c, *d, e, f, **g): ...",
        ),
        (lambda package: over_budget(sizes(package)), "from fake.low import " + ", ".join("abcdefghijk")),
    ],
)
def test_planted_fault_is_caught(plant: Plant, check: Callable[[house.Package], list[str]], text: str) -> None:
    assert check(plant({**ROOM, "good.py": "import sys"})) == []
    assert len(check(plant({**ROOM, "bad.py": text}))) == 1


def test_declared_names_are_counted(plant: Plant) -> None:
    package = plant({"low/__init__.py": f"__all__ = {list('abcdefghijk')}"})
    assert over_budget(sizes(package)) == ["low: public names of a room 11 > 10"]


def test_crowded_folder_is_caught(plant: Plant) -> None:
    package = plant({f"low/part{number}.py": "" for number in range(13)})
    assert over_budget(sizes(package)) == ["low: files in a folder 13 > 12"]


CUDA = """
// a comment with { and an apostrophe's edge
#define PAIR(a) \\
  { a, a }
namespace fake {{
struct Shared {{ float rows[2] = {{0, 1}}; }};
struct Sum {{
  int total;
  explicit Sum(int start) : total(start) {{ total += '{{' != start; }}
}};
template <int N>
__device__ __forceinline__ float add(float a) noexcept {{
{device}
}}
extern "C" __global__ void __launch_bounds__(256) run(float* out) {{
{kernel}
}}
}}  // namespace fake
"""


def test_cuda_bodies_are_measured(plant: Plant) -> None:
    line = '  if (true) { f("}"); }'
    fits = CUDA.replace("{ a, a }", "{{ a, a }}").replace("{ and", "{{ and")
    text = fits.format(device="\n".join([line] * 38), kernel="\n".join([line] * 118))
    assert over_budget(sizes(plant({"k.cuh": text}))) == []
    text = fits.format(device="\n".join([line] * 39), kernel="\n".join([line] * 119))
    device, kernel = over_budget(sizes(plant({"k.cuh": text})))
    assert device.endswith("device function 41 > 40")
    assert kernel.endswith("kernel body 121 > 120")
