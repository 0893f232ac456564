"""How much host memory there is for copies: what the machine has to spare, and what a container allows."""

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def available(root: Path = _ROOT) -> int | None:
    """Return the bytes of host memory that may still be used, or None where the system does not say.

    Parameters
    ----------
    root
        Where the file system begins.
    """
    return min((size for size in (_spare(root), *_allowed(root)) if size is not None), default=None)


def _spare(root: Path) -> int | None:
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _allowed(root: Path) -> Iterator[int | None]:
    """Yield what each control group around this process leaves, in either version of the interface."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, limit, usage = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top, limit, usage = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            yield _left(folder, limit, usage)
            if folder == top:
                break


def _left(folder: Path, limit: str, usage: str) -> int | None:
    most, used = _read(folder / limit).strip(), _read(folder / usage).strip()
    if not most.isdigit() or not used.isdigit():
        return None
    # Cached files count as used, but give way.
    cached = sum(
        int(value)
        for name, _, value in (line.partition(" ") for line in _read(folder / "memory.stat").splitlines())
        if name == "inactive_file"
    )
    return max(0, int(most) - int(used) + cached)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
