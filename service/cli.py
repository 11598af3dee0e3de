"""Command line: ``talkwire serve | say | voices | batch | keys | convert | version``.

Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from service import Exit, __version__
from service.auth.keys import KeyFileError, Scope, issue, listed
from service.auth.keys import revoke as revoke_key

app = typer.Typer(
    name="talkwire",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
keys = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)
app.add_typer(keys, name="keys")

#: Options of several commands. A flag's ``metavar`` is empty, or its help would show "<bool>".
ApiKey = Annotated[
    str | None, typer.Option(help="The service's API key.", envvar="TALKWIRE_API_KEY")
]
Voice = Annotated[str | None, typer.Option(help="The voice's name.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy.")]
Seed = Annotated[int | None, typer.Option(help="The same seed says it the same way.")]
DEFAULT_URL = "http://127.0.0.1:8000"
Url = Annotated[
    str,
    typer.Option(
        help="Where the service is: http, https, ws or wss, or host:port.", envvar="TALKWIRE_URL"
    ),
]
Scene = Annotated[
    str | None, typer.Option(help="Where and how it is spoken, for models that take a scene.")
]
Instructions = Annotated[
    str | None, typer.Option(help="How it is spoken, in words, for models that take it.")
]
Pronunciations = Annotated[
    list[str] | None,
    typer.Option(help="A dictionary of pronunciations of the server; may be repeated."),
]


def fail(message: object, code: Exit) -> typer.Exit:
    """Print an error to stderr, and return the exception to raise."""
    typer.echo(f"talkwire: {message}", err=True)
    return typer.Exit(code)


@contextlib.contextmanager
def failing(code: Exit, *kinds: type[Exception]) -> Iterator[None]:
    """End the program with ``code`` if the block raises one of ``kinds``."""
    try:
        yield
    except kinds as error:
        raise fail(error, code) from error


def show(text: str, *, nl: bool = True) -> None:
    """Print a result. A reader that has gone ends the program in silence, as it does others."""
    try:
        typer.echo(text, nl=nl)
    except BrokenPipeError:
        raise
    except OSError as error:  # such as a full disk
        raise fail(f"cannot write standard output: {error.strerror}", Exit.FAILED) from error


def read_stdin() -> bytes:
    """Read standard input to its end. Raises typer.Exit."""
    if sys.stdin is None:
        raise fail("standard input is closed", Exit.USAGE)
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise fail(f"cannot read standard input: {error.strerror}", Exit.USAGE) from error


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        show(__version__)
        raise typer.Exit


@app.callback()
def talkwire(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            callback=_print_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Streaming text-to-speech: speech while the text is still being written."""


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="'embedded', a checkpoint's folder, or a hub id like org/name."),
    ] = None,
    wyoming: Annotated[
        int | None,
        typer.Option(help="Port for Home Assistant's Wyoming; off without it, 10200 is usual."),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Start the service. Each setting can also be given as TALKWIRE_NAME in the environment."""
    # a request to read the keys again must not end a service that has not read them yet
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # as a container's first process, one without a handler would never get it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    # by habit, such as of logrotate, they mean that files are to be opened again; there are none
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    from service.listening import Unable, open_listeners
    from service.settings import SettingsError, load_settings

    with failing(Exit.USAGE, SettingsError):
        settings = load_settings(
            config, host=host, port=port, wyoming_port=wyoming, model=model, log_level=log_level
        )
    with failing(Exit.FAILED, Unable), open_listeners(settings) as listeners:
        from service.server import serve_until_stopped

        serve_until_stopped(settings, listeners)


@app.command()
def say(
    text: Annotated[str, typer.Argument(help="What to say; '-' reads standard input.")],
    out: Annotated[Path | None, typer.Option(help="Write a WAV file.")] = None,
    play: Annotated[
        bool,
        typer.Option(
            "--play", metavar="", help="Play it while it comes; on a terminal the default."
        ),
    ] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    voice: Voice = None,
    temperature: Temperature = None,
    seed: Seed = None,
    mode: Annotated[str, typer.Option(help="'chunked' streams, 'whole' decodes once.")] = "chunked",
    lookahead: Annotated[
        int | None, typer.Option(help="Frames of lookahead; the receptive field is exact.")
    ] = None,
    timestamps: Annotated[
        Path | None,
        typer.Option(help="Write when each word is spoken: to a .srt or .json file, or '-'."),
    ] = None,
    scene: Scene = None,
    instructions: Instructions = None,
    pronunciations: Pronunciations = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print the figures as JSON.")
    ] = False,
) -> None:
    """Speak a text through a running service, and print its latency and underruns."""
    import asyncio

    from service.say import SayError, can_play, run_say
    from talkwire_client import ChunkingOptions, SpeechOptions
    from talkwire_client.captions import as_lines

    if text == "-":
        try:
            text = read_stdin().decode(sys.stdin.encoding)
        except UnicodeDecodeError as error:
            raise fail("the text is not UTF-8", Exit.USAGE) from error
    options: SpeechOptions = {
        "voice": voice,
        "temperature": temperature,
        "seed": seed,
        "mode": mode,  # type: ignore[typeddict-item]  # run_say checks it
        "chunking": ChunkingOptions(first_lookahead_frames=lookahead, lookahead_frames=lookahead),
        "scene": scene,
        "instructions": instructions,
        "pronunciations": pronunciations or None,
    }
    is_silent = out is None and timestamps is None and not as_json
    play = play or (is_silent and can_play())
    saying = run_say(
        text, url, out, play=play, timestamps=timestamps, api_key=api_key, speech=options
    )
    try:
        result = asyncio.run(saying)
    except SayError as error:
        raise fail(error, error.exit_code) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if result.warning is not None:
        typer.echo(f"talkwire: {result.warning}", err=True)
    if is_silent and not play:
        typer.echo("talkwire: nothing was played or written: use --play or --out FILE", err=True)
    if result.words is not None and str(timestamps) == "-" and not as_json:
        show(as_lines(result.words), nl=False)
    show(json.dumps(result.as_dict()) if as_json else result.as_text())


@app.command()
def voices(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")] = False,
) -> None:
    """List the voices of a running service, the default first."""
    from msgspec import to_builtins

    from service.batch import BatchError, NoServiceError, served_voices

    try:
        every = served_voices(url, api_key)
    except NoServiceError as error:
        raise fail(error, Exit.NO_SERVER) from error
    except BatchError as error:
        raise fail(error, Exit.REFUSED) from error
    if as_json:
        show(json.dumps(to_builtins(every), indent=1))
        return
    width = max(len(voice.name) for voice in every)
    for voice in every:
        told = (voice.description, voice.language, "default" if voice.default else None)
        show(f"{voice.name:{width}}  {'  '.join(filter(None, told))}".rstrip())


@app.command()
def batch(
    texts: Annotated[Path, typer.Argument(help="A file with a text on each line; '-' is stdin.")],
    out: Annotated[Path, typer.Option(help="The folder for the audio and results.jsonl.")],
    voice: Voice = None,
    ref_audio: Annotated[
        Path | None, typer.Option(help="A clip to speak like, instead of a voice.")
    ] = None,
    ref_text: Annotated[str | None, typer.Option(help="What is said in the clip.")] = None,
    temperature: Temperature = None,
    seed: Seed = None,
    scene: Scene = None,
    instructions: Instructions = None,
    captions: Annotated[
        Literal["srt", "vtt", "json"] | None,
        typer.Option(help="Write captions beside each audio file."),
    ] = None,
    pronunciations: Pronunciations = None,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Texts at a time.")] = 4,
    url: Annotated[
        str | None,
        typer.Option(help="A running service; without it, engines are started for the batch."),
    ] = None,
    api_key: ApiKey = None,
    config: Annotated[Path | None, typer.Option(help="Settings of the engines: TOML.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Of the engines: 'embedded', a folder, or a hub id.")
    ] = None,
) -> None:
    """Speak each line of a file into a WAV file; complete ones are not made again.

    Results are printed as lines of JSON.
    """
    from service.batch import BatchError, BatchOptions, OptionError, read_items, run_command
    from service.settings import SettingsError, load_settings

    if url is not None and (config is not None or model is not None):
        raise fail("--config and --model are of engines, and --url has its own", Exit.USAGE)
    try:
        data = read_stdin() if str(texts) == "-" else texts.read_bytes()
        clip = None if ref_audio is None else base64.b64encode(ref_audio.read_bytes()).decode()
    except OSError as error:
        raise fail(f"cannot read {error.filename}: {error.strerror}", Exit.USAGE) from error
    # there are no other clients to keep slots for
    alone: dict[str, Any] = {"admission": "fixed", "max_contexts": concurrency}
    with failing(Exit.USAGE, SettingsError):
        settings = load_settings(config, model=model, **alone) if url is None else None
    speech = {
        "voice": voice,
        "ref_audio": clip,
        "ref_text": ref_text,
        "temperature": temperature,
        "seed": seed,
        "scene": scene,
        "instructions": instructions,
        "pronunciations": pronunciations or None,
    }
    name = settings.model if settings else None
    options = BatchOptions(out, speech, concurrency, name, captions)
    try:
        with failing(Exit.USAGE, OptionError), failing(Exit.FAILED, BatchError):
            failed = run_command(read_items(data), options, settings, url, api_key)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if failed:
        raise fail(f"{failed} texts were not spoken; see {out}/results.jsonl", Exit.REFUSED)


@app.command()
def convert(
    folder: Annotated[Path, typer.Argument(help="A model's folder with codec.pth or model.pth.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; beside the pickle without it.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", metavar="", help="Replace what is there.")
    ] = False,
) -> None:
    """Convert a codec's pickle to safetensors; it is read in a sandboxed process."""
    from codec import convert as conversion
    from codec.family import CheckpointError

    with failing(Exit.FAILED, CheckpointError):
        done = conversion.convert(folder, out, overwrite=overwrite)
    if done.family.licence:
        typer.echo(done.family.licence, err=True)
    show(f"{done.file}: {done.tensors} tensors ({done.left_out} not needed, left out)")


@app.command()
def version() -> None:
    """Print the version."""
    show(__version__)


File = Annotated[
    Path, typer.Option("--file", help="The file of keys.", envvar="TALKWIRE_API_KEYS_FILE")
]


@keys.command()
def create(
    file: File,
    tenant: Annotated[str, typer.Option(help="Whose key it is.")],
    scope: Annotated[
        list[Scope] | None, typer.Option(help="What it is for; may be given several times.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="When it ends: 90d, 12h, or an ISO 8601 date.")
    ] = None,
    max_contexts: Annotated[int | None, typer.Option(help="Contexts at once.")] = None,
    max_connections: Annotated[int | None, typer.Option(help="WebSockets at once.")] = None,
    characters_per_minute: Annotated[int | None, typer.Option(help="Text per minute.")] = None,
) -> None:
    """Create a key and print it. It cannot be shown again: only its digest is stored."""
    with failing(Exit.FAILED, KeyFileError), failing(Exit.USAGE, ValueError):
        key_id, secret = issue(
            file,
            tenant,
            scope or [Scope.SPEAK],
            expires,
            max_contexts=max_contexts,
            max_connections=max_connections,
            characters_per_minute=characters_per_minute,
        )
    typer.echo(f"{key_id} for {tenant}; it cannot be shown again:", err=True)
    show(secret)


@keys.command(name="list")
def list_keys(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")] = False,
) -> None:
    """List the keys, without their secrets."""
    with failing(Exit.FAILED, KeyFileError):
        rows = listed(file)
    if as_json:
        show(json.dumps(rows, indent=1))
        return
    for row in rows:
        limits = " ".join(f"{name}={value}" for name, value in row["limits"].items())
        ends = f"until {row['expires_at']}" if row["expires_at"] else ""
        told = (row["id"], row["tenant"], row["state"], ",".join(row["scopes"]), ends, limits)
        show("  ".join(part for part in told if part))


@keys.command()
def revoke(
    file: File, key_id: Annotated[str, typer.Argument(help="As 'talkwire keys list' shows it.")]
) -> None:
    """Revoke a key, and close the sockets that were opened with it."""
    with failing(Exit.FAILED, KeyFileError):
        revoke_key(file, key_id)
    typer.echo(f"{key_id} is revoked.", err=True)


def main() -> None:
    """Entry point of the console script."""
    # a terminal's encoding may lack a character of a text or of a file's name
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    app()
