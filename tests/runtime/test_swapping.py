"""What is alive where everything that autograd saves is swapped, by a meter of its own: plans act between these lives."""

from contextlib import nullcontext
from itertools import accumulate

import pytest

from slackswap_opt.runtime import Profile, profile
from tests.runtime.cases import CASES
from tests.runtime.meters import Reading
from tests.runtime.swapping import swapped
from tests.runtime.test_meters import plain


def lives(result: Profile) -> list[Reading]:
    """Return for each operation the bytes of what is alive where everything that autograd saves is swapped."""
    change = [0] * (len(result.operations) + 1)
    for tensor, facts in zip(result.instance.tensors, result.tensors, strict=True):
        for start, end in facts.lives:
            change[start] += tensor.size
            change[end] -= tensor.size
    return [Reading(facts.function, size) for facts, size in zip(result.operations, accumulate(change), strict=False)]


@pytest.mark.parametrize("name", CASES)
def test_an_all_swapped_step_holds_what_the_lives_say(name: str) -> None:
    model, step = CASES[name].make()
    result = profile(lambda: step(model, 1, nullcontext), timed=False)
    assert lives(result) == swapped(plain(model, lambda: step(model, 1, nullcontext)))
    # The floor of every schedule: a tensor is back for the operation before its death in plain training too.
    assert all(least >= reading.size for least, reading in zip(result.instance.floor, lives(result), strict=True))
