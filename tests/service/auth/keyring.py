"""Files of API keys for tests: each key's secret is chosen here, the file knows its digest."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any


def entry(secret: str, tenant: str, *scopes: str, **fields: Any) -> dict[str, Any]:
    """A key. ``expires_s``: seconds from now, negative for the past; other fields as they are."""
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
    """Write the file as an editor would: in place."""
    path.write_text(json.dumps({"tenants": tenants, "keys": list(keys)}))
    return path


def bearer(secret: str) -> dict[str, str]:
    """The header of most clients."""
    return {"Authorization": f"Bearer {secret}"}
