"""The verb `doctor`: what works here, what does not, and what to do."""

from __future__ import annotations

import json

import click

from onekernel.cli.console import NO, YES, progress, terminal

MARKS = {"ok": ("green", "ok     "), "note": ("yellow", "note   "), "problem": ("red", "PROBLEM")}


@click.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def command(as_json: bool) -> int:
    """Examine this machine: driver, NVRTC, GPUs, cache, compiler. Exit code 0: kernels can be built and run here."""
    import onekernel

    with progress("examining"):
        health = onekernel.doctor()
    if as_json:
        click.echo(json.dumps(health.record(), indent=1))
        return YES if health.usable else NO
    screen = terminal()
    for check in health.checks:
        colour, mark = MARKS[check.state]
        screen.print(f"[{colour}]{mark}[/]  [bold]{check.name}[/]", end="  ")
        screen.print(check.found, markup=False, soft_wrap=True)
        if check.advice:
            screen.print(f"         -> {check.advice}", markup=False, soft_wrap=True)
    tried = [check.name for check in health.checks if check.name.startswith("run ") and check.state == "ok"]
    screen.print(f"usable: kernels {' and '.join(tried)}" if health.usable else "not usable: no kernel can run here")
    return YES if health.usable else NO
