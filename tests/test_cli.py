"""The command: what it prints where, its exit codes, what it refuses, and the files that it leaves alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slackswap_opt import cli, commands
from slackswap_opt.instance import Instance
from slackswap_opt.schedule import Schedule
from slackswap_opt.simulate import simulate
from slackswap_opt.solve import HEURISTICS
from tests.example import STEP, SWAP

ROOT = Path(__file__).parents[1]


@pytest.fixture
def step(tmp_path: Path) -> str:
    """The name of a file with the example step."""
    STEP.save(tmp_path / "step.json")
    return str(tmp_path / "step.json")


@pytest.fixture
def swap(tmp_path: Path) -> str:
    """The name of a file with a schedule for it."""
    SWAP.save(tmp_path / "swap.json")
    return str(tmp_path / "swap.json")


def run(*argv: str) -> int:
    """Return the exit code, however it comes."""
    try:
        return cli.main(argv)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else -1


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run what must end with exit code 2, nothing on standard output and one line on standard error; return that."""
    assert run(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("slackswap")
    assert err.count("\n") == 1
    return err


def process(*argv: str, code: str = "from slackswap_opt.cli import main; sys.exit(main())") -> Sequence[str]:
    return [sys.executable, "-c", f"import sys; {code}", *argv]


def test_plan_prints_a_table_and_nothing_else(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", step) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "91.67% of ideal throughput" in out
    assert "200 B of a budget of 200 B, unconstrained 300 B" in out


def test_plan_prints_json_alone(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", step, "--json") == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert err == ""
    assert (record["makespan"], record["ideal"], record["peak"], record["smallest_budget"]) == (1200, 1100, 200, None)
    schedule = Schedule.from_json(json.dumps(record["schedule"]))
    assert simulate(STEP, schedule).makespan == 1200


@pytest.mark.parametrize(("budget", "size"), [("100%", 300), ("67%", 201), ("250B", 250), ("0.25kB", 250), ("150%", 450)])
def test_a_budget_overrides_that_of_the_file(step: str, budget: str, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", step, "--budget", budget, "--json") == 0
    assert json.loads(capsys.readouterr().out)["instance"]["budget"] == size


def test_a_named_model_takes_parameters_and_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("plan", "gpt2-xl", "--set", "layers=2", "--set", "batch=1", "--budget", "80%", "--json")
    assert run(*small) == 0
    on_a100 = json.loads(capsys.readouterr().out)
    assert run(*small, "--hardware", "h100") == 0
    on_h100 = json.loads(capsys.readouterr().out)
    assert on_h100["instance"]["fingerprint"] == on_a100["instance"]["fingerprint"]
    assert on_h100["ideal"] < on_a100["ideal"]


def test_what_is_saved_passes_the_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    instance, schedule, plot = (str(tmp_path / name) for name in ("i.json", "s.json", "p.png"))
    model = ("gpt2-xl", "--set", "layers=2", "--set", "batch=1", "--budget", "70%", "--json")
    assert run("plan", *model, "--save-instance", instance, "--save-schedule", schedule, "--plot", plot) == 0
    planned = json.loads(capsys.readouterr().out)
    assert run("check", instance, schedule, "--json") == 0
    judged = json.loads(capsys.readouterr().out)
    assert judged == {"instance": planned["instance"], "timeline": planned["timeline"]}
    assert Instance.load(instance).budget == planned["instance"]["budget"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i.json", "p.png", "s.json"]


def test_check_judges_any_schedule_under_any_budget(step: str, swap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", step, swap) == 0
    assert "overhead 100 ns" in capsys.readouterr().out
    assert run("check", step, swap, "--budget", "100%") == 0
    assert "a budget of 300 B" in capsys.readouterr().out
    assert "needs 200 bytes on the device, over the budget of 199" in refused(capsys, "check", step, swap, "--budget", "199B")


def test_a_budget_below_a_single_operation_is_proven_infeasible(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", step, "--budget", "199B") == 1
    out, err = capsys.readouterr()
    assert "infeasible" in out
    assert "smallest budget 200 B" in " ".join(out.split())
    assert "'g'" in out or "'h'" in out
    assert err == ""


def test_a_method_that_finds_nothing_proves_nothing(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule, plot = tmp_path / "s.json", tmp_path / "p.png"
    assert run("plan", step, "--method", "keep-all", "--save-schedule", str(schedule), "--plot", str(plot), "--json") == 3
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert (record["status"], record["schedule"], record["smallest_budget"]) == ("unknown", None, None)
    assert err == f"slackswap: no schedule was found; not written: {schedule}, {plot}\n"
    assert not schedule.exists()
    assert not plot.exists()


def test_compare_puts_methods_side_by_side(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", step, step, "--methods", "greedy,keep-all,swap-all", "--json") == 0
    found = [(record["method"], record["makespan"]) for record in json.loads(capsys.readouterr().out)]
    assert found == 2 * [("greedy", 1200), ("keep-all", None), ("swap-all", 1200)]
    assert run("compare", step) == 0
    assert capsys.readouterr().out.count("\n step ") == len(HEURISTICS)


def test_compare_fails_where_no_method_fits(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", step, "--methods", "keep-all") == 3
    assert run("compare", step, "--methods", "keep-all,greedy", "--budget", "1B") == 1


def test_list_names_everything_that_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    shown = capsys.readouterr().out
    for name in ("bert-large", "gpt2-xl", "llama-7b", "layers=48", "a100-40gb", "gh200", "greedy", "swap-only", "library/moe"):
        assert name in shown
    assert run("list", "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {"models", "library", "hardware", "methods"}


@pytest.mark.parametrize(
    ("argv", "reasons"),
    [
        (("plan", "gpt2-x"), ["unknown model or file 'gpt2-x'", "did you mean 'gpt2-xl'?", "llama-7b"]),
        (("plan", "gpt2-xl", "--method", "gredy"), ["unknown method 'gredy'", "did you mean 'greedy'?", "keep-all"]),
        (("plan", "gpt2-xl", "--hardware", "a100-40"), ["unknown hardware 'a100-40'", "did you mean 'a100-40gb'?", "gh200"]),
        (("plan", "gpt2-xl", "--set", "batsh=8"), ["unknown parameter 'batsh'", "batch"]),
        (("plan", "gpt2-xl", "--set", "batch=0"), ["'batch' must be an integer from 1", "0"]),
        (("plan", "gpt2-xl", "--set", "batch=many"), ["'batch'", "'many'"]),
        (("plan", "gpt2-xl", "--set", "batch"), ["--set", "KEY=VALUE", "'batch'"]),
        (("plan", "gpt2-xl", "--set", "batch=8", "--set", "batch=4"), ["--set", "'batch' twice"]),
        (("plan", "gpt2-xl", "--budget", "12"), ["budget needs a unit", "'12'"]),
        (("plan", "gpt2-xl", "--budget", "0%"), ["budget must be more than 0%"]),
        (("plan", "gpt2-xl", "--budget=-5GB"), ["budget must not be negative", "'-5GB'"]),
        (("plan", "gpt2-xl", "--budget", "nan"), ["budget must be a number with a unit", "'nan'"]),
        (("plan", "gpt2-xl", "--bugdet", "50%"), ["unrecognized arguments: --bugdet", "--help"]),
        (("plan", "gpt2-xl", "--plot", "picture.txt"), ["picture.txt", ".png, .svg, .pdf"]),
        (("plan", "gpt2-xl", "--save-schedule", "no/such/folder/s.json"), ["no/such/folder/s.json", "folder does not exist"]),
        (("plan", "gpt2-xl", "--save-schedule", "."), [".: is a folder"]),
        (
            ("plan", "gpt2-xl", "--save-schedule", "x", "--save-instance", "./x"),
            ["--save-instance and --save-schedule"],
        ),
        (("plan", "library/mo"), ["unknown step 'mo' of the library; choose from bert-large"]),
        (("plan", "library/moe", "--set", "batch=8"), ["--set is for named models; the profile library/moe"]),
        (("plan", "library/moe", "--hardware", "h100"), ["--hardware is for named models; the profile library/moe"]),
        (("plan", "nothing.json"), ["nothing.json", "No such file"]),
        (("plan", "./gpt2-xl"), ["./gpt2-xl", "No such file"]),
        (("compare", "gpt2-xl", "--methods", "greedy,"), ["unknown method ''"]),
        (("compare", "gpt2-xl", "--methods", "greedy,greedy"), ["--methods names 'greedy' twice"]),
        (("check", "gpt2-xl"), ["check needs a SCHEDULE", "--certificate"]),
        ((), ["the following arguments are required: COMMAND"]),
        (("paln",), ["invalid choice: 'paln'"]),
    ],
)
def test_wrong_words_are_refused_by_name(argv: tuple[str, ...], reasons: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(capsys, *argv)
    for reason in reasons:
        assert reason in sentence


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        (lambda text: "", ["is empty"]),
        (lambda text: text[: len(text) // 2], ["is not JSON"]),
        (lambda text: text.replace('"link"', '"lnik"'), ["unknown key 'lnik'"]),
        (lambda text: text.replace('"version": 1,', ""), ["missing key 'version'"]),
        (lambda text: text.replace('"duration": 100', '"duration": -1'), ["operations[0].duration ('f')", "-1"]),
        (lambda text: text.replace('"duration": 100', '"duration": NaN'), ["NaN"]),
        (lambda text: text.replace('"size": 100', '"size": 0.5', 1), ["tensors[0].size ('a') must be an integer", "0.5"]),
        (lambda text: text.replace('"size": 100', f'"size": {2**63}', 1), ["tensors[0].size ('a')", str(2**63)]),
        (lambda text: text.replace('"name": "b"', '"name": "a"'), ["tensors[1].name must be unique", "'a'"]),
        (
            lambda text: text.replace('"reads": [0]', '"reads": [2]'),
            ["operations[1].reads", "before any operation has"],
        ),
        (lambda text: text.replace("slackswap-instance", "slackswap-schedule"), ["'format' must be 'slackswap-instance'"]),
    ],
)
def test_bad_files_are_refused_by_field(
    step: str, change: Callable[[str], str], reasons: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(step)
    text = path.read_text()
    changed = change(text)
    assert changed != text
    path.write_text(changed)
    sentence = refused(capsys, "plan", step)
    for reason in [step, *reasons]:
        assert reason in sentence


def test_a_folder_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is a folder" in refused(capsys, "plan", str(tmp_path))


def test_a_schedule_of_another_instance_is_refused(tmp_path: Path, swap: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(STEP, tensors=(replace(STEP.tensors[0], size=99), *STEP.tensors[1:]))
    other.save(tmp_path / "other.json")
    sentence = refused(capsys, "check", str(tmp_path / "other.json"), swap)
    assert swap in sentence
    assert STEP.fingerprint in sentence


def test_a_bad_schedule_is_refused_by_instruction(step: str, swap: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(swap).write_text(SWAP.to_json().replace('["evict", 0]', '["drop", 0]'))
    assert f"{swap}: instruction 3 (drop 0 'a')" in refused(capsys, "check", step, swap)
    Path(swap).write_text(SWAP.to_json().replace("evict", "evcit"))
    assert "unknown action 'evcit'" in refused(capsys, "check", step, swap)


@pytest.mark.parametrize("option", [("--hardware", "h100"), ("--set", "batch=8")])
def test_a_file_takes_no_options_of_named_models(
    step: str, option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert option[0] in refused(capsys, "plan", step, *option)


@pytest.mark.parametrize("option", ["--save-instance", "--save-schedule", "--plot"])
def test_no_file_is_overwritten_unless_forced(
    step: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.png"
    path.write_text("dear to someone")
    with monkeypatch.context() as patched:
        patched.setattr(commands, "solve", None)  # It is not called: the refusal comes first.
        assert "exists already" in refused(capsys, "plan", step, option, str(path))
    assert path.read_text() == "dear to someone"
    assert run("plan", step, option, str(path), "--force") == 0
    assert path.read_bytes() != b"dear to someone"


def test_devices_are_not_replaced_even_when_forced(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not a regular file" in refused(capsys, "plan", step, "--save-schedule", os.devnull, "--force")


def test_an_interrupt_leaves_no_file(
    step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "solve", interrupted)
    before = set(tmp_path.iterdir())
    assert run("plan", step, "--save-instance", str(tmp_path / "i.json"), "--plot", str(tmp_path / "p.png")) == 130
    assert capsys.readouterr() == ("", "slackswap: interrupted\n")
    assert set(tmp_path.iterdir()) == before


def test_control_c_during_a_solve_exits_130(step: str) -> None:
    slow = (
        "import time; from slackswap_opt import cli, commands;"
        "commands.solve = lambda *_, **__: (print('solving', flush=True), time.sleep(60));"
        "sys.exit(cli.main())"
    )
    with subprocess.Popen(
        process("plan", step, code=slow), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "solving\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err) == (130, "", "slackswap: interrupted\n")


def test_sigterm_during_a_solve_removes_what_is_temporary(step: str, tmp_path: Path) -> None:
    slow = (
        "import time; from slackswap_opt import cli, commands; from slackswap_opt.formulations.scratch import scratch_folder\n"
        "def solve(*_, **__):\n"
        "    with scratch_folder(): print('solving', flush=True), time.sleep(60)\n"
        "commands.solve = solve; sys.exit(cli.main())"
    )
    (tmp_path / "scratch").mkdir()
    with subprocess.Popen(
        process("plan", step, code=slow),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "solving\n"
        assert os.listdir(tmp_path / "scratch")
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err) == (143, "", "")
    assert os.listdir(tmp_path / "scratch") == []


def test_a_closed_standard_output_is_told(step: str) -> None:
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *process("plan", step)], stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False
    )
    assert (ended.returncode, ended.stderr) == (
        2,
        "slackswap: standard output is closed; send it to a file, or to /dev/null\n",
    )


def test_a_name_that_no_file_can_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "File name too long" in refused(capsys, "plan", "x" * 300 + ".json")
    assert "unknown model or file" in refused(capsys, "plan", "x" * 300)


@pytest.mark.parametrize("command", [("list",), ("list", "--json")])
def test_a_closed_pipe_is_no_error_of_ours(command: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(process(*command), stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(process("list"), stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "slackswap: the results cannot be written to standard output: No space left on device\n"


def test_any_name_can_be_printed_anywhere(tmp_path: Path) -> None:
    named = replace(STEP, name="[bold]µ:smile:")
    named.save(tmp_path / "named.json")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(
        process("plan", str(tmp_path / "named.json")), capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert r"[bold]\xb5:smile:" in ended.stdout


def test_the_module_runs_as_the_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "slackswap_opt", "--version"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert ended.stdout == "slackswap 0.1.0\n"


def test_without_matplotlib_the_plot_is_refused_before_planning(
    step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(commands, "solve", None)
    sentence = refused(capsys, "plan", step, "--plot", str(tmp_path / "p.png"))
    assert "pip install 'slackswap-opt[plot]'" in sentence


def test_the_log_goes_to_standard_error(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", step, "-v", "--json") == 0
    out, err = capsys.readouterr()
    json.loads(out)
    assert all(line.startswith("slackswap: ") for line in err.splitlines())


@pytest.mark.parametrize("outcome", [0, 1, 3])
def test_help_explains_exit_codes(outcome: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "--help") == 0
    assert f"{outcome} " in capsys.readouterr().out
