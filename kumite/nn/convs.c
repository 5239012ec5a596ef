/* A stack of convolutions over bytes, each followed by a ReLU, and its gradients: nn/convs.py compiles it for one stack.

   Ahead of this text stand its numbers: WIDE floats in a vector, MOST positions and TAPS weights that registers hold
   sums of, the sizes below, a LAYERn for each layer, UP and DOWN (what to do with each, from below and from above).

   A frame's activations lie one layer behind the other, KEPT floats, a place's channels side by side. The pixels lie in
   planes, so a kernel's line of weights covers `kernel * depth` neighbours there (depth 1) and above (depth = channels
   in). Every product is a sum held in registers: a number of one side times a vector of channels of the other. */

#include <stdint.h>
#include <string.h>

typedef float vec __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));

typedef struct {
  int planes, height, width, depth;         /* what comes in */
  int out, kernel, stride, rows, columns;   /* what goes out */
  int before, at;                           /* where both stand in a frame's activations */
  int weight, bias;                         /* among all weights and biases: [planes, y, x, depth, out] and [out] */
  int turned;                               /* among the weights for gradients of inputs: [y, x, out, depth] */
} Layer;

#define INLINE static inline __attribute__((always_inline))
#define EACH(i, n) _Pragma("GCC unroll 64") for (int i = 0; i < n; i++)
#define AT(p) (*(vec *)(p))
#define VECTORS(channels) ((channels) % (2 * WIDE) ? 1 : 2)

/* P positions of a line, V vectors of channels */
INLINE void forward_tile(const Layer L, const int P, const int V, const float *restrict x, const float *restrict w,
                         const float *restrict bias, float *restrict out) {
  const int step = L.stride * L.depth, run = L.kernel * L.depth, line = L.width * L.depth;
  vec sum[MOST][2];
  EACH(p, P) EACH(v, V) sum[p][v] = AT(bias + v * WIDE);
  for (int c = 0; c < L.planes; c++)
    for (int y = 0; y < L.kernel; y++)
      for (int i = 0; i < run; i++, w += L.out) {
        const float *from = x + (c * L.height + y) * line + i;
        vec k[2];
        EACH(v, V) k[v] = AT(w + v * WIDE);
        EACH(p, P) EACH(v, V) sum[p][v] += from[p * step] * k[v];
      }
  EACH(p, P) EACH(v, V) AT(out + p * L.out + v * WIDE) = (vec)((ints)sum[p][v] & ~(sum[p][v] <= 0)); /* NaN stays */
}

/* T weights that are neighbours in x, V vectors of their channels, over all positions of some frames */
INLINE void weights_tile(const Layer L, const int T, const int V, const float *restrict x, const float *restrict g,
                         float *restrict gw, int frames) {
  vec sum[TAPS][2];
  EACH(t, T) EACH(v, V) sum[t][v] = AT(gw + t * L.out + v * WIDE);
  for (int f = 0; f < frames; f++)
    for (int y = 0; y < L.rows; y++) {
      const float *from = x + (int64_t)f * KEPT + y * L.stride * L.width * L.depth;
      const float *to = g + (int64_t)f * KEPT + y * L.columns * L.out;
      for (int p = 0; p < L.columns; p++, from += L.stride * L.depth, to += L.out) {
        vec k[2];
        EACH(v, V) k[v] = AT(to + v * WIDE);
        EACH(t, T) EACH(v, V) sum[t][v] += from[t] * k[v];
      }
    }
  EACH(t, T) EACH(v, V) AT(gw + t * L.out + v * WIDE) = sum[t][v];
}

