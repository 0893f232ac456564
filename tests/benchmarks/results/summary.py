"""The page in one table, read off its own tables of budgets."""

from tests.benchmarks.results.page import TABLES, blocks, rows_of
from tests.benchmarks.results.paper import FIGURES
from tests.benchmarks.results.sweeps import AUTOS_GAP, JUDGED, MODELS
from tests.benchmarks.results.table import BEST, GAIN, Row, markdown

COLUMNS = ("model", "paper", *JUDGED, BEST, GAIN, "first-blocks", "largest gap, 20 to 90 %", f"{AUTOS_GAP} there")


def summary(page: str) -> str:
    """Return a row a model: half of the peak, and the budget at which greedy's gap is largest."""
    return markdown(COLUMNS, [_row(model, rows_of(blocks(page)[f"budgets {model}"])) for model in MODELS])


def _row(model: str, rows: list[Row]) -> Row:
    columns = TABLES[f"budgets {model}"].columns
    by_budget = {row[0]: dict(zip(columns, row, strict=True)) for row in rows}
    half = by_budget["50 %"]
    worst = max(by_budget.values(), key=lambda row: float(row["gap"]))
    paper = f"{FIGURES[model] / 10:.1f}" if model in FIGURES else "-"
    cells = (half[column] for column in (*JUDGED, BEST, GAIN, "first-blocks"))
    return (model, paper, *cells, f"{worst['gap']}, at {worst['budget']}", worst[AUTOS_GAP])
