"""Re-runs in the model: what brings their operands back, and how much work they are.

What a re-run reads past its last access was kept, fetched or rebuilt for it; rebuilding asks for operands in its turn.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackswap_opt.formulations.linear import Sense
from slackswap_opt.formulations.reruns import Step, Tail

if TYPE_CHECKING:
    from slackswap_opt.formulations.slack import SlackModel

Terms = list[tuple[int, int]]
AT_MOST, AT_LEAST = Sense.AT_MOST, Sense.AT_LEAST


class Chains:
    """The rows of a model that link re-runs.

    Attributes
    ----------
    kept, fetched, held
        Columns of tails kept until a deadline, by (tensor, deadline); of tails fetched, by tensor; of tails that are on the
        device at a checkpoint after they were rebuilt, by (tensor, checkpoint).
    runs
        For operations that serve several intervals or tails, (position, column) of how often they have run again by then.
    due
        Re-run work due at each mark, as terms.
    """

    def __init__(self, model: "SlackModel") -> None:
        self.model = model
        self.program = model.program
        self.kept: dict[tuple[int, int], int] = {}
        self.fetched: dict[int, int] = {}
        self.held: dict[tuple[int, int], int] = {}
        self.runs: dict[int, list[tuple[int, int]]] = {}
        self.due: dict[int, Terms] = {}
        self.tails()
        self.operands()
        self.work()
        self.holds()

    def tails(self) -> None:
        r"""After its last access a tensor is kept until a deadline, fetched from the host, or rebuilt, once and for all.

        Kept until $d$ falls with the deadline $d$; rebuilt by the end of a step rises.
        """
        for n, tail in self.model.reruns.tails.items():
            for d in tail.deadlines:
                self.kept[n, d] = self.program.variable(f"keep_{n}_{d}", 1, integer=True)
            if tail.swap:
                self.fetched[n] = self.program.variable(f"fetch_{n}", 1, integer=True)
            for step in tail.steps:
                self.model.rebuilt[step] = self.program.variable(f"rebuild_{n}_{step.by}", 1, integer=True)
            self.program.rise(f"keep_on_{n}", [self.kept[n, d] for d in reversed(tail.deadlines)])
            self.program.rise(f"rebuild_on_{n}", [self.model.rebuilt[step] for step in tail.steps])
            for step in tail.steps[:-1]:
                held = self.held[n, step.by] = self.program.variable(f"hold_{n}_{step.by}", 1)
                self.program.row(f"holds_{n}_{step.by}", [(held, 1), (self.model.rebuilt[step], -1)], AT_MOST, 0)

    def operands(self) -> None:
        r"""A re-run finds its operands: one that is past its last access was kept, fetched or rebuilt for it.

        For every step of every chain that reads $n$: $y_{last} - y_{before} \le \kappa_{n,d} + \phi_n + \rho_n$, where $\rho_n$
        is rebuilding after the step before, or holding over its end what was rebuilt by then.
        """
        for n, tail in self.model.reruns.tails.items():
            for demands in tail.demands:
                chain = self._chain(demands[0].step)
                for step, _, by in demands:
                    terms = [(self.last(step), -1), (self.kept[n, by], 1)]
                    terms += [(self.model.rebuilt[chain[step.number - 1]], 1)] if step.number else []
                    terms += [(self.fetched[n], 1)] if tail.swap else []
                    terms += self._rebuilt_for(tail, step) if tail.recompute else []
                    self.program.row(f"operand_{n}_of_{_name(step)}", terms, AT_LEAST, 0)

    def _rebuilt_for(self, tail: Tail, step: Step) -> Terms:
        """Whether a tail is rebuilt after `step` begins, or was before and is held there, as terms."""
        terms = [(self.model.rebuilt[tail.steps[-1]], 1)]
        before = [earlier for earlier in tail.steps[:-1] if step.number and earlier.by == step.after]
        for earlier in before:
            terms += [(self.model.rebuilt[earlier], -1), (self.held[tail.tensor, earlier.by], 1)]
        return terms

    def last(self, step: Step) -> int:
        """Return the column that says whether the tensor of `step` is rebuilt at all in that interval or tail."""
        return self.model.rebuilt[self._chain(step)[-1]]

    def _chain(self, step: Step) -> tuple[Step, ...]:
        return self.model.reruns.tails[step.tensor].steps if step.interval is None else self.model.reruns.steps[step.interval]

    def work(self) -> None:
        r"""Operation $o$ has run again $x_{o,d}$ times before $d$, once a step in which something it writes comes back.

        $x_{o,d} - x_{o,d'} \ge y_d - y_{d'}$ for all that it writes; where it serves one interval only, $x$ is $y$.
        """
        for o, chains in sorted(self.model.reruns.by_operation.items()):
            cost = self.model.scale.work(self.model.instance.operations[o].duration)
            if len(chains) == 1:
                runs = [(step.by, self.model.rebuilt[step]) for step in chains[0]]
            else:
                runs = self.runs[o] = self._counted(o, chains)
            before = -1
            for d, column in runs:
                mark = self.model.marks[bisect_left(self.model.marks, d)]
                self.due.setdefault(mark, []).extend([(column, cost)] + ([(before, -cost)] if before >= 0 else []))
                before = column

    def _counted(self, o: int, chains: Sequence[tuple[Step, ...]]) -> list[tuple[int, int]]:
        ends = sorted({step.by for chain in chains for step in chain})
        runs = [self.program.variable(f"x_{o}_{d}", len(chains), integer=True) for d in ends]
        self.program.rise(f"runs_{o}", runs)
        for chain in chains:
            before: Terms = []
            for step in chain:
                opened = bisect_right(ends, step.after)
                terms = [(runs[bisect_left(ends, step.by)], 1), (self.model.rebuilt[step], -1), *before]
                terms += [(runs[opened - 1], -1)] if opened else []
                self.program.row(f"run_{o}_for_{_name(step)}", terms, AT_LEAST, 0)
                before = [(self.model.rebuilt[step], 1)]
        return list(zip(ends, runs, strict=True))

    def holds(self) -> None:
        """A tail that is rebuilt before a checkpoint for use after it is there, or what was rebuilt from it is."""
        for n, tail in self.model.reruns.tails.items():
            for step in tail.steps[:-1]:
                terms = [(self.held[n, step.by], 1), (self.model.rebuilt[step], -1), *self._readers_done(tail, step.by)]
                self.program.row(f"held_{n}_{step.by}", terms, AT_LEAST, 0)

    def _readers_done(self, tail: Tail, q: int) -> Terms:
        done: Terms = []
        for demands in tail.demands:
            chain = [step for step in self._chain(demands[0].step) if step.by <= q]
            done += [(self.model.rebuilt[chain[-1]], 1)] if chain else []
        return done


def _name(step: Step) -> str:
    return f"{step.tensor}_{step.by}"
