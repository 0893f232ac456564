import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def quick() -> Iterator[None]:
    """Keep small tests from waiting: for threads that share a tiny kernel, and for the collector to look at all of PyTorch."""
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
