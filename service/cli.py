"""``talkwire``: serve, say, keys, version. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import asyncio
import json
import sys
from enum import IntEnum
from pathlib import Path
from typing import Annotated

import typer

from service import __version__
from service.keys_cli import keys

app = typer.Typer(
    name="talkwire",
    help="Streaming text-to-speech: speech while the text is still being written.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(keys, name="keys")


class Exit(IntEnum):
    """Exit codes; 0 is success and 2, as everywhere, wrong usage."""

    FAILED = 1
    USAGE = 2
    NO_SERVER = 3
    REFUSED = 4


def fail(message: str, code: Exit) -> typer.Exit:
    """Say on stderr what went wrong; raise what is returned."""
    typer.echo(f"talkwire: {message}", err=True)
    return typer.Exit(code)


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="'embedded', a checkpoint's folder, or a hub id like org/name."),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Start the service. Every setting can also be given as TALKWIRE_NAME."""
    from service.serve import Unable, serve_until_stopped
    from service.settings import SettingsError, load_settings

    try:
        settings = load_settings(config, host=host, port=port, model=model, log_level=log_level)
    except SettingsError as error:
        raise fail(str(error), Exit.USAGE) from error
    try:
        serve_until_stopped(settings)
    except Unable as error:
        raise fail(str(error), Exit.FAILED) from error


@app.command()
def say(
    text: Annotated[str, typer.Argument(help="What to say; '-' reads standard input.")],
    out: Annotated[Path | None, typer.Option(help="Write a WAV file.")] = None,
    play: Annotated[bool, typer.Option("--play", help="Play it while it comes.")] = False,
    url: Annotated[
        str, typer.Option(help="Where the service is.", envvar="TALKWIRE_URL")
    ] = "ws://127.0.0.1:8000/v1/tts/stream",
    api_key: Annotated[
        str | None, typer.Option(help="The service's API key.", envvar="TALKWIRE_API_KEY")
    ] = None,
    voice: Annotated[str | None, typer.Option(help="The voice's name.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed says it the same way.")] = None,
    mode: Annotated[str, typer.Option(help="'chunked' streams, 'whole' decodes once.")] = "chunked",
    lookahead: Annotated[
        int | None, typer.Option(help="Frames of lookahead; the receptive field is exact.")
    ] = None,
    timestamps: Annotated[
        Path | None,
        typer.Option(help="Write when each word is spoken: to a .srt or .json file, or '-'."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Say something through a running service, and print how it went."""
    from clients.captions import as_lines
    from clients.say import SayError, SayOptions, run_say

    if text == "-":
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError as error:
            raise fail("the text is not UTF-8", Exit.USAGE) from error
    options = SayOptions(
        text=text,
        url=url,
        api_key=api_key,
        out=out,
        play=play,
        voice=voice,
        temperature=temperature,
        seed=seed,
        mode=mode,
        lookahead_frames=lookahead,
        timestamps=timestamps,
    )
    try:
        result = asyncio.run(run_say(options))
    except SayError as error:
        raise fail(str(error), Exit(error.exit_code)) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if result.words is not None and str(timestamps) == "-" and not as_json:
        typer.echo(as_lines(result.words), nl=False)
    typer.echo(json.dumps(result.as_dict()) if as_json else result.as_text())


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """The console script's entry."""
    app()
