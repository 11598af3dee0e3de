"""API key files for tests, which choose the secrets; the files hold their digests."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any


def entry(secret: str, tenant: str, *scopes: str, **fields: Any) -> dict[str, Any]:
    """Make a key's entry. ``expires_s``: seconds from now, negative for the past."""
    if (seconds := fields.pop("expires_s", None)) is not None:
        fields["expires_at"] = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    return {
        "id": f"key_{secret}",
        "tenant": tenant,
        "sha256": hashlib.sha256(secret.encode()).hexdigest(),
        "scopes": list(scopes) or ["speak"],
        **fields,
    }


def write_keys(path: Path, *keys: dict[str, Any], **tenants: dict[str, Any]) -> Path:
    """Write the file in place, as an editor does."""
    path.write_text(json.dumps({"tenants": tenants, "keys": list(keys)}))
    return path


def bearer(secret: str) -> dict[str, str]:
    """Make the header that most clients send."""
    return {"Authorization": f"Bearer {secret}"}
