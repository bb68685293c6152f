"""What a caller wants built: a name, typed parameters, constants, and a few lines of CUDA.

A request knows nothing of chains, programs or frameworks. It is hashable, and printing it prints the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onekernel.errors import InvalidInput

# CUDA spelling of an element -> dtype of an operand
DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int": "int32",
    "long long": "int64",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
}
ELEMENTS = {dtype: spelling for spelling, dtype in DTYPES.items()}
SCALARS = ("int", "long long", "float")


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter: a scalar ("int", "long long", "float") or a pointer ("const float*", "float16*").

    A tensor given for a pointer must begin at a multiple of `alignment` bytes (0: its element's size) and have at least
    `elements`: a product of whole numbers and names of integer parameters or constants, such as "rows * 256".
    """

    name: str
    type: str
    alignment: int = 0
    elements: str = ""

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or (self.element not in DTYPES if self.pointer else self.type not in SCALARS):
            raise InvalidInput(
                expected=f"a parameter of type {', '.join(SCALARS)} or [const] T* with T of {', '.join(DTYPES)}",
                got=f"{self.name!r} of type {self.type!r}",
                todo="correct the kernel's parameters",
            )

        if (not self.pointer and (self.alignment or self.elements)) or self.alignment & (self.alignment - 1):
            raise InvalidInput(
                expected="an alignment (a power of two) and a number of elements for pointers only",
                got=f"{self.name!r} of type {self.type!r} with {self.alignment} and {self.elements!r}",
                todo="correct the kernel's parameters",
            )

    def count(self, sizes: Mapping[str, object]) -> str:
        """Spell the least number of elements in terms of `sizes`; raises InvalidInput for a name that is not there."""
        factors = [factor.strip() for factor in self.elements.split("*")] if self.elements else []
        for factor in factors:
            if not factor.isdecimal() and factor not in sizes:
                raise InvalidInput(
                    expected=f"a product of numbers and of {', '.join(sizes)} for the elements of {self.name!r}",
                    got=repr(self.elements),
                    todo="name integer parameters or constants",
                )
        return " * ".join(str(sizes.get(factor, factor)) for factor in factors)

    @property
    def pointer(self) -> bool:
        return self.type.endswith("*")

    @property
    def writable(self) -> bool:
        """True when the kernel may write there."""
        return self.pointer and not self.type.startswith("const ")

    @property
    def element(self) -> str:
        """The CUDA spelling of what it points to."""
        return self.type.removesuffix("*").removeprefix("const ").strip()

    @property
    def dtype(self) -> str:
        return DTYPES[self.element if self.pointer else self.type]


@dataclass(frozen=True)
class Line:
    """A line of a kernel body; `origin` names what it was made from, for compile errors."""

    text: str
    origin: str = ""


@dataclass(frozen=True)
class KernelRequest:
    """A kernel to build for one architecture.

    Either `body` (lines inside the kernel; signature and launch bounds are generated) or `source` (a whole CUDA text
    that defines `extern "C" __global__ void name(...)`). Constants become `constexpr` numbers before the kernel.
    """

    name: str
    arch: str
    parameters: tuple[Parameter, ...]
    threads: int
    headers: tuple[str, ...] = ()
    constants: tuple[tuple[str, int | float], ...] = ()
    body: tuple[Line, ...] = ()
    source: str = ""
    min_blocks: int = 0  # blocks per multiprocessor to leave registers for; 0 leaves it to the compiler
    cluster: int = 1
    overlap: bool = False  # it awaits its predecessor before it touches memory, so it may be launched early (sm_90)
    cooperative: bool = False  # its blocks wait for each other, so all of them must be on the GPU at once
    shared: int = 0  # bytes of dynamic shared memory

    def __post_init__(self) -> None:
        for name, value in ((self.name, 0), *self.constants):
            if not name.isidentifier() or not isinstance(value, int | float) or isinstance(value, bool):
                raise InvalidInput(
                    expected="a kernel and constants with the names of variables, the constants int or float",
                    got=f"{name!r} = {value!r}" if name != self.name else repr(name),
                    todo="correct the kernel's name or constants",
                )

    def __str__(self) -> str:
        from onekernel.jit.generate import kernel_text

        return kernel_text(self)
