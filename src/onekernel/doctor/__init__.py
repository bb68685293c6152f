"""What this machine has and lacks for building and running kernels, and what to do about it."""

from __future__ import annotations

from onekernel.doctor.examine import doctor
from onekernel.doctor.health import Check, Health

__all__ = ["Check", "Health", "doctor"]
