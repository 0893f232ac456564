"""Steps that do not go forward and backward once each, and steps whose shapes depend on data."""

from contextlib import suppress

import torch
from torch import Tensor, nn

from tests.runtime.cases import Case, Scope, mean_square, plain_step


class _Routed(nn.Module):
    """Each token goes to the two experts of the highest score, with ties; some experts may get none."""

    served: Tensor

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(experts))
        self.register_buffer("served", torch.zeros(experts))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.score(x)
        weights, chosen = (scores + (4 * scores).round()).softmax(-1).topk(2)
        out = x.clone()
        for number, expert in enumerate(self.experts):
            rows, ranks = torch.where(chosen == number)
            with torch.no_grad():
                self.served[number] += len(rows)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * weights[rows, ranks].unsqueeze(-1))
        return out


class _Failing(nn.Module):
    fails = False

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise RuntimeError("this batch is broken")
        return x


def _failing() -> nn.Module:
    def layer() -> nn.Module:
        return nn.Sequential(nn.Linear(7, 7), nn.Tanh())

    return nn.Sequential(layer(), _Failing(), layer())


def _two_layers(*ends: nn.Module) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(9, 9), end) for end in ends))


def _two_backwards(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
    torch.manual_seed(20 + iteration)
    with scope():
        out = model(torch.randn(3, 9))
        first, second = out.square().mean(), out.sum()
    for loss, keep in ((second, True), (first, True), (second, False)):
        loss.backward(retain_graph=keep)
    return [first.item(), second.item()]


def _evaluation(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
    torch.manual_seed(30 + iteration)
    inputs, held_out = torch.randn(5, 9), torch.randn(4, 9)
    with scope():
        loss = model(inputs).square().mean()
        model.eval()
        with torch.no_grad():
            before = model(held_out).sum().item()
        with torch.inference_mode():
            inferred = model(held_out[1:]).sum().item()
        model.train()
    loss.backward()
    model.eval()
    with scope(), torch.no_grad():
        after = model(held_out).sum().item()
    model.train()
    return [loss.item(), before, inferred, after]


def _broken_batch(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
    torch.manual_seed(40 + iteration)
    _Failing.fails = True
    with suppress(RuntimeError), scope():
        model(torch.randn(5, 7)).sum().backward()
    _Failing.fails = False
    with scope():
        loss = model(torch.randn(5, 7)).square().mean()
    loss.backward()
    return [loss.item()]


CASES = {
    "top_two_experts": Case(
        "ties and ragged groups: shapes differ from step to step, and some experts run in some steps only",
        ("1",),
        lambda: nn.Sequential(nn.Linear(5, 8), _Routed(8, 5), nn.Linear(8, 2)),
        plain_step(lambda iteration: (torch.randn(4 + 3 * (iteration % 2), 5),), mean_square),
    ),
    "two_backwards": Case(
        "two losses on one graph: every saved tensor is asked for more than once",
        ("0", "1"),
        lambda: _two_layers(nn.Sigmoid(), nn.Tanh()),
        _two_backwards,
    ),
    "evaluation_between": Case(
        "passes without gradients run between forward and backward and use up what was meant for backward",
        ("0", "1"),
        lambda: _two_layers(nn.BatchNorm1d(9), nn.Dropout(0.3)),
        _evaluation,
    ),
    "broken_batch": Case(
        "a forward pass stops half way: the next batch must not meet what it left",
        ("0", "2"),
        _failing,
        _broken_batch,
    ),
}
