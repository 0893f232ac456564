"""What is installed: the wheel holds every module and data file of the tree, and importing the package stays light."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import slackswap_opt

ROOT = Path(__file__).parents[1]
LINKED = ("formulations", "instances")
PACKAGES = {"slackswap_opt": "slackswap_opt", **{name: f"slackswap_opt/{name}" for name in LINKED}}
SHIPPED = re.compile(r".*\.(py|json|json\.gz|typed)")
HEAVY = ("torch", "ortools", "pulp", "highspy", "matplotlib", "rich", "hypothesis")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of the files in a wheel that is built from a copy, so that nothing is left in the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (made,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(made).namelist())


def tree() -> set[str]:
    """The files of the tree that belong into the wheel, by their names there."""
    found = set()
    for name, installed in PACKAGES.items():
        for path in (ROOT / name).rglob("*"):
            relative = path.relative_to(ROOT / name)
            behind_link = name == "slackswap_opt" and relative.parts[0] in LINKED
            if path.is_file() and SHIPPED.fullmatch(path.name) and not behind_link:
                found.add(f"{installed}/{relative.as_posix()}")
    return found


def test_the_wheel_holds_every_module_and_data_file(wheel: set[str]) -> None:
    assert {name for name in wheel if SHIPPED.fullmatch(name)} == tree()


def test_the_wheel_holds_the_licence_and_the_command(wheel: set[str]) -> None:
    named = {Path(name).name for name in wheel}
    assert {"LICENSE", "entry_points.txt", "py.typed"} <= named


def test_the_links_lead_to_the_folders_at_the_top() -> None:
    for name in LINKED:
        link = ROOT / "slackswap_opt" / name
        assert link.is_symlink()
        assert link.readlink() == Path("..") / name


def test_pins_and_licence_are_as_agreed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "MIT"
    assert {re.split("[<>=]", requirement)[0] for requirement in project["dependencies"]} == {
        "numpy",
        "ortools",
        "pulp",
        "highspy",
        "rich",
    }
    assert "torch==2.13.*" in project["optional-dependencies"]["test"]


@pytest.mark.parametrize("module", ["slackswap_opt", "slackswap_opt.cli"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert loaded.split() == []


def test_everything_public_is_there() -> None:
    for name in slackswap_opt.__all__:
        assert hasattr(slackswap_opt, name)


def test_functions_are_not_hidden_by_the_modules_of_their_names() -> None:
    code = (
        "import slackswap_opt.place, slackswap_opt.simulate, slackswap_opt.solve, slackswap_opt as s;"
        "assert all(callable(f) for f in (s.place, s.simulate, s.solve))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_solvers_and_torch_can_be_imported_in_any_order() -> None:
    for order in (("highspy", "ortools.sat.python.cp_model", "torch"), ("torch", "ortools.sat.python.cp_model", "highspy")):
        subprocess.run([sys.executable, "-c", f"import slackswap_opt, {', '.join(order)}"], check=True, cwd=ROOT)
