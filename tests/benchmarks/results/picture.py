"""A picture of the maps: what greedy retains over link rate and efficiency, and where the paper's figure lies."""

from pathlib import Path

from tests.benchmarks.results.page import PAGE, blocks, rows_of
from tests.benchmarks.results.paper import EFFICIENCIES, FIGURES, RATES

PICTURE = PAGE.with_name("reach.png")


def draw(page: str, path: Path) -> None:
    """Draw the maps that stand in the page's tables."""
    try:
        import matplotlib
    except ImportError:
        raise ImportError("pip install 'matplotlib>=3.8'") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(FIGURES), figsize=(9, 3), sharey=True, layout="constrained")
    for axis, (model, tenths) in zip(axes, FIGURES.items(), strict=True):
        values = [[float(cell.strip("*")) for cell in row[1:]] for row in rows_of(blocks(page)[f"reach {model}"])]
        least = min(map(min, values))
        levels = [least + (100.0 - least) * n / 12 for n in range(13)]
        shades = axis.contourf(RATES, EFFICIENCIES, values, levels=levels, cmap="viridis")
        figure.colorbar(shades, ax=axis, format="%.1f").ax.tick_params(labelsize=7)
        axis.contour(RATES, EFFICIENCIES, values, levels=[tenths / 10], colors="white", linewidths=2)
        axis.plot(25, 60, "o", color="white", markersize=4)
        axis.set_xscale("log", base=2)
        axis.set_xticks(RATES, [str(rate) for rate in RATES])
        axis.set_title(f"{model}: {tenths / 10} % on the line", fontsize=9)
        axis.set_xlabel("link, GB/s each way", fontsize=8)
        axis.tick_params(labelsize=7)
    axes[0].set_ylabel("matrix products, % of peak", fontsize=8)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
