"""Devices and the roofline: how long operations and copies take, from published figures and stated assumptions."""

from dataclasses import dataclass
from typing import Literal, get_args

from slackswap_opt.files import InputError, check_integer, shown
from slackswap_opt.instance import Link

Precision = Literal["16-bit", "tf32", "fp32"]
Work = Literal["gemm", "attention", "elementwise"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device and its link to host memory.

    Attributes
    ----------
    name
        What it is called in tables and on the command line.
    memory
        Nominal bytes of device memory; CUDA reports one or two percent less.
    flops_16, flops_tf32, flops_fp32
        Peak floating-point operations per second of dense matrix products by the precision of their operands.
    memory_bandwidth
        Peak bytes per second of device memory.
    offload_bandwidth, prefetch_bandwidth
        Bytes per second that one copy of pinned memory reaches to the host and back.
    latency
        Nanoseconds that every copy takes besides its bytes.
    duplex
        Whether copies in both directions run at once.
    gemm, attention
        Percent of the peak that matrix products and fused attention reach.
    elementwise
        Percent of `memory_bandwidth` that any operation reaches.
    launch
        Nanoseconds that every kernel takes besides its work.

    Raises
    ------
    InputError
        If a figure is not an integer in its range.
    """

    name: str
    memory: int
    flops_16: int
    flops_tf32: int
    flops_fp32: int
    memory_bandwidth: int
    offload_bandwidth: int
    prefetch_bandwidth: int
    latency: int = 10_000
    duplex: bool = True
    gemm: int = 60
    attention: int = 50
    elementwise: int = 85
    launch: int = 3_000

    def __post_init__(self) -> None:
        for field in self.__slots__:
            if field not in ("name", "duplex"):
                check_integer(getattr(self, field), f"{field} of hardware {shown(self.name)}", least=_LEAST.get(field, 1))
        for field in ("gemm", "attention", "elementwise"):
            if getattr(self, field) > 100:
                raise InputError(
                    f"{field} of hardware {shown(self.name)} is a percentage up to 100, got {getattr(self, field)}"
                )

    def duration(self, work: Work, flops: int, size: int, precision: Precision = "16-bit", *, launches: int = 1) -> int:
        """Return the nanoseconds of an operation by the roofline: max(flops / rate, size / bandwidth) + launches.

        Parameters
        ----------
        work
            Which efficiency applies to the floating-point operations; ``"elementwise"`` work is bound by memory alone.
        flops
            Floating-point operations.
        size
            Bytes read from and written to device memory.
        precision
            Of the operands of a matrix product.
        launches
            Kernels that it takes.

        References
        ----------
        Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009.
        """
        moving = _nanoseconds(size, self.memory_bandwidth, self.elementwise)
        if work == "elementwise":
            return moving + launches * self.launch
        percent = self.gemm if work == "gemm" else self.attention
        return max(_nanoseconds(flops, self.peak(precision), percent), moving) + launches * self.launch

    def peak(self, precision: Precision) -> int:
        """Return the peak floating-point operations per second at `precision`."""
        return {"16-bit": self.flops_16, "tf32": self.flops_tf32, "fp32": self.flops_fp32}[precision]

    def link(self) -> Link:
        """Return the link to host memory."""
        return Link(self.offload_bandwidth, self.prefetch_bandwidth, self.latency, self.duplex)


def get(hardware: object) -> Hardware:
    """Return a device by name, or the given one as it is.

    Raises
    ------
    InputError
        If there is no device of that name; the message lists those there are.
    """
    if isinstance(hardware, Hardware):
        return hardware
    for device in DEVICES:
        if device.name == hardware:
            return device
    raise InputError(f"unknown hardware {shown(hardware)}; choose from {', '.join(names())}")


def names() -> tuple[str, ...]:
    """Return the names that `get` knows."""
    return tuple(device.name for device in DEVICES)


_LEAST = {"latency": 0, "launch": 0}


def _nanoseconds(amount: int, rate: int, percent: int) -> int:
    """Return the nanoseconds for `amount` at `percent` of `rate` per second, rounded up."""
    return -(-amount * 100_000_000_000 // (rate * percent))


# Sources. [D] vendor's data sheet or white paper, read in transcriptions by third parties. [M] measured by others, as cited.
# [A] assumption of ours. For every device: 3 us a launch [A]; 10 us a copy [A], as cudaMemcpyAsync alone takes 5-7 us a call
# (Wu et al., DualPath, arXiv 2602.21548, section 5.2) and events come on top; GEMM 60 % and elementwise 85 % [A].
DEVICES = (
    # SXM4 board. 312 / 156 / 19.5 TFLOP/s dense, 1555 GB/s [D]. 25 GB/s each way over PCIe 4.0 x16 [M]: 25-26 GB/s by copy
    # engine in either direction alone (nvbandwidth issue 11), 25.13 to the device (issue 42). Where both directions are busy,
    # two reports (issues 11, 53) have 24-25 GB/s to the host and only 11-13 back: not modelled. Attention 50 % [A].
    Hardware(
        name="a100-40gb",
        memory=40 * 2**30,
        flops_16=312 * 10**12,
        flops_tf32=156 * 10**12,
        flops_fp32=19_500 * 10**9,
        memory_bandwidth=1_555 * 10**9,
        offload_bandwidth=25 * 10**9,
        prefetch_bandwidth=25 * 10**9,
    ),
    # SXM4 board: as above with 2039 GB/s [D]; its PCIe card has 1935.
    Hardware(
        name="a100-80gb",
        memory=80 * 2**30,
        flops_16=312 * 10**12,
        flops_tf32=156 * 10**12,
        flops_fp32=19_500 * 10**9,
        memory_bandwidth=2_039 * 10**9,
        offload_bandwidth=25 * 10**9,
        prefetch_bandwidth=25 * 10**9,
    ),
    # SXM5 board. 989.4 / 494.7 / 66.9 TFLOP/s dense, 3.35 TB/s [D]. PCIe 5.0 x16: 52.8 GB/s to the host [M] (nvbandwidth
    # issue 24, eight devices), 55.6 back [M] (the vendor's guide to nvbandwidth, which does not name its device: that it is
    # PCIe 5 follows from the rate). Attention 35 % [M]: what FlashAttention-2 reaches there (Shah et al., arXiv 2407.08608).
    Hardware(
        name="h100",
        memory=80 * 2**30,
        flops_16=989_400 * 10**9,
        flops_tf32=494_700 * 10**9,
        flops_fp32=66_900 * 10**9,
        memory_bandwidth=3_350 * 10**9,
        offload_bandwidth=52_800 * 10**6,
        prefetch_bandwidth=55_600 * 10**6,
        attention=35,
    ),
    # The chip of the H100 with 141 GB at 4.8 TB/s [D]; its link is taken to be that of the H100 [A].
    Hardware(
        name="h200",
        memory=141 * 2**30,
        flops_16=989_400 * 10**9,
        flops_tf32=494_700 * 10**9,
        flops_fp32=66_900 * 10**9,
        memory_bandwidth=4_800 * 10**9,
        offload_bandwidth=52_800 * 10**6,
        prefetch_bandwidth=55_600 * 10**6,
        attention=35,
    ),
    # The chip of the H100 with 96 GB at 4 TB/s [D]. NVLink-C2C: 297 GB/s to the host, 375 back [M] (Schieffer et al., arXiv
    # 2407.07850), of 450 each way [D]. Both ways at once may fall to half (nvbandwidth issue 41): not modelled.
    Hardware(
        name="gh200",
        memory=96 * 2**30,
        flops_16=989_400 * 10**9,
        flops_tf32=494_700 * 10**9,
        flops_fp32=66_900 * 10**9,
        memory_bandwidth=4_000 * 10**9,
        offload_bandwidth=297 * 10**9,
        prefetch_bandwidth=375 * 10**9,
        attention=35,
    ),
)
