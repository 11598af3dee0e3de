"""``talkwire keys``: makes, lists and revokes API keys in the file that the service reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from service.auth.keys import Limits, Scope

keys = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)
_FAILED, _USAGE = 1, 2

File = Annotated[
    Path, typer.Option("--file", help="The file of keys.", envvar="TALKWIRE_API_KEYS_FILE")
]


def _fail(error: Exception, code: int = _FAILED) -> typer.Exit:
    typer.echo(f"talkwire: {error}", err=True)
    return typer.Exit(code)


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
    """Make a key and print it, this once: only its digest is kept."""
    from service.auth.issuing import issue
    from service.auth.key_file import KeyFileError

    limits = Limits(max_contexts, None, max_connections, characters_per_minute)
    try:
        key_id, secret = issue(file, tenant, scope or [Scope.SPEAK], expires, limits)
    except KeyFileError as error:
        raise _fail(error) from error
    except ValueError as error:
        raise _fail(error, _USAGE) from error
    typer.echo(f"{key_id} for {tenant}; it cannot be shown again:", err=True)
    typer.echo(secret)


@keys.command(name="list")
def list_keys(
    file: File, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """List the keys, without anything that would open a door."""
    from service.auth.issuing import listed
    from service.auth.key_file import KeyFileError

    try:
        rows = listed(file)
    except KeyFileError as error:
        raise _fail(error) from error
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        limits = " ".join(f"{name}={value}" for name, value in row["limits"].items())
        ends = f"until {row['expires_at']}" if row["expires_at"] else ""
        told = (row["id"], row["tenant"], row["state"], ",".join(row["scopes"]), ends, limits)
        typer.echo("  ".join(part for part in told if part))


@keys.command()
def revoke(
    file: File, key_id: Annotated[str, typer.Argument(help="As 'talkwire keys list' shows it.")]
) -> None:
    """Revoke a key: it opens nothing any more, and sockets that it opened are closed."""
    from service.auth import issuing
    from service.auth.key_file import KeyFileError

    try:
        issuing.revoke(file, key_id)
    except KeyFileError as error:
        raise _fail(error) from error
    typer.echo(f"{key_id} is revoked.", err=True)
