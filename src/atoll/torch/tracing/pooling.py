"""Graph pass on traced programs: maximum pooling of plainly stored images in native code.

PyTorch's own takes longer than the convolutions around it, unless the channel is the innermost axis, where its group normalisation is slow.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from atoll.native import library_of

__all__ = ["pools", "replace_pools"]

Tensor = torch.Tensor
aten: Any = torch.ops.aten
_TEXT = r"""
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif
constexpr int64_t K = {size}, S = {stride};
// The largest entry of each window and its place there, row by row: the first of equal ones; what is not a number wins.
extern "C" void pool(const float* __restrict x, float* __restrict y, uint8_t* __restrict at, int64_t planes, int64_t h, int64_t w) {{
  const int64_t rows = (h - K) / S + 1, columns = (w - K) / S + 1;
  for (int64_t p = 0; p < planes * rows; ++p) {{
    const float* __restrict from = x + (p / rows) * h * w + (p % rows) * S * w;
    float* __restrict to = y + p * columns;
    uint8_t* __restrict place = at + p * columns;
#if defined(__AVX512F__)
    // Sixteen windows at once, the last ones with idle lanes: rows are too short for what a compiler makes of the loop below.
    const __m512i step = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32(S));
    for (int64_t c = 0; c < columns; c += 16) {{
      const __mmask16 lanes = columns - c >= 16 ? 0xFFFF : (1u << (columns - c)) - 1u;
      __m512 most = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, step, from + c * S, 4);
      __m512i found = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int i = 0; i < K; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < K; ++j) {{
          const __m512 other = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, step, from + i * w + c * S + j, 4);
          const __mmask16 more = _mm512_cmp_ps_mask(other, most, _CMP_GT_OQ) | _mm512_cmp_ps_mask(other, other, _CMP_UNORD_Q);
          most = _mm512_mask_mov_ps(most, more, other);
          found = _mm512_mask_mov_epi32(found, more, _mm512_set1_epi32(i * K + j));
        }}
      _mm512_mask_storeu_ps(to + c, lanes, most);
      _mm512_mask_cvtepi32_storeu_epi8(place + c, lanes, found);
    }}
    continue;
#endif
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {{
      float most = from[c * S];
      int32_t found = 0;
#pragma GCC unroll 16
      for (int i = 0; i < K; ++i)
#pragma GCC unroll 16
        for (int j = 0; j < K; ++j) {{
          const float other = from[i * w + c * S + j];
          const bool more = (other > most) | (other != other);
          most = more ? other : most;
          found = more ? (int32_t)(i * K + j) : found;
        }}
      to[c] = most;
      place[c] = (uint8_t)found;
    }}
  }}
}}
extern "C" void unpool(const float* __restrict g, const uint8_t* __restrict at, float* __restrict x, int64_t planes, int64_t h, int64_t w) {{
  const int64_t rows = (h - K) / S + 1, columns = (w - K) / S + 1;
  memset(x, 0, planes * h * w * sizeof(float));
  for (int64_t p = 0; p < planes * rows; ++p) {{
    float* __restrict to = x + (p / rows) * h * w + (p % rows) * S * w;
    const float* __restrict from = g + p * columns;
    const uint8_t* __restrict place = at + p * columns;
    if constexpr (S >= K) {{  // windows apart from one another
      for (int64_t c = 0; c < columns; ++c) to[(place[c] / K) * w + c * S + place[c] % K] = from[c];
      continue;
    }}
    for (int i = 0; i < K; ++i)
#pragma GCC unroll 16
      for (int j = 0; j < K; ++j)
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) to[i * w + c * S + j] += place[c] == i * K + j ? from[c] : 0.0f;
  }}
}}
"""


def pools(gm: GraphModule) -> Iterator[tuple[Node, int, int]]:
    """Yield the poolings that native code can do, with the side and the stride of their windows."""
    for node in gm.graph.nodes:
        if node.target is not aten.max_pool2d_with_indices.default:
            continue
        given: Any = (*node.args[1:], *([], [0], [1], False)[len(node.args) - 2 :])
        size, stride, padding, dilation, ceil = given
        stride = stride or size
        value, used = node.args[0].meta["val"], [user for user in node.users if user.args[1] == 1]
        plain = {*padding} == {0} and {*dilation} == {1} and not ceil and len({*size}) == len({*stride}) == 1
        backward = all(user.target is aten.max_pool2d_with_indices_backward.default for at in used for user in at.users)
        plain = plain and value.is_contiguous()
        if plain and backward and value.dtype == torch.float32 and size[0] <= 15:
            yield node, int(size[0]), int(stride[0])


def replace_pools(gm: GraphModule) -> bool:
    """Let native code pool, where it can; return whether it does. ``recompile`` writes the module's code."""
    replaced = False
    for node, size, stride in list(pools(gm)):
        made = _functions(size, stride)
        if made is None:
            return replaced
        forward, backward = made
        for user in list(node.users):
            for reader in list(user.users) if user.args[1] == 1 else ():
                reader.target, reader.args = backward, (reader.args[0], reader.args[1], user)
        node.target, node.args, node.kwargs = forward, node.args[:1], {}
        replaced = True
    return replaced


@functools.cache
def _functions(size: int, stride: int) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    library = library_of(_TEXT.format(size=size, stride=stride))
    if library is None:
        return None
    for function in (library.pool, library.unpool):
        function.restype, function.argtypes = None, [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3

    def pooled(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        *planes, height, width = x.shape
        shape = (*planes, (height - size) // stride + 1, (width - size) // stride + 1)
        made, places = x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)
        library.pool(x.data_ptr(), made.data_ptr(), places.data_ptr(), x.shape[:-2].numel(), height, width)
        return made, places

    def unpooled(slope: Tensor, x: Tensor, places: Tensor) -> Tensor:
        slope, (height, width) = slope.contiguous(), x.shape[-2:]
        made = x.new_empty(x.shape)
        planes = x.shape[:-2].numel()
        library.unpool(slope.data_ptr(), places.data_ptr(), made.data_ptr(), planes, height, width)
        return made

    return pooled, unpooled
