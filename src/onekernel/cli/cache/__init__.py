"""The verb `cache`: compiled kernels that are kept, and carrying them to other machines."""

from __future__ import annotations

import click

from onekernel.cli.cache.carry import load, pack
from onekernel.cli.cache.look import clear, list_, show


@click.group(name="cache", commands=[list_, show, pack, load, clear])
def command() -> None:
    """Look at compiled kernels, and carry them to other machines."""
