"""The verb `voices`: voices that were made from recordings, and those that a model has."""

from __future__ import annotations

import json

import click

from onekernel.cli.console import progress, table, terminal


@click.group(name="voices")
def command() -> None:
    """Voices for `onekernel speak --voice`."""


@command.command(name="list")
@click.option("--model", metavar="FOLDER|HUB-ID", help="Also list the voices of this model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_voices(model: str | None, as_json: bool) -> int:
    """List voices that were added, and those of a model."""
    from onekernel.speech.voice import store

    found = dict.fromkeys(store.names(store.default_folder()), "added")
    if model is not None:
        import onekernel

        with progress("loading the model"):
            found |= {name: "of the model" for name in onekernel.load_speech(model).voices if name not in found}
    if as_json:
        click.echo(json.dumps(found))
    else:
        terminal().print(table("voices", ("voice", "from"), found.items()) if found else "no voices were added")
    return 0


@command.command(name="add")
@click.argument("name")
@click.argument("recording")
@click.option("--text", default="", help="The words of the recording, which make the copy better.")
@click.option("--model", metavar="FOLDER|HUB-ID", help="A base checkpoint; else the setting ONEKERNEL_MODEL.")
def add(name: str, recording: str, text: str, model: str | None) -> int:
    """Make a voice called NAME from RECORDING: 3 to 15 s of clear speech."""
    import onekernel
    from onekernel.speech.voice import store

    store.check_name(name)
    with progress("loading the model"):
        speaker = onekernel.load_speech(model)
    with progress("hearing the recording"):
        place = store.save(speaker.read_voice(name, recording, text), store.default_folder())
    click.echo(f"{name}: {place}")
    return 0


@command.command(name="remove")
@click.argument("name")
def remove(name: str) -> int:
    """Delete the voice called NAME."""
    from onekernel.speech.voice import store

    store.remove(name, store.default_folder())
    click.echo(f"{name}: removed")
    return 0
