"""Where a checkpoint is found, and that nothing is taken for its tensors that is not."""

from __future__ import annotations

import errno
import json
import logging
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors as hub_errors
from safetensors.torch import save_file

from onekernel.checkpoint import locate, read_tensors
from onekernel.errors import InvalidInput, MissingExtra

LAYOUT = {"a": (2, 3), "b": (4,), "c.weight": (1, 2, 2)}
NAME = "Somebody/Some-Model.1"


def made(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape).to(dtype) for name, shape in LAYOUT.items()}


def read(file: Path, layout: dict[str, tuple[int, ...]] = LAYOUT) -> dict[str, torch.Tensor]:
    return read_tensors(file, layout, dtypes=("BF16",))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(made(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_tensors_are_those_of_the_file(tmp_path: Path) -> None:
    tensors = made()
    save_file(tensors, tmp_path / "x.safetensors")
    found = read(tmp_path / "x.safetensors")
    assert list(found) == list(LAYOUT)
    assert all(torch.equal(found[name], tensors[name]) for name in LAYOUT)


def test_tensors_are_views_of_the_map(file: Path) -> None:
    """What is written into the file after it was read, is seen: nothing was copied."""
    found = read(file)
    with file.open("r+b") as opened:
        opened.seek(-sum(tensor.nbytes for tensor in found.values()), 2)
        opened.write(struct.pack("<14H", *[0x4040] * 14))  # 3.0
    assert all(bool((tensor == 3).all()) for tensor in found.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": None}, r"got 1 missing \(a\); use"),
        ({"z": torch.zeros(1)}, r"got 1 extra \(z\); use"),
        ({"b": torch.zeros(5, dtype=torch.bfloat16)}, r"1 wrong \(b as BF16 \[5\] instead of BF16 \[4\]\)"),
        ({"b": torch.zeros(2, 2, dtype=torch.bfloat16)}, r"1 wrong \(b as BF16 \[2, 2\] instead of BF16 \[4\]\)"),
        ({"b": torch.zeros(4)}, r"1 wrong \(b as F32 \[4\] instead of BF16 \[4\]\)"),
        ({"b": torch.zeros(4, dtype=torch.int16)}, r"1 wrong \(b as I16"),
        ({"a": None, "z": torch.zeros(1), "b": torch.zeros(4)}, r"1 missing \(a\); 1 extra \(z\); 1 wrong \(b as"),
    ],
)
def test_every_tensor_is_accounted_for(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    tensors = {name: tensor for name, tensor in (made() | change).items() if tensor is not None}
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(InvalidInput, match=words):
        read(tmp_path / "x.safetensors")


def test_many_faults_are_counted_and_the_first_are_named(file: Path) -> None:
    layout = LAYOUT | {f"layer{number}": (1,) for number in range(9)}
    with pytest.raises(InvalidInput, match=r"9 missing \(layer0, layer1, layer2, layer3, layer4, \.\.\.\); use"):
        read(file, layout)


def test_a_file_cut_anywhere_is_refused(file: Path) -> None:
    content = file.read_bytes()
    for size in range(len(content)):
        file.write_bytes(content[:size])
        with pytest.raises(InvalidInput, match="cannot be read"):
            read(file)
    file.write_bytes(content)
    read(file)


def _header(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def _second_offsets(header: dict[str, Any]) -> None:
    header["b"]["data_offsets"] = header["a"]["data_offsets"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content + b"\0",
        lambda content: struct.pack("<Q", 2**63) + content[8:],
        lambda content: struct.pack("<Q", len(content)) + content[8:],
        lambda content: struct.pack("<Q", 16) + content[8:],
        lambda content: struct.pack("<Q", 0) + content[8:],
        lambda content: content[:8] + b"\xff" + content[9:],
        lambda content: b"PK\x03\x04" + content[4:],
        lambda content: _header(content, lambda header: header["a"].update(dtype="BF15")),
        lambda content: _header(content, lambda header: header["a"].update(shape=[2, 4])),
        lambda content: _header(content, lambda header: header["a"].update(shape=[2**62, 3])),
        lambda content: _header(content, lambda header: header["a"].update(data_offsets=[0, 2**40])),
        lambda content: _header(content, _second_offsets),
    ],
)
def test_a_damaged_file_is_refused(file: Path, damage: Callable[[bytes], bytes]) -> None:
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InvalidInput, match=r"expected a safetensors file at .*, got one that cannot be read"):
        read(file)


def test_no_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="got no such file; download"):
        read(tmp_path / "model.safetensors")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read(tmp_path)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """An index and two shards; the name of the whole, which is not there."""
    parts = {"model-1-of-2.safetensors": ["a", "c.weight"], "model-2-of-2.safetensors": ["b"]}
    tensors = made()
    for name, names in parts.items():
        save_file({name: tensors[name] for name in names}, tmp_path / name)
    index = {"metadata": {}, "weight_map": {name: part for part, names in parts.items() for name in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path / "model.safetensors"


def test_shards_are_read_together(shards: Path) -> None:
    assert {name: tuple(tensor.shape) for name, tensor in read(shards).items()} == LAYOUT


def test_a_missing_shard_is_named(shards: Path) -> None:
    shards.with_name("model-2-of-2.safetensors").unlink()
    with pytest.raises(InvalidInput, match=r"model-2-of-2\.safetensors, got no such file"):
        read(shards)


def test_what_is_spare_may_be_there(tmp_path: Path) -> None:
    save_file(made() | {"z": torch.zeros(1)}, tmp_path / "x.safetensors")
    for spare in (["z"], ["z", "y"]):
        assert list(read_tensors(tmp_path / "x.safetensors", LAYOUT, dtypes=("BF16",), spare=spare)) == list(LAYOUT)
    with pytest.raises(InvalidInput, match=r"got 1 extra \(z\)"):
        read_tensors(tmp_path / "x.safetensors", LAYOUT, dtypes=("BF16",), spare=["y"])


def test_a_tensor_in_two_shards_is_extra(shards: Path) -> None:
    save_file({name: made()[name] for name in "ab"}, shards.with_name("model-2-of-2.safetensors"))
    with pytest.raises(InvalidInput, match=r"got 1 extra \(a\)"):
        read(shards)


@pytest.mark.parametrize(
    "index",
    ["", "{}", "[]", '{"weight_map": 3}', *(json.dumps({"weight_map": {"a": part}}) for part in ("../x", "/x", "", 3))],
)
def test_a_damaged_index_is_refused(shards: Path, index: str) -> None:
    shards.with_name("model.safetensors.index.json").write_text(index)
    with pytest.raises(InvalidInput, match=r"expected an index of shards at .*index\.json"):
        read(shards)


def test_a_library_that_is_missing_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library, use in (("safetensors", lambda: read(file)), ("huggingface_hub", lambda: locate(NAME))):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(MissingExtra, match=rf"{library}.*onekernel\[speech\]"):
            use()


# --- where a checkpoint is found


@pytest.mark.parametrize("form", [str, Path])
def test_a_folder_is_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: type) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir(parents=True)
    assert locate(form(tmp_path)) == tmp_path
    assert locate(form(NAME)) == Path(NAME)  # before the hub


@pytest.mark.parametrize(
    ("name", "got"),
    [("", "neither"), ("one", "neither"), ("a/b/c", "neither"), ("../up", "neither"), ("/gone", "neither"),
     (Path(NAME), "neither"), ("~nobody/x y", "neither"), ("x" * 5000, "neither"), ("a\0b/c", "neither"),
     (__file__, "a file"), (Path(__file__), "a file")],
)  # fmt: skip
def test_what_is_neither_a_folder_nor_an_id_is_refused(name: str | Path, got: str) -> None:
    with pytest.raises(InvalidInput, match=rf"folder of a checkpoint, or a hub id such as Qwen/.*{got}"):
        locate(name)


Fake = Callable[[Callable[..., str]], list[dict[str, Any]]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put an answer in the place of huggingface_hub's; return the calls of it."""

    def put(answer: Callable[..., str]) -> list[dict[str, Any]]:
        calls = list[dict[str, Any]]()

        def snapshot_download(name: str, **options: Any) -> str:
            calls.append({"name": name, **options})
            return answer(**options)

        monkeypatch.delenv("ONEKERNEL_HUB", raising=False)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return calls

    return put


def test_an_id_is_downloaded(hub: Fake, tmp_path: Path) -> None:
    calls = hub(lambda **_options: str(tmp_path))
    assert locate(NAME) == tmp_path
    (call,) = calls
    wanted = huggingface_hub.utils.filter_repo_objects(
        ["config.json", "model.safetensors", "merges.txt", "speech_tokenizer/model.safetensors", "vocab.json",
         "speech_tokenizer/config.json", "README.md", ".gitattributes", "pytorch_model.bin", "code.py"],
        allow_patterns=call["allow_patterns"],
    )  # fmt: skip
    assert call["name"] == NAME
    assert len(list(wanted)) == 6


def test_progress_is_told_and_not_drawn(
    hub: Fake, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(tqdm_class: Any, **_options: Any) -> str:
        tqdm_class(total=2, desc="Fetching 2 files").update(2)
        transfer, written = (tqdm_class(total=0, unit="B", unit_scale=True, desc=desc) for desc in "ab")
        transfer.total = written.total = 1000
        for _ in range(4):
            transfer.update(250)
            written.update(250)
        return str(tmp_path)

    hub(answer)
    told = list[tuple[int, int]]()
    with caplog.at_level(logging.INFO, "onekernel"):
        locate(NAME, progress=lambda done, total: told.append((done, total)))
    assert told == [(250, 1000), (500, 1000), (750, 1000), (1000, 1000)]
    records = [(record.done, record.total) for record in caplog.records if hasattr(record, "done")]
    assert records == [(25, 100), (50, 100), (75, 100), (100, 100)]
    assert capsys.readouterr().err == ""


ANSWERED: Any = SimpleNamespace(headers={}, request=None)


class ReadTimeout(Exception):
    """As a library for HTTP raises it, of which huggingface_hub has used three."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (hub_errors.LocalEntryNotFoundError("Cannot reach the hub.\nTry again."), "hub.; look at the network"),
        (hub_errors.RepositoryNotFoundError("404 Client Error.", response=ANSWERED), "no repository that may be read"),
        (hub_errors.GatedRepoError("403 Client Error.", response=ANSWERED), "log in with: hf auth login"),
        (hub_errors.HfHubHTTPError("500 Server Error", response=ANSWERED), "500 Server Error; look at the network"),
        (ReadTimeout(""), "got ReadTimeout: no reason given; look at the network"),
        (OSError(errno.ENOSPC, "No space left on device"), r"free some space, or .*HF_HOME"),
        (RuntimeError("Data processing error: No space left on device (os error 28)"), "free some space"),
    ],
)
def test_a_failed_download_is_one_line(hub: Fake, error: Exception, words: str) -> None:
    def answer(**_options: Any) -> str:
        raise error

    hub(answer)
    with pytest.raises(InvalidInput, match=words) as raised:
        locate(NAME)
    assert "\n" not in str(raised.value)
    assert NAME in str(raised.value)


def test_modelscope_is_asked_where_it_is_wished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONEKERNEL_HUB", "modelscope")
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(InvalidInput, match=r"ONEKERNEL_HUB=modelscope.*pip install modelscope"):
        locate(NAME)
    module = ModuleType("modelscope.hub.snapshot_download")
    vars(module)["snapshot_download"] = lambda name, allow_patterns: tmp_path / name if allow_patterns else None
    for part in ("modelscope", "modelscope.hub"):
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert locate(NAME) == tmp_path / NAME


def test_an_unknown_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEKERNEL_HUB", "another")
    with pytest.raises(InvalidInput, match="ONEKERNEL_HUB as one of huggingface, modelscope, got 'another'"):
        locate(NAME)


# --- the real library, against a hub of one repository on this machine

SHA = "a" * 40
STORED = {"config.json": b"{}", "model.safetensors": bytes(12_000_000), "part/config.json": b"[]", "README.md": b"-"}
ASK = """
import sys
from onekernel.checkpoint import locate
from onekernel.errors import InvalidInput
told = []
try:
    folder = locate(sys.argv[1], progress=lambda *counts: told.append(counts))
    print(sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()), told[-1:])
except InvalidInput as error:
    print(error)
"""


class SmallHub(BaseHTTPRequestHandler):
    """Answers what huggingface_hub asks about somebody/model."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_words: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/somebody/model/tree"):
            files = ({"type": "file", "path": name, "size": len(STORED[name]), "oid": name} for name in STORED)
            self._answer(json.dumps(list(files)).encode())
        elif path.startswith("/api/models/somebody/model"):
            names = [{"rfilename": name} for name in STORED]
            self._answer(json.dumps({"id": "somebody/model", "sha": SHA, "siblings": names}).encode())
        elif "/resolve/" in path:
            name = path.partition(f"{SHA}/")[2]
            self._answer(STORED[name], {"ETag": name.replace("/", "-"), "X-Repo-Commit": SHA})
        else:
            self._answer(b"{}", {"X-Error-Code": "RepoNotFound"}, status=404)

    def _answer(self, body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def test_the_real_library_downloads_and_then_needs_no_network(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), SmallHub)
    environment = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path)}
    for name in ("ONEKERNEL_HUB", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "http_proxy", "HTTP_PROXY"):
        environment.pop(name, None)

    def ask(name: str) -> str:
        command = [sys.executable, "-c", ASK, name]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    files = "['config.json', 'model.safetensors', 'part/config.json']"
    with server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        first, gone = ask("somebody/model"), ask("somebody/gone")
        server.shutdown()
        thread.join()
    assert first == f"{files} [(12000004, 12000004)]"
    assert "no repository that may be read" in gone
    assert ask("somebody/model") == f"{files} []"
    assert "look at the network" in ask("somebody/other")