/* what P positions of a line say to the inputs that one weight of the kernel saw there */
INLINE void inputs_tile(const Layer L, const int P, const int V, const float *restrict g, const float *restrict w,
                        float *restrict gx) {
  const int step = L.stride * L.depth;
  vec sum[MOST][2];
  EACH(p, P) EACH(v, V) sum[p][v] = AT(gx + p * step + v * WIDE);
  for (int o = 0; o < L.out; o++, w += L.depth) {
    vec k[2];
    EACH(v, V) k[v] = AT(w + v * WIDE);
    EACH(p, P) EACH(v, V) sum[p][v] += g[p * L.out + o] * k[v];
  }
  EACH(p, P) EACH(v, V) AT(gx + p * step + v * WIDE) = sum[p][v];
}

/* a line in equal tiles of at most MOST, and what is left */
#define TILES(columns) (((columns) + MOST - 1) / MOST)
#define TILE(columns) (((columns) + TILES(columns) - 1) / TILES(columns))

INLINE void forward(const Layer L, const float *x, const float *w, const float *bias, float *out) {
  const int V = VECTORS(L.out), P = TILE(L.columns), rest = L.columns % P, step = L.stride * L.depth;
  for (int o = 0; o < L.out; o += V * WIDE)
    for (int y = 0; y < L.rows; y++) {
      const float *from = x + y * L.stride * L.width * L.depth;
      float *to = out + y * L.columns * L.out + o;
      int p = 0;
      for (; p + P <= L.columns; p += P) forward_tile(L, P, V, from + p * step, w + o, bias + o, to + p * L.out);
      if (rest) forward_tile(L, rest, V, from + p * step, w + o, bias + o, to + p * L.out);
    }
}

INLINE void weights(const Layer L, const float *x, const float *g, float *gw, float *gb, int frames) {
  const int V = VECTORS(L.out), run = L.kernel * L.depth, T = run < TAPS ? run : TAPS, rest = run % T;
  for (int c = 0; c < L.planes; c++)
    for (int y = 0; y < L.kernel; y++)
      for (int o = 0; o < L.out; o += V * WIDE) {
        const float *from = x + (c * L.height + y) * L.width * L.depth;
        float *to = gw + (c * L.kernel + y) * run * L.out + o;
        int t = 0;
        for (; t + T <= run; t += T) weights_tile(L, T, V, from + t, g + o, to + t * L.out, frames);
        if (rest) weights_tile(L, rest, V, from + t, g + o, to + t * L.out, frames);
      }
  for (int o = 0; o < L.out; o += WIDE) {
    vec sum = AT(gb + o);
    for (int f = 0; f < frames; f++)
      for (int p = 0; p < L.rows * L.columns; p++) sum += AT(g + (int64_t)f * KEPT + p * L.out + o);
    AT(gb + o) = sum;
  }
}

INLINE void inputs(const Layer L, const float *g, const float *w, float *gx) {
  const int V = VECTORS(L.depth), P = TILE(L.columns), rest = L.columns % P, step = L.stride * L.depth;
  memset(gx, 0, sizeof(float) * L.height * L.width * L.depth);
  for (int i = 0; i < L.depth; i += V * WIDE)
    for (int k = 0; k < L.kernel * L.kernel; k++)
      for (int y = 0; y < L.rows; y++) {
        const float *from = g + y * L.columns * L.out, *by = w + k * L.out * L.depth + i;
        float *to = gx + ((y * L.stride + k / L.kernel) * L.width + k % L.kernel) * L.depth + i;
        int p = 0;
        for (; p + P <= L.columns; p += P) inputs_tile(L, P, V, from + p * L.out, by, to + p * step);
        if (rest) inputs_tile(L, rest, V, from + p * L.out, by, to + p * step);
      }
}

INLINE void floats(const uint8_t *pixels, float scale, float *x) {
  for (int i = 0; i < PIXELS; i++) x[i] = (float)pixels[i] * scale;
}

