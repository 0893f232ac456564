"""Transformers, storage by storage as eager PyTorch keeps them.

The symbols are those of Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022 (arXiv
2205.05198): ``s`` tokens in a sequence, ``b`` sequences, ``h`` hidden width, ``a`` heads; ``n = s b``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from slackswap_opt.files import InputError
from slackswap_opt.hardware import Hardware, Precision
from slackswap_opt.instance import Instance
from slackswap_opt.instances.layers import Loss, cross_entropy, linear
from slackswap_opt.instances.parameters import About
from slackswap_opt.instances.tape import Cost, Out, Tape, Value

Attention = Literal["flash", "eager"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """What can be chosen about a transformer; the meanings stand beside the fields."""

    layers: Annotated[int, About("transformer layers", most=100_000)] = 12
    hidden: Annotated[int, About("width of the residual stream")] = 768
    heads: Annotated[int, About("attention heads; they divide the hidden width")] = 12
    sequence: Annotated[int, About("tokens in a sequence")] = 512
    batch: Annotated[int, About("sequences in a step")] = 8
    feed_forward: Annotated[int, About("width inside the feed-forward part")] = 3072
    vocabulary: Annotated[int, About("tokens there are: the width of the head")] = 50257
    precision: Annotated[Precision, About("of activations and matrix products")] = "16-bit"
    attention: Annotated[Attention, About("one fused operation, or products and softmax one by one")] = "flash"
    causal: Annotated[bool, About("tokens see earlier ones only: halves the operations of flash attention")] = True
    dropout: Annotated[float, About("probability; at 0 there are no dropout operations", least=0, most=1)] = 0.1
    head: Annotated[bool, About("project to the vocabulary; otherwise the loss reads the last hidden state")] = True
    loss: Annotated[Loss, About("cross entropy as one operation, as PyTorch's two, or as those in 32 bits")] = "fused"

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise InputError(f"'heads' must divide 'hidden', which is {self.hidden}, got {self.heads}")


BERT_LARGE = Transformer(
    layers=24, hidden=1024, heads=16, sequence=512, batch=32, feed_forward=4096, vocabulary=30522, causal=False
)
GPT2_XL = Transformer(layers=48, hidden=1600, heads=25, sequence=1024, batch=8, feed_forward=6400, vocabulary=50257)
LLAMA_7B = Transformer(
    layers=32, hidden=4096, heads=32, sequence=2048, batch=4, feed_forward=11008, vocabulary=32000, dropout=0.0
)


def bert(name: str, p: Transformer, hardware: Hardware) -> Instance:
    """Build an encoder that normalises after each sum (Devlin et al. 2018), with the head of masked language modelling."""
    m = _Model(p, hardware)
    x = m.add("type-sum", m.lookup("words", m.n), m.lookup("types", m.n))
    x = m.add("position-sum", x, m.lookup("positions", p.sequence))
    x = m.dropout("dropout", m.layer_norm("norm", x))
    x = m.stack(x, m.bert_layer)
    if p.head:
        x = m.layer_norm("norm", m.gelu("gelu", m.linear("transform", x, p.hidden, "head hidden")))
    return m.finish(name, x)


def gpt2(name: str, p: Transformer, hardware: Hardware) -> Instance:
    """Build a decoder that normalises before each branch (Radford et al. 2019)."""
    m = _Model(p, hardware)
    x = m.add("position-sum", m.lookup("words", m.n), m.lookup("positions", p.sequence))
    x = m.stack(m.dropout("dropout", x), m.gpt2_layer)
    return m.finish(name, m.layer_norm("norm", x))


def llama(name: str, p: Transformer, hardware: Hardware) -> Instance:
    """Build a decoder with RMS norms, rotary positions and a gated feed-forward part (Touvron et al. 2023)."""
    m = _Model(p, hardware)
    x = m.stack(m.lookup("words", m.n), m.llama_layer)
    return m.finish(name, m.rms_norm("norm", x))


class _Model:
    """The operations of a transformer over one tape, and its layers made of them."""

    def __init__(self, p: Transformer, hardware: Hardware) -> None:
        self.p = p
        self.n = p.batch * p.sequence
        self.tape = Tape(hardware, p.precision)
        self.tape.enter("embeddings", block=False)

    # At the end of a line: what the operation saves for its backward pass, in bytes for each token and hidden unit at 16 bits
    # (8 is 2 f / h at the usual feed-forward width f = 4 h). Besides, flash attention saves 4 a n bytes of log-sum-exp, a layer
    # norm 8 n bytes of statistics and an RMS norm 4 n.

    def gpt2_layer(self, x: Value) -> Value:
        """34 s b h bytes, and 5 a s^2 b more without flash: the count of Korthikanti et al., section 4.1."""
        h, f = self.p.hidden, self.p.feed_forward
        y = self.layer_norm("norm-1", x)  #                                           x 2
        qkv = self.linear("qkv", y, 3 * h, "qkv")  #                                  y 2
        o = self.attend(*self.tape.split(qkv, 3))  #                                  qkv 6 (eager: 5 a s / h more)
        o = self.linear("projection", o, h, "projection output")  #                   o 2
        o = self.dropout("dropout-1", o)  #                                           mask 1
        x = self.add("sum-1", x, o)
        y = self.layer_norm("norm-2", x)  #                                           x 2
        u = self.linear("expand", y, f, "feed-forward hidden")  #                     y 2
        v = self.gelu("gelu", u)  #                                                   u 8
        o = self.linear("contract", v, h, "feed-forward output")  #                   v 8
        o = self.dropout("dropout-2", o)  #                                           mask 1
        return self.add("sum-2", x, o)

    def bert_layer(self, x: Value) -> Value:
        """The same bytes; query, key and value are three storages."""
        h, f = self.p.hidden, self.p.feed_forward
        q = self.linear("query", x, h, "query")  #                                    x 2
        k = self.linear("key", x, h, "key")
        v = self.linear("value", x, h, "value")
        o = self.attend(q, k, v)  #                                                   q 2, k 2, v 2 (eager: as above)
        o = self.linear("projection", o, h, "projection output")  #                   o 2
        o = self.dropout("dropout-1", o)  #                                           mask 1
        x = self.add("sum-1", x, o)
        x = self.layer_norm("norm-1", x)  #                                           sum 2
        u = self.linear("expand", x, f, "feed-forward hidden")  #                     x 2
        v = self.gelu("gelu", u)  #                                                   u 8
        o = self.linear("contract", v, h, "feed-forward output")  #                   v 8
        o = self.dropout("dropout-2", o)  #                                           mask 1
        x = self.add("sum-2", x, o)
        return self.layer_norm("norm-2", x)  #                                        sum 2

    def llama_layer(self, x: Value) -> Value:
        """(16 + 8 f / h) s b h bytes, 37.5 for Llama-7B, and 2 a s^2 b more without flash."""
        h, f = self.p.hidden, self.p.feed_forward
        y = self.rms_norm("norm-1", x)  #                                             x 2
        q = self.linear("query", y, h, "query")  #                                    y 2
        k = self.linear("key", y, h, "key")
        v = self.linear("value", y, h, "value")
        q, k = self.rotary("query-rotary", q), self.rotary("key-rotary", k)
        o = self.attend(q, k, v)  #                                                   q 2, k 2, v 2 (eager: 2 a s / h more)
        o = self.linear("projection", o, h, "projection output")  #                   o 2
        o = self.dropout("dropout-1", o)
        x = self.add("sum-1", x, o)
        y = self.rms_norm("norm-2", x)  #                                             x 2
        g = self.linear("gate", y, f, "gate")  #                                      y 2
        w = self.silu("silu", g)  #                                                   g 2 f / h
        u = self.linear("up", y, f, "up")
        u = self.multiply("product", w, u)  #                                         w 2 f / h, u 2 f / h
        o = self.linear("down", u, h, "feed-forward output")  #                       product 2 f / h
        o = self.dropout("dropout-2", o)
        return self.add("sum-2", x, o)

    def stack(self, x: Value, layer: Callable[[Value], Value]) -> Value:
        """Record every layer, and enter the head."""
        for number in range(self.p.layers):
            self.tape.enter(f"layers.{number}", block=True)
            x = layer(x)
        self.tape.enter("head", block=False)
        return x

    def finish(self, name: str, x: Value) -> Instance:
        """Record the loss of the last hidden state and the backward pass."""
        if self.p.head:
            cross_entropy(self.tape, self.linear("logits", x, self.p.vocabulary, "logits"), self.p.loss)
        else:
            self.tape.record("loss", Cost("elementwise"), (x,), [Out("loss", 4)])
        return self.tape.finish(name)

    def attend(self, q: Value, k: Value, v: Value) -> Value:
        """Record attention: softmax(q k^T) v by head."""
        n, s, h, a = self.n, self.p.sequence, self.p.hidden, self.p.heads
        if self.p.attention == "flash":
            cost = Cost("attention", flops=4 * n * s * h // (2 if self.p.causal else 1))
            outs = [Out("attention output", self.tape.size(v), saved=True), Out("log-sum-exp", 4 * a * n, saved=True)]
            # In backward flash-attention 2 sums the query's gradient in 32 bits, and one number for each row of the scores.
            workspace = 4 * n * h + 4 * a * n
            return self.tape.record("attention", cost, (q, k, v), outs, saves=(q, k, v), workspace=workspace)
        product = Cost("gemm", flops=2 * n * s * h)
        scores = Out("attention scores", a * s * n * self.tape.element)
        x = self.tape.record("scores", product, (q, k), [scores], saves=(q, k))
        x = self.tape.record("softmax", Cost("elementwise"), (x,), [scores._replace(kind="softmax output", saved=True)])
        x = self.dropout("softmax-dropout", x)
        x = self.tape.record("context", product, (x, v), [Out("context", self.tape.size(v))], saves=(x, v))
        return self.tape.add("heads", (x,), "attention output")

    def lookup(self, name: str, rows: int) -> Value:
        """Record the gathering of `rows` rows of a table of parameters."""
        size = rows * self.p.hidden * self.tape.element
        return self.tape.record(name, Cost("elementwise", extra=size), (), [Out("embedding", size)])

    def linear(self, name: str, x: Value, width: int, kind: str) -> Value:
        """Record a product with a weight."""
        return linear(self.tape, name, x, self.n, width, kind)

    def layer_norm(self, name: str, x: Value) -> Value:
        """Record a layer norm, which saves its input, and mean and reciprocal deviation of each token in 32 bits."""
        return self._elementwise(name, x, "norm output", Out("mean", 4 * self.n, True), Out("deviation", 4 * self.n, True))

    def rms_norm(self, name: str, x: Value) -> Value:
        """Record a fused RMS norm, which saves its input, and one number for each token in 32 bits."""
        return self._elementwise(name, x, "norm output", Out("deviation", 4 * self.n, True))

    def gelu(self, name: str, x: Value) -> Value:
        """Record a GELU, which saves its input."""
        return self._elementwise(name, x, "activation")

    def silu(self, name: str, x: Value) -> Value:
        """Record a SiLU, which saves its input."""
        return self._elementwise(name, x, "activation")

    def rotary(self, name: str, x: Value) -> Value:
        """Record a fused rotation by position, whose backward operation needs nothing but angles."""
        return self.tape.record(name, Cost("elementwise"), (x,), [Out("rotated", self.tape.size(x))])

    def multiply(self, name: str, x: Value, y: Value) -> Value:
        """Record a product element by element, which saves both factors."""
        return self.tape.record(name, Cost("elementwise"), (x, y), [Out("gated", self.tape.size(x))], saves=(x, y))

    def dropout(self, name: str, x: Value) -> Value:
        """Record a dropout, which saves a mask of one byte for each element."""
        if not self.p.dropout:
            return x
        size = self.tape.size(x)
        outs = [Out("dropout output", size), Out("mask", size // self.tape.element, saved=True)]
        return self.tape.record(name, Cost("elementwise"), (x,), outs)

    def add(self, name: str, x: Value, y: Value) -> Value:
        """Record a residual sum."""
        return self.tape.add(name, (x, y), "sum")

    def _elementwise(self, name: str, x: Value, kind: str, *statistics: Out) -> Value:
        outs = [Out(kind, self.tape.size(x)), *statistics]
        return self.tape.record(name, Cost("elementwise"), (x,), outs, saves=(x,))
