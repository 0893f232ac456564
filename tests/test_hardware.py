from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap_opt import InputError, Link
from slackswap_opt.hardware import Hardware, Precision, Work, get, names

works = st.sampled_from(["gemm", "attention", "elementwise"])
precisions = st.sampled_from(["16-bit", "tf32", "fp32"])
amounts = st.integers(0, 10**15)


@given(st.sampled_from(names()), works, precisions, amounts, amounts, amounts)
def test_more_work_never_takes_less_time(name: str, work: Work, precision: Precision, flops: int, size: int, more: int) -> None:
    device = get(name)
    duration = device.duration(work, flops, size, precision)
    assert duration >= device.launch
    assert device.duration(work, flops + more, size, precision) >= duration
    assert device.duration(work, flops, size + more, precision) >= duration
    assert device.duration(work, flops, size, precision, launches=3) == duration + 2 * device.launch


@given(st.sampled_from(names()), works, amounts, amounts)
def test_a_narrower_precision_is_never_slower(name: str, work: Work, flops: int, size: int) -> None:
    in_order = [get(name).duration(work, flops, size, precision) for precision in ("16-bit", "tf32", "fp32")]
    assert in_order == sorted(in_order)


def test_the_roofline_by_hand() -> None:
    a100 = get("a100-40gb")
    # 187.2 TFLOP at 60 % of 312 TFLOP/s: a second. Attention at 50 %: 1.2 seconds. TF32 has half the rate.
    assert a100.duration("gemm", 187_200 * 10**9, 0) == 10**9 + 3_000
    assert a100.duration("attention", 187_200 * 10**9, 0) == 12 * 10**8 + 3_000
    assert a100.duration("gemm", 187_200 * 10**9, 0, "tf32") == 2 * 10**9 + 3_000
    # 1321.75 GB at 85 % of 1555 GB/s: a second too, and what is elementwise has no other limit.
    assert a100.duration("gemm", 1, 1_321_750 * 10**6) == 10**9 + 3_000
    assert a100.duration("elementwise", 10**18, 1_321_750 * 10**6) == 10**9 + 3_000
    # Rounded up: a byte takes less than a nanosecond.
    assert a100.duration("elementwise", 0, 1, launches=2) == 1 + 6_000


def test_the_link_of_the_default_device() -> None:
    assert get("a100-40gb").link() == Link(25 * 10**9, 25 * 10**9, latency=10_000, duplex=True)


def test_every_device_is_found_by_its_name_and_copies_slower_than_it_computes() -> None:
    for name in names():
        device = get(name)
        assert device.name == name
        assert get(device) is device
        assert device.memory_bandwidth > 4 * max(device.offload_bandwidth, device.prefetch_bandwidth)
        assert device.flops_fp32 < device.flops_tf32 < device.flops_16


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"^unknown hardware 'v100'; choose from a100-40gb, a100-80gb, h100, h200, gh200$"):
        get("v100")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("offload_bandwidth", 0, r"offload_bandwidth of hardware 'mine' must be an integer from 1 to .*, got 0"),
        ("latency", -1, r"latency of hardware 'mine' must be an integer from 0 to .*, got -1"),
        ("memory_bandwidth", 1.5e12, r"memory_bandwidth of hardware 'mine' must be an integer .*, got 1500000000000.0"),
        ("gemm", 101, r"gemm of hardware 'mine' is a percentage up to 100, got 101"),
    ],
)
def test_a_device_of_ones_own_is_checked(field: str, value: float, message: str) -> None:
    mine: Hardware = replace(get("h100"), name="mine", launch=0)
    with pytest.raises(InputError, match=message):
        replace(mine, **{field: value})  # type: ignore[arg-type]
