"""Operations that several families of models share, with what autograd saves of each."""

from typing import Literal

from slackswap_opt.instances.tape import Cost, Out, Tape, Value

Loss = Literal["fused", "eager", "eager-fp32"]


def linear(tape: Tape, name: str, x: Value, rows: int, width: int, kind: str) -> Value:
    """Record the product of `rows` rows of `x` with a weight of `width` columns, whose backward operation reads `x`."""
    features = tape.size(x) // (rows * tape.element)
    cost = Cost("gemm", flops=2 * rows * features * width, extra=features * width * tape.element)
    return tape.record(name, cost, (x,), [Out(kind, rows * width * tape.element)], saves=(x,))


def cross_entropy(tape: Tape, logits: Value, loss: Loss) -> None:
    """Record the loss of `logits`, whose backward operation reads the log-probabilities.

    ``"fused"`` makes the gradient of the logits in one operation. ``"eager"`` is PyTorch's pair of a log-softmax and a negative
    log-likelihood, whose gradient is dense: three tensors of this size live at once in backward. ``"eager-fp32"`` copies 16-bit
    logits to 32 bits first, as training scripts often do.
    """
    scalar = Out("loss", 4)
    if loss == "fused":
        tape.record("loss", Cost("elementwise"), (logits,), [Out("log-probabilities", tape.size(logits), saved=True)])
        return
    if loss == "eager-fp32" and tape.element == 2:
        logits = tape.record("upcast", Cost("elementwise"), (logits,), [Out("logits in 32 bits", 2 * tape.size(logits))])
    log_probabilities = Out("log-probabilities", tape.size(logits), saved=True)
    chances = tape.record("log-softmax", Cost("elementwise"), (logits,), [log_probabilities])
    tape.record("loss", Cost("elementwise"), (chances,), [scalar])
