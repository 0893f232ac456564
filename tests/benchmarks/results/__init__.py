"""The tables of docs/results.md, each made by one command: `python -m tests.benchmarks.results NAME [--write]`."""
