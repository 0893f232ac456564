"""Temporary folders that leave nothing behind, not even after the process that made them was killed."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "slackswap-solve-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a folder of its own to the caller, and remove it afterwards; remove what killed processes left first.

    A folder in use is locked, and the system drops the lock of a process that ends however it ends.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    folder, lock = _locked_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _lock(folder)
        # Between its creation and its lock another process may have taken the folder for an abandoned one.
        if lock is not None and folder.exists():
            return folder, lock
        if lock is not None:
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Return the descriptor that holds the lock of a folder, or None if another one holds it or it is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        lock = None
        with suppress(OSError):
            lock = _lock(folder) if folder.stat(follow_symlinks=False).st_uid == os.getuid() else None
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
