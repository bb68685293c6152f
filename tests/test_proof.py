"""A verification of what was named: every kind of artefact against itself, and against one with a planted fault."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onekernel
from onekernel import Plan, Subject
from onekernel.errors import InvalidInput
from onekernel.splice.engine import HostEngine
from onekernel.splice.model import FusedModel
from onekernel.splice.onnxruntime import splice
from onekernel.targets import open_subject, program
from onekernel.verify import Verdict
from onnx_models import model as small_model
from onnx_models import node
from small_models import HIDDEN, ROWS, Builder, meaning

NUMBERS = Plan(seconds=0, rounds=2, repeats=4)
INPUTS = {"x": np.random.default_rng(3).standard_normal((ROWS, HIDDEN)).astype(np.float32)}


def proven(before: Any, after: Any, inputs: Any = None, plan: Plan = NUMBERS) -> Verdict:
    return onekernel.verify(before, after, inputs, plan=plan)


@pytest.mark.parametrize(
    "code",
    [
        "import onekernel.verify.compare; from onekernel.verify import Plan; assert onekernel.Plan is Plan",
        "from onekernel import verify; from onekernel.verify.compare import compare; import onekernel.targets",
        "import onekernel; onekernel.verify; import onekernel.verify.compare; from onekernel.verify import Subject",
    ],
)
def test_the_name_is_the_function_and_the_room_can_still_be_imported(code: str) -> None:
    code += "\nimport onekernel, onekernel.proof, sys\nassert onekernel.verify is onekernel.proof.verify"
    code += "\nassert sys.modules['onekernel.verify'].Verdict is onekernel.Verdict"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- ONNX models


def norm_model(*, wrong: int | None = None) -> tuple[onnx.ModelProto, Builder]:
    """MatMul, norm, MatMul; one element of the `wrong`th weight can be off."""
    b = Builder()
    normal, _ = b.norm(b.node("MatMul", "x", b.weight(HIDDEN, HIDDEN)))
    proto = b.model(["x"], [b.node("MatMul", normal, b.weight(HIDDEN, HIDDEN))])
    if wrong is not None:
        weight = proto.graph.initializer[wrong]
        array = numpy_helper.to_array(weight).copy()
        array.flat[1] += 0.1
        weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    return proto, b


@pytest.mark.parametrize("inputs", [INPUTS, list(INPUTS.values()), "auto", "in.npz"])
def test_a_model_equals_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: Any) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("in.npz", **INPUTS)
    onnx.save(norm_model()[0], "the model.onnx")
    verdict = proven("the model.onnx", norm_model()[0], inputs)
    assert (verdict.decision, verdict.rule) == ("keep", "equal numbers")
    assert [item.name for item in verdict.numbers] == ["MatMul_10_out"]


@pytest.mark.parametrize(("wrong", "value"), [(0, "MatMul_0_out"), (4, "MatMul_10_out")])
def test_a_wrong_weight_is_found_where_it_is_first_seen(tmp_path: Path, wrong: int, value: str) -> None:
    onnx.save(norm_model(wrong=wrong)[0], tmp_path / "off.onnx")
    verdict = proven(norm_model()[0], tmp_path / "off.onnx", INPUTS)
    assert (verdict.decision, verdict.rule) == ("reject", "wrong numbers")
    assert verdict.divergence is not None
    assert verdict.divergence.name == value


def test_a_model_that_rounds_inside_is_known_no_better() -> None:
    casts = [
        node("Cast", ["x"], "h", to=TensorProto.FLOAT16),
        node("Mul", ["h", "h"], "s"),
        node("Cast", ["s"], "y", to=TensorProto.FLOAT),
    ]
    half = small_model(casts, INPUTS, ["y"])
    half.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    verdict = proven(half, lambda x: {"y": (x * x * 1.001).astype(np.float32)}, INPUTS)
    assert verdict.decision == "keep"
    assert verdict.numbers[0].limit.what == "float16"
    assert open_subject(half, "before").subject.inside == ("float16", "float32")


def test_a_model_that_cannot_run_is_rejected_as_the_new_one_and_no_input_as_the_old() -> None:
    add = small_model([node("Add", ["x", "w"], "y")], INPUTS, ["y"], {"w": np.ones(HIDDEN + 1, np.float32)})
    verdict = proven(norm_model()[0], add, INPUTS)
    assert verdict.decision == "reject"
    assert verdict.numbers[0].problem == "raised"
    with pytest.raises(InvalidInput, match="inputs that test answers"):
        proven(add, norm_model()[0], INPUTS)


def draws(name: str, *inputs: str, **attributes: Any) -> list[onnx.NodeProto]:
    return [node(name, inputs, "n", **attributes), node("Cast", ["n"], "f", to=1), node("Add", ["x", "f"], "y")]


def drawing_in_a_branch() -> list[onnx.NodeProto]:
    body = helper.make_graph(
        [node("RandomUniformLike", ["x"], "drawn", low=1.0, high=2.0)], "b", [], [onnx.ValueInfoProto(name="drawn")]
    )
    body.output[0].type.tensor_type.elem_type = 1
    return [
        node("Constant", [], "c", value=numpy_helper.from_array(np.array(True))),
        node("If", ["c"], "f", then_branch=body, else_branch=body),
        node("Add", ["x", "f"], "y"),
    ]


DRAWING = {
    "like": draws("RandomNormalLike", "x", mean=1.0, scale=2.0),
    "half": draws("RandomNormalLike", "x", dtype=TensorProto.FLOAT16),
    "shape": draws("RandomUniform", shape=[ROWS, HIDDEN], low=-1.0, seed=3.0),
    "branch": drawing_in_a_branch(),
}


@pytest.mark.parametrize("kind", DRAWING)
def test_models_draw_equal_random_numbers(kind: str) -> None:
    proto = small_model(DRAWING[kind], INPUTS, ["y"])
    assert proven(proto, proto, INPUTS).decision == "keep"
    call = open_subject(proto, "before").subject.call
    drawn = call(INPUTS)["y"] - INPUTS["x"]
    assert len(np.unique(drawn.round(4))) == drawn.size
    np.testing.assert_array_equal(call(INPUTS)["y"] - INPUTS["x"], drawn)


def test_random_numbers_can_be_left_to_chance_and_compared_as_a_distribution() -> None:
    proto = small_model(DRAWING["like"], INPUTS, ["y"])
    verdict = proven(proto, proto, INPUTS, Plan(seconds=0, distribution=True))
    assert verdict.decision == "keep"
    assert "energy distance" in verdict.numbers[0].detail
    other = small_model(draws("RandomNormalLike", "x", mean=4.0), INPUTS, ["y"])
    assert proven(proto, other, INPUTS, Plan(seconds=0, distribution=True)).decision == "reject"


# --- fused models


def fused(proto: onnx.ModelProto, b: Builder) -> FusedModel:
    return splice(proto, b.chains, HostEngine(meaning))


def test_a_fused_model_equals_its_original_and_shows_its_parts() -> None:
    model = fused(*norm_model())
    assert proven(norm_model()[0], model, INPUTS).decision == "keep"
    subject, seen = open_subject(model, "after").subject, list[str]()
    assert subject.watch is not None
    subject.watch(INPUTS, lambda name, _: seen.append(name))
    assert seen == ["MatMul_0_out and 2 more", "norm_1", "MatMul_10_out"]
    assert subject.reopen is None


def test_the_step_of_a_fused_model_that_is_off_is_named() -> None:
    proto, b = norm_model()
    model = splice(proto, b.chains, HostEngine(lambda chain: lambda v: [1.01 * r for r in meaning(chain)(v)]))
    verdict = proven(proto, model, INPUTS)
    assert verdict.decision == "reject"
    assert verdict.divergence is not None
    assert verdict.divergence.name == b.chains[0].results[0].name


def test_a_fused_model_draws_as_its_original_does() -> None:
    b = Builder()
    normal, _ = b.norm(b.node("MatMul", "x", b.weight(HIDDEN, HIDDEN)))
    proto = b.model(["x"], [b.node("Add", normal, b.node("RandomNormalLike", normal))])
    assert proven(proto, fused(proto, b), INPUTS).decision == "keep"


def test_a_folder_equals_its_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEKERNEL_DEVICE", "emulated")
    monkeypatch.chdir(tmp_path)
    onnx.save(norm_model()[0], "model.onnx")
    assert onekernel.optimize("model.onnx", "auto", gpu="h200", out="fast").out == Path("fast")
    assert proven("model.onnx", "fast", "auto").decision == "keep"
    verdict = proven("fast", Path("fast"), "auto", Plan(seconds=0.1, repeats=2, energy=0))
    assert verdict.speed is not None
    assert verdict.speed.first is not None
    assert "layer_norm" in {part.what for part in verdict.speed.parts}


def test_a_folder_that_was_not_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="onekernel optimize MODEL -o FOLDER"):
        proven(tmp_path, tmp_path)


# --- factories


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write files into the current directory, which is a new one."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(f"import numpy as np\n{text}\n")

    return write


X = "[np.arange(6.0)]"


def test_a_factory_brings_its_inputs_and_is_called_again_for_first_calls(write: Callable[[str, str], None]) -> None:
    write("onekernel_pair.py", f"made = []\ndef make():\n made.append(1)\n return (lambda x: x * 2), {X}")
    assert proven("onekernel_pair:make", "onekernel_pair.py:make").decision == "keep"
    opened = open_subject("onekernel_pair:make", "before")
    before = len(sys.modules["onekernel_pair"].made)
    assert opened.subject.reopen is not None
    np.testing.assert_array_equal(opened.subject.reopen()([np.ones(2)]), [2, 2])
    assert len(sys.modules["onekernel_pair"].made) == before + 1
    assert str(Path.cwd()) not in sys.path


def test_two_files_of_one_name_are_two(write: Callable[[str, str], None]) -> None:
    write("old/work.py", f"def make(): return (lambda x: x + 1), {X}")
    write("new/work.py", f"class Made:\n @staticmethod\n def make(): return (lambda x: x + 2), {[1]}")
    verdict = proven("old/work.py:make", "new/work.py:Made.make")
    assert verdict.decision == "reject"
    assert "expected 1.0, got 2.0" in verdict.reason


def test_a_factory_may_make_a_subject_or_a_model(write: Callable[[str, str], None]) -> None:
    onnx.save(norm_model()[0], "m.onnx")
    write("made.py", "import onnx, onekernel\ndef model(): return onnx.load('m.onnx')\n"
          "def subject(): return onekernel.Subject(lambda x: {'MatMul_10_out': x['x']}, 'mine')")  # fmt: skip
    assert proven("made.py:model", "m.onnx", "auto").decision == "keep"
    assert proven("made.py:model", "made.py:subject", "auto").decision == "reject"


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("broken.py:boom", "broken.py:boom, got KeyError: 'no weights'"),
        ("broken.py:leave", "SystemExit: 3"),
        ("broken.py:absent", "AttributeError"),
        ("broken.py:number", "something to call as broken.py:number, got int"),
        ("broken.py:needs", "TypeError"),
        ("wrong.py:make", "SyntaxError"),
        ("gone.py:make", "FileNotFoundError"),
        ("onekernel_no_such_module:make", "ModuleNotFoundError"),
    ],
)
def test_a_factory_that_fails_is_one_line(write: Callable[[str, str], None], named: str, words: str) -> None:
    write("broken.py", "import sys\ndef boom(): raise KeyError('no weights')\ndef leave(): sys.exit(3)\n"
          "def number(): return 5\ndef needs(a): return a")  # fmt: skip
    write("wrong.py", "def make(:")
    with pytest.raises(InvalidInput) as caught:
        proven(named, named, [1.0])
    assert words in str(caught.value)


# --- command lines


def python(code: str, *arguments: str) -> str:
    return shlex.join([sys.executable, "-c", code, *arguments])


COPY = "import sys, numpy as np; a = np.load(sys.argv[1]); np.{save}(sys.argv[2], {value})"


@pytest.mark.parametrize("inputs", [INPUTS, list(INPUTS.values())])
def test_a_program_reads_and_writes_files(inputs: Any) -> None:
    read = "a[a.files[0]]"
    twice = python(COPY.format(save="savez", value=f"output={read} * 2"), "{inputs}", "{outputs}")
    plan = Plan(seconds=0, rounds=1, repeats=1)
    for value, decision in ((f"{read} + {read}", "keep"), (f"{read} * 2.01", "reject")):
        other = python(COPY.format(save="save", value=value), "{inputs}", "{outputs}")
        assert proven(twice, other, inputs, plan).decision == decision


def test_a_program_is_compared_with_a_function() -> None:
    line = python(COPY.format(save="save", value="np.tanh(a['x'])"), "{inputs}", "{outputs}")
    assert proven(lambda x: np.tanh(x), line, INPUTS, Plan(seconds=0, rounds=1, repeats=2)).decision == "keep"


def test_what_programs_print_is_compared_byte_by_byte() -> None:
    assert proven("echo a", "echo  a").decision == "keep"
    verdict = proven("echo a", "echo b")
    assert verdict.decision == "reject"
    assert "expected 97, got 98" in verdict.reason


FAILING = "import sys; print('first', file=sys.stderr); sys.exit('last words')"


def test_a_program_that_fails_says_how() -> None:
    with pytest.raises(InvalidInput, match=r"got exit code 1 \(last words\)"):
        proven(python(FAILING), "echo a")
    assert "exit code 1 (last words)" in proven("echo a", python(FAILING)).reason
    assert "exit code -9" in proven("echo a", python("import os; os.kill(os.getpid(), 9)")).reason


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("onekernel-no-such-program --now", "which starts no program"),
        ("echo 'a", "No closing quotation"),
        (" ", "which starts no program"),
        ("true ", "got None"),
        ("true {outputs}", "got no file"),
    ],
)
def test_a_program_without_a_result_is_refused(line: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        proven(line, "echo a")
    assert words in str(caught.value)


def test_a_program_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "TIMEOUT", 0.2)
    assert "got none after 0.2 s" in proven("echo a", "sleep 60").reason


def test_a_program_without_spaces_is_one() -> None:
    with pytest.raises(InvalidInput, match="a result to compare, got None"):
        proven("true", "true")


def test_temporary_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    line = python(COPY.format(save="savez", value="a['x']"), "{inputs}", "{outputs}")
    assert proven(line, line, INPUTS, Plan(seconds=0, rounds=0, repeats=1)).decision == "keep"
    assert proven(line, python(FAILING), INPUTS, Plan(seconds=0, rounds=0, repeats=1)).decision == "reject"
    assert list(tmp_path.iterdir()) == []


def test_memory_of_a_program_is_its_own() -> None:
    """Not what this process holds, which a child's ru_maxrss starts from."""
    lines = [shlex.join([sys.executable, "-ISc", f"print(len(bytearray({size} << 20)) * 0)"]) for size in (24, 48)]
    verdict = proven(*lines, plan=Plan(seconds=0.01, repeats=1))
    assert verdict.footprint is not None
    host = verdict.footprint.find("host memory")
    assert host is not None
    assert 24e6 < host.before < 45e6
    assert 48e6 < host.after < 70e6


