"""Folders for the temporary files of child processes, removed even after a parent was killed.

A parent holds the lock of its folder. A folder without a holder was left by a parent that was
killed, and the next child to be started anywhere by the same user removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "talkwire-child-"


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """Make a folder, and delete it after the block. Raises OSError."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    path, lock = _make()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[str, int]:
    """Make a folder and lock it. Another process may remove it before it is locked."""
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX)
        if (lock := _lock(path)) is not None:
            if os.path.isdir(path):
                return path, lock
            os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of this user that no living process has locked."""
    for path in parent.glob(f"{_PREFIX}*"):
        lock = _lock(str(path))
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _lock(path: str) -> int | None:
    """Return the descriptor of a locked folder; None if it is another's, or is gone.

    The descriptor is closed in children, so that only this process holds the lock.
    """
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder
    except OSError:
        pass
    os.close(folder)
    return None
