"""One inner loop in C: drawing many leaves of a large replay, where torch's own searches cost three times as much.

It is compiled by the system's `cc` when a run first needs it, in a temporary folder, and does the same sums in the same
order as the lines of torch that it replaces (samplers.Sums.draw): its answers are theirs bit for bit, so it changes
nothing but the time. Without a compiler torch does the work.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

SOURCE = r"""
#include <stdint.h>
#define BLOCK 64

/* chance: size numbers in [0, 1) for the places in the parts of the total, size for the leaves in their blocks */
void draw(const float *leaf, const float *block, int64_t blocks, double *sums, const float *chance, int64_t size,
          int64_t *out) {
  for (int64_t i = 0; i < blocks; i += 4 * BLOCK) { /* four sums at once: each waits for its last addition */
    double sum4[4] = {0, 0, 0, 0};
    for (int k = 0; k < BLOCK; k++)
      for (int r = 0; r < 4; r++) sums[i + r * BLOCK + k] = sum4[r] += block[i + r * BLOCK + k];
  }
  double sum = 0;
  for (int64_t i = 0; i < blocks; i += BLOCK) {
    for (int k = 0; k < BLOCK; k++) sums[i + k] += sum;
    sum = sums[i + BLOCK - 1];
  }
  int64_t at = 0; /* the parts of the total are in order, so one pass finds the block of each */
  for (int64_t i = 0; i < size; i++) {
    double u = ((double)i + (double)(1 - chance[i])) / (double)size * sum;
    while (at + 8 <= blocks && sums[at + 7] < u) at += 8;
    while (at < blocks - 1 && sums[at] < u) at++;
    out[i] = at;
    for (int k = 0; k < BLOCK; k += 16) __builtin_prefetch(leaf + at * BLOCK + k);
  }
  for (int64_t i = 0; i < size; i += 4) {
    const float *row[4];
    float sums4[4][BLOCK];
    double sum4[4] = {0, 0, 0, 0};
    for (int r = 0; r < 4; r++) row[r] = leaf + out[i + r < size ? i + r : size - 1] * BLOCK;
    for (int k = 0; k < BLOCK; k++)
      for (int r = 0; r < 4; r++) sums4[r][k] = (float)(sum4[r] += row[r][k]);
    for (int r = 0; r < 4 && i + r < size; r++) {
      float u = (1 - chance[size + i + r]) * sums4[r][BLOCK - 1];
      int32_t smaller = 0;
      for (int k = 0; k < BLOCK; k++) smaller += sums4[r][k] < u;
      out[i + r] = out[i + r] * BLOCK + smaller;
    }
  }
}
"""


@functools.cache
def draw() -> Callable[..., None] | None:
    """The compiled loop (addresses and sizes, as in SOURCE), or None where it cannot be had."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="kumite-") as folder:
            source, library = Path(folder) / "draw.c", Path(folder) / "draw.so"
            source.write_text(SOURCE, encoding="utf-8")
            # no fused multiply-add: every product and every sum is rounded by itself, as torch does
            flags = ["-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC"]
            subprocess.run([compiler, *flags, "-o", library, source], check=True, capture_output=True, timeout=60)
            loop = ctypes.CDLL(str(library)).draw
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None
    address, count = ctypes.c_void_p, ctypes.c_int64
    loop.argtypes = [address, address, count, address, address, count, address]
    loop.restype = None
    found: Callable[..., None] = loop
    return found
