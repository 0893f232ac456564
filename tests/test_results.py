"""The page of results is whole, and the rows of it that take little time are what its commands print."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from slackswap_opt import load, solve
from slackswap_opt.formulations.certificate import lower_bound
from tests.benchmarks.results import page, paper, sweeps, table
from tests.benchmarks.results.summary import summary

TEXT = page.PAGE.read_text(encoding="utf-8")
BLOCKS = page.blocks(TEXT)


def shown(name: str, *key: Any) -> dict[str, str]:
    """One row of the page, by column."""
    rows = page.rows_of(BLOCKS[name])
    return dict(zip(page.TABLES[name].columns, rows[page.TABLES[name].keys.index(key)], strict=True))


@pytest.mark.parametrize("name", page.TABLES)
def test_every_table_is_there_with_its_command(name: str) -> None:
    block, expected = BLOCKS[name], page.TABLES[name]
    assert f"```sh\n{page.command(name)}\n```" in block
    rows = page.rows_of(block)
    assert len(rows) == len(expected.keys)
    assert all(len(row) == len(expected.columns) and all(row) for row in rows)
    assert block.split("\n```\n\n", 1)[1].strip() == expected.markdown(rows)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("paper", ("bert-large", "as it is here")),
        ("budgets resnet-50", ("resnet-50", 20)),
        ("budgets resnet-50", ("resnet-50", 50)),
        ("links", ("resnet-50", "16")),
        ("attention", ("bert-large", "flash", 70)),
        ("profiles", ("library/resnet-50", 50)),
    ],
)
def test_rows_are_what_is_printed_now(name: str, key: tuple[Any, ...]) -> None:
    columns = page.TABLES[name].columns
    limits = {"seconds": 0.0} if table.BEST in columns else {}
    limits |= {"searching": 0.0} if sweeps.AUTO in columns else {}
    printed = dict(zip(columns, page.TABLES[name].row(*key, **limits), strict=True))
    kept = shown(name, *key)
    # Without time a search ends with greedy's plan: the page may have a better one under the same bound.
    if sweeps.AUTO in columns:
        assert float(printed.pop(sweeps.AUTO)) <= float(kept.pop(sweeps.AUTO)) <= float(kept["no schedule exceeds"])
        assert float(printed.pop(sweeps.AUTOS_GAP)) >= float(kept.pop(sweeps.AUTOS_GAP))
    if table.BEST in columns:
        mine, theirs = printed.pop(table.BEST).split(" to "), kept.pop(table.BEST).split(" to ")
        assert mine[-1] == theirs[-1]
        assert mine[0] == theirs[0] or float(mine[0]) <= float(theirs[0]) <= float(theirs[-1])
    assert printed == kept


def test_a_cell_of_a_map_is_what_is_printed_now() -> None:
    (cell,) = paper.reach_row("bert-large", 60, (25,))[1:]
    assert cell == shown("reach bert-large", "bert-large", 60)["25 GB/s"]


def test_maps_say_what_reaches_a_figure() -> None:
    assert all(cell.startswith("**") for cell in paper.reach_row("bert-large", 20, (64,))[1:])
    assert not any("*" in cell for cell in paper.reach_row("bert-large", 100, (8,))[1:])


def test_percentages_are_rounded_to_the_safe_side() -> None:
    assert table.at_most(1_000, 1_500) == "66.67"
    assert table.at_most(1_000, 3_000) == "33.34"
    assert table.gap(30_000, 29_999) == "0.01"
    assert table.at_most(1_000, None) == table.NONE


def test_without_swaps_nothing_moves_and_the_bound_is_that_of_recomputation() -> None:
    instance = sweeps.at(load("chain"), 60)
    still = sweeps.without_swaps(instance)
    assert (still.peak, still.ideal, still.budget) == (instance.peak, instance.ideal, instance.budget)
    result = solve(still)
    bound = lower_bound(still).bound
    assert result.timeline is not None
    assert result.schedule is not None
    assert bound is not None
    assert result.timeline.makespan >= bound > still.ideal
    assert {instruction.action for instruction in result.schedule.instructions} == {"run", "drop"}


def test_a_block_is_replaced_and_the_rest_stays() -> None:
    text = f"before\n{page.block('links', 'old')}\nbetween\n{page.block('paper', 'other')}\nafter\n"
    assert page.with_block(text, "links", "new") == text.replace("old", "new")


def test_rows_come_in_the_order_of_their_keys() -> None:
    numbers = table.Table(("n", "gap"), ((2,), (1,)), lambda n: (str(n), f"0.{n}"), table.largest_gap)
    with ThreadPoolExecutor(2) as executor:
        rows = numbers.rows(executor)
    assert numbers.markdown(rows) == "| n | gap |\n| --- | --- |\n| 2 | 0.2 |\n| 1 | 0.1 |\n\nLargest gap: 0.20 points, at 2."


def test_the_summary_is_that_of_the_page() -> None:
    assert BLOCKS[page.SUMMARY].endswith(f"```\n\n{summary(TEXT)}\n")


def test_links_lead_somewhere_and_the_picture_is_small() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert target.startswith("https://") or (Path(page.PAGE).parent / target).exists(), target
    assert page.PAGE.with_name("reach.png").stat().st_size < 60_000