/* torch's weights [out, in, y, x] as `forward` passes over them */
INLINE void order(const Layer L, const float *from, const float *bias, float *w) {
  const int many = L.kernel * L.kernel, in = L.planes * L.depth;
  for (int o = 0; o < L.out; o += WIDE)
    for (int i = 0; i < in * many; i++) {
      int row = L.planes > 1 ? i : i % many * in + i / many;
      for (int v = 0; v < WIDE; v++) w[L.weight + row * L.out + o + v] = from[(o + v) * in * many + i];
    }
  memcpy(w + L.bias, bias, sizeof(float) * L.out);
}

/* and as `inputs` does */
INLINE void turn(const Layer L, const float *from, float *w) {
  const int many = L.kernel * L.kernel;
  for (int o = 0; o < L.out; o++)
    for (int k = 0; k < many; k++)
      for (int i = 0; i < L.depth; i++) w[L.turned + (k * L.out + o) * L.depth + i] = from[(o * L.depth + i) * many + k];
}

/* params: weight, bias, weight, bias, ... as torch has them;
   [frames, PIXELS] -> out [frames, LAST], in torch's order: channels, places; kept: [frames, KEPT], or NULL */
void see(const uint8_t *pixels, int64_t frames, float scale, const float *const *params, float *kept, float *out,
         int threads) {
  static _Thread_local float ordered[TOTAL];
  const float *w = ordered;
#define STEP(n, L) order(L, params[2 * n], params[2 * n + 1], ordered);
  UP(STEP)
#undef STEP
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t f = 0; f < frames; f++) {
    static _Thread_local float x[PIXELS], own[KEPT];
    float *a = kept ? kept + f * KEPT : own;
    floats(pixels + f * PIXELS, scale, x);
#define STEP(n, L) forward(L, n ? a + L.before : x, w + L.weight, w + L.bias, a + L.at);
    UP(STEP)
#undef STEP
    for (int c = 0; c < CHANNELS; c++)
      for (int p = 0; p < PLACES; p++) out[f * LAST + c * PLACES + p] = a[KEPT - LAST + p * CHANNELS + c];
  }
}

/* gradients of weights and biases, each thread's own: [threads, TOTAL] */
void learn(const uint8_t *pixels, int64_t frames, float scale, const float *const *params, const float *kept,
           const float *gout, float *sums, int threads) {
  static _Thread_local float by[TOTAL];
  const float *turned = by;
#define STEP(n, L) turn(L, params[2 * n], by);
  DOWN(STEP)
#undef STEP
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int t = 0; t < threads; t++) {
    static _Thread_local float x[PIXELS], g[GROUP * KEPT];
    float *gw = sums + (int64_t)t * TOTAL;
    memset(gw, 0, sizeof(float) * TOTAL);
    int64_t end = frames * (t + 1) / threads;
    for (int64_t f = frames * t / threads; f < end; f += GROUP) {
      const float *a = kept + f * KEPT;
      int many = end - f < GROUP ? end - f : GROUP;
      for (int i = 0; i < many; i++)
        for (int c = 0; c < CHANNELS; c++)
          for (int p = 0; p < PLACES; p++) {
            int64_t at = (int64_t)i * KEPT + KEPT - LAST + p * CHANNELS + c;
            g[at] = a[at] <= 0 ? 0 : gout[(f + i) * LAST + c * PLACES + p];
          }
#define STEP(n, L) \
  for (int i = 0; i < many; i++) { \
    float *to = g + i * KEPT + L.before; \
    inputs(L, g + i * KEPT + L.at, turned + L.turned, to); \
    for (int j = 0; j < L.height * L.width * L.depth; j++) to[j] = a[i * KEPT + L.before + j] <= 0 ? 0 : to[j]; \
  } \
  weights(L, a + L.before, g + L.at, gw + L.weight, gw + L.bias, many);
      DOWN(STEP)
#undef STEP
      for (int i = 0; i < many; i++) {
        floats(pixels + (f + i) * PIXELS, scale, x);
        weights(LAYER0, x, g + i * KEPT + LAYER0.at, gw + LAYER0.weight, gw + LAYER0.bias, 1);
      }
    }
  }
}
