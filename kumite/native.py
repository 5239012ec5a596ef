"""Inner loops in C, compiled by the system's `cc` when a run first needs them, in a temporary folder.

One stands here: drawing many leaves of a large replay, where torch's own searches cost three times as much. It does the
same sums in the same order as the lines of torch that it replaces (samplers.Sums.draw): its answers are theirs bit for
bit, so it changes nothing but the time. The other is nn/convs.c. Without a compiler torch does the work.
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
    # no fused multiply-add: every product and every sum is rounded by itself, as torch does
    found = library(SOURCE, "-ffp-contract=off")
    if found is None:
        return None
    loop: Callable[..., None] = found.draw
    address, count = ctypes.c_void_p, ctypes.c_int64
    found.draw.argtypes = [address, address, count, address, address, count, address]
    found.draw.restype = None
    return loop


def library(source: str, *flags: str) -> ctypes.CDLL | None:
    """A text in C, compiled for this CPU; None where that is impossible.

    It is linked with nothing: threads, if it asks for them by OpenMP, are those that torch has brought along.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="kumite-") as folder:
            text, code, made = (f"{folder}/loops.{end}" for end in ("c", "o", "so"))
            Path(text).write_text(source, encoding="utf-8")
            for words in (
                ["-O3", "-march=native", "-fPIC", *flags, "-c", "-o", code, text],
                ["-shared", "-o", made, code],
            ):
                subprocess.run([compiler, *words], check=True, capture_output=True, timeout=60)
            return ctypes.CDLL(made)
    except (OSError, subprocess.SubprocessError):
        return None
