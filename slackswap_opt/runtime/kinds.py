"""What a tensor is, for tables: by the operator that made it and which of its results it was."""

from slackswap_opt.runtime.trace import Call, Storage

_NAMES: dict[str, tuple[str, ...]] = {
    "matrix product": ("mm", "addmm", "bmm", "baddbmm", "linear", "addmv", "mv", "dot", "_scaled_mm", "addbmm"),
    "convolution": ("convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution"),
    "norm output": (
        "native_layer_norm",
        "native_batch_norm",
        "native_group_norm",
        "_native_batch_norm_legit",
        "cudnn_batch_norm",
        "_fused_rms_norm",
        "batch_norm",
    ),
    "activation": (
        "gelu",
        "silu",
        "relu",
        "sigmoid",
        "tanh",
        "softplus",
        "leaky_relu",
        "elu",
        "mish",
        "hardtanh",
        "hardswish",
    ),
    "softmax output": ("_softmax", "_safe_softmax"),
    "log-probabilities": ("_log_softmax",),
    "attention output": (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    ),
    "dropout output": ("native_dropout",),
    "embedding": ("embedding",),
    "pooled": ("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "max_pool3d_with_indices"),
    "sum": ("add", "sub", "rsub"),
    "product": ("mul", "div"),
    "copy": ("clone", "_to_copy", "cat", "stack", "contiguous", "copy"),
    "random numbers": ("bernoulli", "rand", "randn", "rand_like", "randn_like"),
    "reduction": ("sum", "mean", "amax", "amin", "max", "min", "prod", "linalg_vector_norm"),
    "loss": ("nll_loss_forward", "mse_loss", "binary_cross_entropy_with_logits"),
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names}
_FURTHER: dict[str, tuple[str, ...]] = {
    "norm output": ("mean", "deviation", "reserve", "reserve"),
    "attention output": ("log-sum-exp", "generator state", "generator state"),
    "loss": ("total weight",),
    "dropout output": ("mask",),
    "pooled": ("indices",),
}
_DEVIATION_ONLY = frozenset(("_fused_rms_norm",))


def kind_of(storage: Storage, calls: list[Call], writers: tuple[int, ...]) -> str:
    """Return what a storage is.

    Parameters
    ----------
    storage
        Of the step's own.
    calls
        The step.
    writers
        The operations that write it, in order. Where the first only allocates, the next says what it is.
    """
    maker = calls[storage.maker]
    if storage.parameter_gradient:
        return "parameter gradient"
    if maker.backward:
        return "gradient"
    names = [calls[t].short.rstrip("_") for t in writers]
    if "bernoulli" in names:
        return "mask"
    if "rrelu_with_noise" in names:
        return "activation" if len(names) == 1 else "noise"
    named = [(name, _KINDS[name]) for name in names if name in _KINDS]
    if not named:
        return names[0] if names else "other"
    name, kind = named[0]
    further = _FURTHER.get(kind, ())
    if name in _DEVIATION_ONLY:
        further = further[1:]
    if storage.output == 0 or name != names[0]:
        return kind
    return further[storage.output - 1] if storage.output <= len(further) else f"{kind}, further"
