"""The README tells the truth: its commands parse, its lines run, its picture and links exist, its table is what is printed."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slackswap_opt import Instance, Schedule, cli, simulate

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def planned(table: str) -> list[list[str]]:
    """The words of each row but the last two: the time that a machine takes to plan."""
    rows = [line.split()[:-2] for line in table.splitlines()]
    return [row for row in rows if row]


def commands() -> list[str]:
    """Every call of the command in the README, one a line or chained."""
    parts = [part.strip() for block in blocks("sh") for line in block.splitlines() for part in line.split("&&")]
    return [part for part in parts if "slackswap " in part]


@pytest.mark.parametrize("command", commands())
def test_commands_are_understood(command: str) -> None:
    assert cli.parser().parse_args(shlex.split(command)[1:])


def test_the_three_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = blocks("python")
    assert len([line for line in lines.splitlines() if line]) == 3
    exec(compile(lines, "README.md", "exec"), {})
    printed = capsys.readouterr().out.strip()
    assert printed in README


def test_the_loop_trains(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    _, lines = blocks("python")
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(8)))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)

    def model(batch: Any) -> SimpleNamespace:
        return SimpleNamespace(loss=layers(batch).square().mean())

    exec(compile(lines, "README.md", "exec"), {"loader": [torch.randn(256, 16)] * 5, "model": model, "optimizer": optimizer})
    report = capsys.readouterr().out
    assert "1 planned for" in report
    assert "left by" not in report


def test_a_heuristic_as_the_documentation_has_it_is_placed(capsys: pytest.CaptureFixture[str]) -> None:
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/design.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(compile(lines, "design.md", "exec"), {})
    retained, best = (float(share) for share in re.findall(r"([0-9.]+)%", capsys.readouterr().out))
    assert 50 < retained < best < 100


def test_links_lead_somewhere_and_the_picture_is_small() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert "docs/gpt2-xl.png" in targets
    for target in targets:
        assert target.startswith("https://") or (ROOT / target).exists(), target
    assert (ROOT / "docs/gpt2-xl.png").stat().st_size < 200_000


def test_the_table_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = [command for command in commands() if " compare " in command]
    assert cli.main(shlex.split(command)[1:]) == 0
    (shown,) = blocks("text")
    assert planned(shown) == planned(capsys.readouterr().out)


def test_ci_runs_the_test_command() -> None:
    (command,) = [block for block in blocks("sh") if "pytest" in block]
    script = (ROOT / ".ci" / "run").read_text()
    for step in (part.strip().removeprefix(".venv/bin/") for part in command.split("&&")[1:]):
        assert f"\n{step}\n" in script


def test_the_files_in_the_documentation_are_files_of_ours() -> None:
    instance_text, schedule_text = re.findall(r"```json\n(.*?)```", (ROOT / "docs/files.md").read_text(), flags=re.DOTALL)
    instance, schedule = Instance.from_json(instance_text), Schedule.from_json(schedule_text)
    timeline = simulate(instance, schedule)
    assert (timeline.makespan, timeline.ideal, timeline.prefetch_stall) == (1200, 1100, 100)
