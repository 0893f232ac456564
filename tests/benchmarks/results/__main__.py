"""Make tables of docs/results.md: `python -m tests.benchmarks.results NAME... [--write] [--processes 2]`.

Each is printed; with `--write` it also replaces the one in the page. `reach` draws docs/reach.png from the page's tables, from
which `summary` is made too.
"""

import argparse
import contextlib
import io
from concurrent.futures import ProcessPoolExecutor

from slackswap_opt import load
from tests.benchmarks.bench_bound import NAMES as STEPS
from tests.benchmarks.bench_bound import bound_of
from tests.benchmarks.results.page import PAGE, SUMMARY, TABLES, TIMES, with_block
from tests.benchmarks.results.picture import PICTURE, draw
from tests.benchmarks.results.summary import summary

NAMES = (*TABLES, SUMMARY, TIMES, "reach")


def body(name: str, processes: int) -> str:
    """Return what stands below the command of `name`."""
    if name == TIMES:
        return times()
    if name == SUMMARY:
        return summary(PAGE.read_text(encoding="utf-8"))
    with ProcessPoolExecutor(processes) as executor:
        return TABLES[name].markdown(TABLES[name].rows(executor))


def times() -> str:
    """Return what `bench_bound.py` prints, one bound after the other, so that nothing else takes their time."""
    with contextlib.redirect_stdout(io.StringIO()) as lines:
        for name in STEPS:
            bound_of(load(name), name, 50)
    return f"```text\n{lines.getvalue()}```"


def main() -> None:
    """Read the arguments, print the tables and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="+", help=f"one of: {', '.join(NAMES)}; two words are one name")
    parser.add_argument("--write", action="store_true", help="put it into docs/results.md")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    name = " ".join(arguments.name)
    if name == "reach":
        draw(PAGE.read_text(encoding="utf-8"), PICTURE)
    elif name not in NAMES[:-1]:
        parser.error(f"no table is called '{name}'; choose from {', '.join(NAMES)}")
    else:
        text = body(name, arguments.processes)
        print(text)
        if arguments.write:
            PAGE.write_text(with_block(PAGE.read_text(encoding="utf-8"), name, text), encoding="utf-8")


if __name__ == "__main__":
    main()
