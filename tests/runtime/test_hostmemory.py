"""How much host memory is free: the least of what the machine and every control group leave."""

from pathlib import Path

import pytest

from slackswap_opt.runtime.hostmemory import available


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal:  2000 kB\nMemFree: 1 kB\nMemAvailable:  1000 kB\n"}
SECOND = {
    "proc/self/cgroup": "0::/outer/inner\n",
    "sys/fs/cgroup/outer/memory.max": "700000\n",
    "sys/fs/cgroup/outer/memory.current": "300000\n",
    "sys/fs/cgroup/outer/inner/memory.max": "max\n",
    "sys/fs/cgroup/outer/inner/memory.current": "5\n",
}
FIRST = {
    "proc/self/cgroup": "5:cpu:/\n4:memory:/job\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "123\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "600000\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "500000\n",
    "sys/fs/cgroup/memory/job/memory.stat": "cache 9\ninactive_file 50000\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (MACHINE, 1_024_000),
        (MACHINE | SECOND, 400_000),
        (SECOND, 400_000),
        # Cached files give way: 600000 - 500000 + 50000.
        (MACHINE | FIRST, 150_000),
    ],
    ids=["unknown", "machine", "second interface", "group only", "first interface"],
)
def test_available(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    assert available(system(tmp_path, files)) == expected


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    over = SECOND | {"sys/fs/cgroup/outer/memory.current": "800000\n"}
    assert available(system(tmp_path, MACHINE | over)) == 0


def test_this_machine_has_some() -> None:
    free = available()
    assert free is None or free > 0
