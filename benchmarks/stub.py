"""The stub driver of the tests, for what can be measured without a GPU."""

from __future__ import annotations

import subprocess
import sys


def run_again() -> int:
    """Run this command line once more in a process on the stub; return its exit code."""
    import stub_driver

    command = [sys.executable, "-m", "benchmarks", *sys.argv[1:]]
    return subprocess.run(command, env=stub_driver.environment(name="NVIDIA H200 (stub)"), check=False).returncode
