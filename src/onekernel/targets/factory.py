"""`package.module:factory` and `file.py:factory`: a function of the user's that makes what is to be verified."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from onekernel.errors import InvalidInput, OneKernelError

_NAMED = re.compile(r"(?P<where>[\w.]+|.+\.py):(?P<name>[\w.]+)")


def split(text: str) -> tuple[str, str] | None:
    """Take `where:name` apart; None for anything else. A file with a space in its path must be there."""
    match = _NAMED.fullmatch(text)
    if match is None or (" " in text and not Path(match["where"]).is_file()):
        return None
    return match["where"], match["name"]


def factory_of(where: str, name: str) -> Callable[[], Any]:
    """Return a function that calls the factory. The current directory can be imported from meanwhile.

    What the user's code raises becomes InvalidInput, at the import here and later at each call.
    """
    named = f"{where}:{name}"
    with _as_input(named):
        module = _file(Path(where)) if where.endswith(".py") else import_module(where)
        factory = reduce(getattr, name.split("."), module)

    def make() -> Any:
        with _as_input(named):
            return factory()  # type: ignore[operator]

    return make


@contextmanager
def _as_input(named: str) -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    except OneKernelError:
        raise
    except (Exception, SystemExit) as error:  # what a user's code raises has no root
        got, todo = f"{type(error).__name__}: {error}", "call it in Python to see where"
        raise InvalidInput(expected=f"a function without arguments at {named}", got=got, todo=todo) from error
    finally:
        sys.path.remove(here)


def _file(path: Path) -> ModuleType:
    """Import a file under its whole path: two files of one name are two modules."""
    spec = spec_from_file_location(str(path.resolve()), path)
    assert spec is not None  # the name ends with .py
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
