"""Ops that give the same bytes when run again: the runtime replays them, and the planner may rely on it.

An op is here if it gives new memory or is in place (it writes its first argument, and nothing else), reads nothing but
its inputs, and gives the same bits for the same inputs under the same settings. One in place needs the value from
before, which is made again first. ``_grouped_mm`` is here, though it leaves rows past its last group unwritten: a
program that reads those reads other bytes in each run anyway. What is not here, and why:

- Ops with ``out=`` write what they are given.
- ``rand``, ``native_dropout`` and other random ops take no generator, but the state of a global one that has moved on
  since. ``bernoulli`` and what fills memory with draws, as ``normal_`` does, are here: where they have no generator of
  their own and draw from the host's default one, the state that this had right before is kept. A GPU's is not, and such
  calls are refused.
- Batch norm writes its running statistics, and the schema does not say so; recurrent kernels keep hidden buffers.
- ``scatter_add``, ``index_add``, ``index_put(accumulate=True)``, ``cumsum`` and ``convolution_backward`` add in an
  order that a GPU does not promise.
- ``sort`` and ``topk`` break ties as they like.
- Kernels that other ops call, such as ``mkldnn_convolution``: the op outside, ``convolution``, stands for them.
- Views make no storage; ``empty`` and the like make one without a value.
- Ops outside of ``aten::`` (custom ones, compiled graphs) promise nothing.
"""

from __future__ import annotations


def _aten(names: str) -> list[str]:
    return [f"aten::{name}" for name in names.split()]


_ELEMENTWISE = _aten(
    "abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not "
    "bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min complex conj_physical copysign cos cosh "
    "deg2rad digamma div eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac ge gt heaviside "
    "hypot isinf isnan isneginf isposinf le lerp lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and "
    "logical_not logical_or logical_xor logit lt masked_fill maximum minimum mul nan_to_num ne neg nextafter polar "
    "polygamma pow rad2deg reciprocal remainder round rsqrt rsub sgn sigmoid sign signbit sin sinc sinh special_entr "
    "special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri special_xlog1py special_zeta "
    "sqrt square sub tan tanh trunc where xlogy"
)
_ACTIVATION = _aten(
    "_prelu_kernel celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid_forward mish "
    "relu selu silu softplus softshrink threshold"
)
_ACTIVATION_BACKWARD = _aten(
    "_log_softmax_backward_data _softmax_backward_data elu_backward gelu_backward glu_backward hardshrink_backward "
    "hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward log_sigmoid_backward logit_backward "
    "mish_backward mse_loss_backward nll_loss_backward sigmoid_backward silu_backward smooth_l1_loss_backward "
    "softplus_backward softshrink_backward tanh_backward threshold_backward"
)
_NORM = _aten("_fused_rms_norm _log_softmax _safe_softmax _softmax native_group_norm native_layer_norm")
_REDUCTION = _aten(
    "all amax amin any argmax argmin linalg_vector_norm logsumexp mean mse_loss prod smooth_l1_loss std std_mean sum "
    "var var_mean"
)
_CAST_AND_COPY = _aten(
    "_to_copy _unsafe_index as_strided_copy cat clone constant_pad_nd copy diag_embed embedding expand_copy flip "
    "gather index index_select permute_copy reflection_pad1d reflection_pad2d repeat replication_pad1d "
    "replication_pad2d roll select_backward select_scatter slice_backward slice_scatter stack take_along_dim tril "
    "triu view_copy"
)
_FILL = _aten(
    "arange eye full full_like linspace new_full new_ones new_zeros ones ones_like scalar_tensor zeros zeros_like"
)
_POOL = _aten(
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d avg_pool2d avg_pool3d max_pool2d_with_indices "
    "max_pool3d_with_indices pixel_shuffle pixel_unshuffle upsample_bicubic2d upsample_bilinear2d upsample_linear1d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d"
)
_RANDOM = _aten("bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_")
_IN_PLACE = _aten(
    "abs_ add_ addcdiv_ addcmul_ clamp_ clamp_max_ clamp_min_ div_ elu_ exp_ fill_ gelu_ hardsigmoid_ hardswish_ "
    "hardtanh_ leaky_relu_ log_ masked_fill_ mul_ neg_ pow_ reciprocal_ relu_ rsqrt_ sigmoid_ silu_ sqrt_ sub_ tanh_ "
    "threshold_ zero_"
)

_MATMUL = _aten("_addmm_activation _grouped_mm addbmm addmm addmv addr baddbmm bmm dot mm mv vdot")
_CONVOLUTION = _aten("convolution")
# Where dropout_p is 0 only.
_ATTENTION = _aten(
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_for_cpu"
)

# Ops that are made of others. Traces show these names; what is replayed is the op inside that made the storage.
_MADE_OF_CLASS_1 = _aten(
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d concat concatenate contiguous cross_entropy_loss "
    "flatten group_norm hstack layer_norm log_sigmoid log_softmax max_pool1d max_pool2d max_pool3d pad prelu relu6 "
    "reshape rms_norm softmax to type_as vstack"
)
_MADE_OF_CLASS_2 = _aten(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d einsum inner "
    "linear matmul scaled_dot_product_attention tensordot"
)

REPLAY_CLASS: dict[str, int] = {
    **dict.fromkeys(
        (
            *_ELEMENTWISE,
            *_ACTIVATION,
            *_ACTIVATION_BACKWARD,
            *_NORM,
            *_REDUCTION,
            *_CAST_AND_COPY,
            *_FILL,
            *_POOL,
            *_RANDOM,
            *_IN_PLACE,
            *_MADE_OF_CLASS_1,
        ),
        1,
    ),
    **dict.fromkeys((*_MATMUL, *_CONVOLUTION, *_ATTENTION, *_MADE_OF_CLASS_2), 2),
}
"""The class of every op that can be replayed, by its name as in traces.

1: cheap for its bytes, and the same bits wherever it runs. 2: matrix products, convolutions and attention, which are
replayed where a session has seen that they repeat themselves to the bit (on this device, with this dtype).
"""