# --- what is understood, and where inputs come from


@pytest.mark.parametrize("named", ["nonsense", "model.ort", "a/b/c", "Makefile"])
def test_what_is_not_understood_lists_what_is(named: str) -> None:
    with pytest.raises(InvalidInput, match=r"MODEL.onnx, a folder.*module:factory.*command line"):
        proven(named, named)
    with pytest.raises(InvalidInput, match="something to call as after, got int"):
        proven(lambda x: x, 5, INPUTS)


def test_callables_are_passed_on_untouched() -> None:
    subject = Subject(lambda inputs: inputs["x"], "mine")
    assert open_subject(subject, "before").subject is subject
    assert proven(subject, lambda x: x, INPUTS).decision == "keep"


def test_inputs_are_before_the_other_sides(write: Callable[[str, str], None]) -> None:
    write("two.py", "def one(): return (lambda x: x), [np.zeros(3)]\ndef two(): return (lambda x: x), [np.zeros(0)]")
    write("few.py", "def make(): return lambda x: x")
    seen: list[int] = []
    proven(lambda x: seen.append(x.size) or x, "two.py:one")
    proven(lambda x: seen.append(x.size) or x, "two.py:one", [np.zeros(4)])
    assert set(seen) == {3, 4}
    assert proven("two.py:one", "two.py:two").numbers[0].error == 0
    for inputs in (None, "auto"):
        with pytest.raises(InvalidInput, match="neither side says what it takes"):
            proven("few.py:make", "few.py:make", inputs)
    with pytest.raises(InvalidInput, match="no such file"):
        proven("few.py:make", "few.py:make", "gone.npz")
    with pytest.raises(InvalidInput, match="a bare ndarray"):
        proven("few.py:make", "few.py:make", np.zeros(3))


def test_inputs_of_a_fixed_size_are_made_up_and_others_are_asked_for() -> None:
    proto, _ = norm_model()
    with pytest.raises(InvalidInput, match=r"no inputs for x float32\[rows,6\]"):
        proven(proto, proto)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    assert proven(proto, proto).decision == "keep"
    assert proven("echo a", proto).decision == "reject"
