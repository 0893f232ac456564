"""The page: where its tables are, and how one is replaced."""

import re
from pathlib import Path

from tests.benchmarks.results import paper, sweeps
from tests.benchmarks.results.table import Row, Table

PAGE = Path(__file__).parents[3] / "docs" / "results.md"
TABLES: dict[str, Table] = {**paper.TABLES, **sweeps.TABLES}
SUMMARY, TIMES = "summary", "times"
"""Names of what is made otherwise: a summary of the other tables, and the time that bounds take."""


def command(name: str) -> str:
    """Return the command that makes a table."""
    return f"python -m tests.benchmarks.results {name}"


def block(name: str, body: str) -> str:
    """Return a table as it stands in the page: between marks, below its command."""
    return f"<!-- {name} -->\n\n```sh\n{command(name)}\n```\n\n{body}\n\n<!-- end -->"


def blocks(text: str) -> dict[str, str]:
    """Return the text between marks, by name."""
    return dict(re.findall(r"<!-- ([a-z0-9 -]+) -->\n(.*?)\n<!-- end -->", text, flags=re.DOTALL))


def with_block(text: str, name: str, body: str) -> str:
    """Return the page with another body between the marks of `name`."""
    pattern = rf"<!-- {re.escape(name)} -->.*?<!-- end -->"
    return re.sub(pattern, lambda _: block(name, body), text, count=1, flags=re.DOTALL)


def rows_of(text: str) -> list[Row]:
    """Return the rows of the table in a block, without its titles."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]
