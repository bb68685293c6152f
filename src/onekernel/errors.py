"""What is raised to users: what was expected, what was got, what to do.

OneKernelError
├── InvalidInput            the user's model, file, option or operand is not usable (exit code 2)
│   ├── MissingExtra        an optional library is needed
│   ├── DoesNotFit          a kernel needs what its device has not: shared memory, room for all its blocks at once
│   └── InvalidOperand      a tensor given to a launch does not fit the kernel's parameter
├── CompileError            generated or hand-written CUDA text did not compile
├── NotReady                a kernel is not loaded, and may not or cannot be built at this moment
├── DeviceError             the driver refused a call
└── EmulationFault          a kernel broke a rule of the machine while it ran on the emulated device
"""

from __future__ import annotations

from typing import Any


class OneKernelError(Exception):
    """The root of every error that OneKernel raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel between processes: a copy is not made of the arguments, which exceptions do not keep."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[OneKernelError], args: tuple[Any, ...], fields: dict[str, Any]) -> OneKernelError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class InvalidInput(OneKernelError):
    """A user's input cannot be used; the message is one line: expected, got, what to do."""

    def __init__(self, *, expected: str, got: str, todo: str) -> None:
        self.expected, self.got, self.todo = expected, got, todo
        super().__init__(f"expected {expected}, got {got}; {todo}")


class MissingExtra(InvalidInput):
    """An optional library is missing; the message holds the exact install line."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(
            expected=f"the library {library!r}",
            got="no such module",
            todo=f"install it with: pip install 'onekernel[{extra}]'",
        )


class DoesNotFit(InvalidInput):
    """A kernel needs more of a device than it has. Another build of the same computation may need less."""


class InvalidOperand(InvalidInput):
    """An operand does not fit the kernel parameter it was given for."""


class CompileError(OneKernelError):
    """CUDA text did not compile. `origin` is the chain node or file and line of the first error."""

    def __init__(self, kernel: str, *, error: str, origin: str, line: str, log: str) -> None:
        self.kernel, self.error, self.origin, self.line, self.log = kernel, error, origin, line, log
        super().__init__(f"kernel {kernel!r} did not compile: {error} [at {origin}]\n    {line}")


class NotReady(OneKernelError):
    """A kernel is not loaded and must not be built or loaded now.

    `key` says what it computes (jit.build.identity_of); `lasting`: waiting will not help.
    """

    def __init__(self, kernel: str, key: str, *, reason: str, todo: str, lasting: bool = False) -> None:
        self.kernel, self.key, self.reason, self.todo, self.lasting = kernel, key, reason, todo, lasting
        super().__init__(f"kernel {kernel!r} (key {key[:16]}) is not ready: {reason}; {todo}")


class DeviceError(OneKernelError):
    """A driver call failed; the message names the call, the driver's own words and what to do. `code` is the status."""

    def __init__(self, message: str, code: int | None = None) -> None:
        self.code = code
        super().__init__(message)


class EmulationFault(OneKernelError):
    """The emulated device stopped a kernel: deadlock, divergent barrier, misaligned access."""
