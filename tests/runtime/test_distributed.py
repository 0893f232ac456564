"""Two processes that share their gradients: each under a budget, with the results of plain training."""

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import run

import pytest

SCRIPT = """
import sys
import warnings
from contextlib import nullcontext

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from slackswap_opt.runtime import MemoryBudget
from tests.runtime.plans import recompute_all, schedule_of
from tests.runtime.training import bits, state

torch.set_num_threads(1)
rank, port = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


def trained(scope):
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.GELU(), nn.LayerNorm(8)) for _ in range(3))
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    losses = []
    for _ in range(8):
        x = torch.randn(5, 8)
        with scope():
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {name: bits(tensor) for name, tensor in state(model).items()}


plain = trained(nullcontext)
budget = MemoryBudget("1000%", method=lambda instance: schedule_of(instance, recompute_all(instance)))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    assert trained(budget.step) == plain
budget.close()
steps = [step for plan in budget.report().plans for step in plan.steps]
print(sum(step.complete and not step.reason for step in steps), sum(step.reruns for step in steps) > 0)
distributed.destroy_process_group()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="gloo is asked for by address")
def test_two_processes(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def started(rank: int) -> tuple[int, str, str]:
        command = [sys.executable, str(script), str(rank), port]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        done = run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(started, range(2)))
    for code, out, err in results:
        assert code == 0, err
        followed, ran_again = out.split()
        assert int(followed) >= 4
        assert ran_again == "True"
