"""Measure a source tree: who imports whom, how long things are, what is forbidden everywhere.

Each check takes a folder that holds one package and returns findings, one line each; it judges by the rules
that it is given. It knows no rule of OneKernel: those are data in test_architecture.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path


@dataclass(frozen=True)
class Edge:
    """One import statement of one name; `deferred` when importing the importer does not run it."""

    importer: str
    imported: str
    name: str
    line: int
    deferred: bool


@dataclass(frozen=True)
class Package:
    """A package on disk: `root` is its own folder, and its name is the folder's."""

    root: Path

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """Parse every module, by dotted name."""
        return {self._name(path): ast.parse(path.read_text("utf-8")) for path in self.files("*.py")}

    def files(self, pattern: str) -> list[Path]:
        """List the files of a kind, in order."""
        return sorted(path for path in self.root.rglob(pattern) if "__pycache__" not in path.parts)

    def _name(self, path: Path) -> str:
        parts = path.relative_to(self.root.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def room(self, module: str) -> str:
        """Name the room of a module: the first name below the package, or the package itself."""
        parts = module.split(".")
        return parts[1] if len(parts) > 1 else parts[0]

    @cached_property
    def edges(self) -> list[Edge]:
        """List every import, deferred ones and those for type checking included."""
        return [edge for module, tree in self.trees.items() for edge in self._imports(module, tree)]

    def _imports(self, module: str, tree: ast.Module) -> Iterator[Edge]:
        inside = {id(child) for node in ast.walk(tree) if _defers(node) for child in ast.walk(node)}
        for node in ast.walk(tree):
            deferred = id(node) in inside
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Edge(module, alias.name, "", node.lineno, deferred)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(module, node)
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    target, name = (inner, "") if inner in self.trees else (base, alias.name)
                    yield Edge(module, target, name, node.lineno, deferred)

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        is_package = any(name.startswith(module + ".") for name in self.trees)
        parts = module.split(".") + ([""] if is_package else [])
        return ".".join([*parts[: len(parts) - node.level], *filter(None, [node.module])])


def _defers(node: ast.AST) -> bool:
    checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    return checking or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def forbidden_edges(package: Package, allowed: Mapping[str, frozenset[str]]) -> list[str]:
    """Find imports between rooms that `allowed` does not list, and rooms that it does not know."""
    findings = []
    for edge in package.edges:
        if edge.imported.split(".")[0] != package.root.name:
            continue
        here, there = package.room(edge.importer), package.room(edge.imported)
        if here != there and there not in allowed.get(here, frozenset()):
            findings.append(f"{edge.importer}:{edge.line} imports {edge.imported}: {here} -> {there}")
    return findings


def cycles(package: Package) -> list[str]:
    """Find a cycle among the modules by the imports that run when a module is imported."""
    needs: dict[str, set[str]] = {name: set() for name in package.trees}
    for edge in package.edges:
        if edge.imported in needs and edge.imported != edge.importer and not edge.deferred:
            needs[edge.importer].add(edge.imported)
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def forbidden_roots(package: Package, roots: frozenset[str]) -> list[str]:
    """Find imports of top-level packages that the product must never see, such as its own tests."""
    return [
        f"{edge.importer}:{edge.line} imports {edge.imported}"
        for edge in package.edges
        if edge.imported.split(".")[0] in roots
    ]


def strayed_libraries(package: Package, homes: Mapping[str, frozenset[str]]) -> list[str]:
    """Find imports of a heavy library outside the rooms that are its home."""
    findings = []
    for edge in package.edges:
        library = edge.imported.split(".")[0]
        if library in homes and package.room(edge.importer) not in homes[library]:
            findings.append(f"{edge.importer}:{edge.line} imports {edge.imported}")
    return findings


def undeferred_edges(package: Package, room: str, may_load: frozenset[str]) -> list[str]:
    """Find imports of other rooms that `room` does at module level instead of inside a function."""
    return [
        f"{edge.importer}:{edge.line} imports {edge.imported} at module level"
        for edge in package.edges
        if package.room(edge.importer) == room
        and edge.imported.split(".")[0] == package.root.name
        and package.room(edge.imported) not in may_load | {room}
        and not edge.deferred
    ]


def star_imports(package: Package) -> list[str]:
    """Find `from x import *`."""
    return [f"{edge.importer}:{edge.line} import *" for edge in package.edges if edge.name == "*"]


def environment_readers(package: Package, owner: str) -> list[str]:
    """Find modules other than `owner` that touch os.environ or os.getenv."""
    names = {"environ", "environb", "getenv", "putenv"}
    findings = []
    for module, tree in package.trees.items():
        for node in ast.walk(tree):
            attribute = isinstance(node, ast.Attribute) and node.attr in names
            imported = isinstance(node, ast.ImportFrom) and node.module == "os"
            if attribute or (imported and names & {alias.name for alias in node.names}):
                findings.append(f"{module}:{node.lineno} reads the environment")
    return [finding for finding in findings if not finding.startswith(f"{owner}:")]


def public_names(package: Package) -> dict[str, set[str]]:
    """List the names each room offers: its own `__all__`, or else what other rooms import from it."""
    offered: dict[str, set[str]] = {}
    for edge in package.edges:
        if edge.imported.split(".")[0] != package.root.name:
            continue
        here, there = package.room(edge.importer), package.room(edge.imported)
        if here != there:
            offered.setdefault(there, set()).add(edge.name or edge.imported)
    for module, tree in package.trees.items():
        declared = _declared(tree)
        if declared and module == f"{package.root.name}.{package.room(module)}":
            offered[package.room(module)] = declared
    return offered


def _declared(tree: ast.Module) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def python_sizes(package: Package) -> Iterator[tuple[str, str, int]]:
    """Yield (what, where, size) for every Python file and function."""
    for path in package.files("*.py"):
        yield "python file", str(path.relative_to(package.root)), len(path.read_text("utf-8").splitlines())
    for module, tree in package.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                where = f"{module}.{node.name}"
                yield "python function", where, (node.end_lineno or node.lineno) - node.lineno + 1
                yield "parameters", where, _parameters(node)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    own = bool(named) and named[0].arg in ("self", "cls")
    return len(named) - own + bool(arguments.vararg) + bool(arguments.kwarg)


def folder_sizes(package: Package) -> Iterator[tuple[str, str, int]]:
    """Yield the number of source files that lie directly in each folder."""
    folders = {path.parent for path in package.files("*") if path.is_file()}
    for folder in sorted(folders):
        count = sum(path.is_file() for path in folder.iterdir())
        yield "files in a folder", str(folder.relative_to(package.root)), count


def cuda_sizes(package: Package) -> Iterator[tuple[str, str, int]]:
    """Yield (what, where, size) for every CUDA or C++ file and each function body in it."""
    for pattern in ("*.cuh", "*.hpp", "*.cpp"):
        for path in package.files(pattern):
            text = path.read_text("utf-8")
            where = str(path.relative_to(package.root))
            yield "cuda file", where, len(text.splitlines())
            for head, lines in function_bodies(text):
                kind = "kernel body" if "__global__" in head else "device function"
                yield kind, f"{where}: {' '.join(head.split())[-60:]}", lines


_NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'  # comments, strings
    r"|'(?:\\.|[^'\\\n])'|^[ \t]*#(?:\\.|[^\\\n])*",  # characters, directives with their continuations
    re.S | re.M,
)
_HEAD = re.compile(r"\)\s*(const|noexcept|override|mutable|->\s*[\w:<>&*\s]+|:\s*[^;{}]*)?\s*$")


def function_bodies(text: str) -> list[tuple[str, int]]:
    """List (head, lines) of the outermost function bodies: braces that follow a parameter list."""
    clean = _NOISE.sub(lambda match: "\n" * match.group().count("\n"), text)
    found, start, depth, head = [], 0, 0, ""
    for position, char in enumerate(clean):
        if char == "{":
            if not depth and not _HEAD.search(clean[start:position]):
                start = position + 1  # a namespace, a struct, an initialiser: look inside
                continue
            head, depth = (head if depth else clean[start:position]), depth + 1
            if depth == 1:
                start = position
        elif char == "}" and depth:
            depth -= 1
            if not depth:
                found.append((head, clean.count("\n", start, position) + 1))
                start = position + 1
        elif char in ";}" and not depth:
            start = position + 1
    return found
