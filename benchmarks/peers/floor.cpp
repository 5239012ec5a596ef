// One SAC update by hand: what this CPU's vector units leave to be won. Batch 256, observations of 17, actions of 6,
// nets of 2 x 256, two critics, automatic temperature, Adam, moving targets; the arithmetic of kumite/algos/sac.py.
//
//     floor THREADS SECONDS       prints {"figure": milliseconds per update, ...}
//
// Built by floor.py with -O3 -march=native. All products go through one register-blocked kernel over packed panels.

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int B = 256, O = 17, A = 6, H = 256;
constexpr int PANEL = 64, DEPTH = 128;  // a packed piece of the right factor: 32 KB, it stays in the first cache

static float* floats(size_t n) {
    float* p = static_cast<float*>(std::aligned_alloc(64, (n * 4 + 63) / 64 * 64));
    std::memset(p, 0, (n * 4 + 63) / 64 * 64);
    return p;
}

// ROWS x 16 WIDE of C (+)= A[rows, depth] * panel. Element (m, k) of A lies at a[m * am + k * ak].
template <int ROWS, int WIDE>
static inline void kernel(const float* a, long am, long ak, const float* panel, int depth, float* c, long ldc, int cols, bool add) {
    __m512 s[ROWS][WIDE];
    for (int r = 0; r < ROWS; ++r)
        for (int j = 0; j < WIDE; ++j) s[r][j] = _mm512_setzero_ps();
    for (int k = 0; k < depth; ++k) {
        __m512 b[WIDE];
        for (int j = 0; j < WIDE; ++j) b[j] = _mm512_load_ps(panel + k * PANEL + 16 * j);
        for (int r = 0; r < ROWS; ++r) {
            __m512 x = _mm512_set1_ps(a[r * am + k * ak]);
            for (int j = 0; j < WIDE; ++j) s[r][j] = _mm512_fmadd_ps(x, b[j], s[r][j]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int j = 0; j < WIDE; ++j) {
            int left = cols - 16 * j;
            if (left <= 0) continue;
            __mmask16 m = left >= 16 ? 0xFFFF : (1u << left) - 1;
            float* at = c + r * ldc + 16 * j;
            _mm512_mask_storeu_ps(at, m, add ? _mm512_add_ps(_mm512_maskz_loadu_ps(m, at), s[r][j]) : s[r][j]);
        }
}

template <int ROWS>
static inline void kernels(const float* a, long am, long ak, const float* panel, int depth, float* c, long ldc, int cols, bool add) {
    if (cols > 32) kernel<ROWS, 4>(a, am, ak, panel, depth, c, ldc, cols, add);
    else if (cols > 16) kernel<ROWS, 2>(a, am, ak, panel, depth, c, ldc, cols, add);
    else kernel<ROWS, 1>(a, am, ak, panel, depth, c, ldc, cols, add);
}

static float* PACKED = floats(1 << 20);

// C[M, N] = A[M, K] * B[K, N]; element (k, n) of B lies at b[k * bk + n * bn].
static void product(int M, int N, int K, const float* a, long am, long ak, const float* b, long bk, long bn, float* c, long ldc) {
    int panels = (N + PANEL - 1) / PANEL;
#pragma omp for schedule(static)
    for (int p = 0; p < panels; ++p) {
        float* to = PACKED + static_cast<long>(p) * K * PANEL;
        int n0 = p * PANEL, cols = std::min(PANEL, N - n0);
        if (bn == 1) {
            for (int k = 0; k < K; ++k) {
                for (int j = 0; j < cols; ++j) to[k * PANEL + j] = b[k * bk + n0 + j];
                for (int j = cols; j < PANEL; ++j) to[k * PANEL + j] = 0;
            }
        } else {
            __m512i step = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32(bn));
            for (int k = 0; k < K; ++k)
                for (int j = 0; j < PANEL; j += 16) {
                    int left = cols - j;
                    __mmask16 m = left >= 16 ? 0xFFFF : left > 0 ? (1u << left) - 1 : 0;
                    const float* from = b + k * bk + (n0 + j) * bn;
                    _mm512_store_ps(to + k * PANEL + j, _mm512_mask_i32gather_ps(_mm512_setzero_ps(), m, step, from, 4));
                }
        }
    }
    int blocks = (M + 5) / 6;
#pragma omp for schedule(static) collapse(2)
    for (int p = 0; p < panels; ++p)
        for (int group = 0; group < (blocks + 10) / 11; ++group)
            for (int k0 = 0; k0 < K; k0 += DEPTH)
                for (int m = group * 66; m < std::min(M, group * 66 + 66); m += 6) {
                    int depth = std::min(DEPTH, K - k0), cols = std::min(PANEL, N - p * PANEL), rows = std::min(6, M - m);
                    const float* panel = PACKED + static_cast<long>(p) * K * PANEL + k0 * PANEL;
                    const float* x = a + m * am + k0 * ak;
                    float* to = c + m * ldc + p * PANEL;
                    switch (rows) {
                        case 6: kernels<6>(x, am, ak, panel, depth, to, ldc, cols, k0 > 0); break;
                        case 5: kernels<5>(x, am, ak, panel, depth, to, ldc, cols, k0 > 0); break;
                        case 4: kernels<4>(x, am, ak, panel, depth, to, ldc, cols, k0 > 0); break;
                        case 3: kernels<3>(x, am, ak, panel, depth, to, ldc, cols, k0 > 0); break;
                        case 2: kernels<2>(x, am, ak, panel, depth, to, ldc, cols, k0 > 0); break;
                        default: kernels<1>(x, am, ak, panel, depth, to, ldc, cols, k0 > 0);
                    }
                }
}

struct Layer {
    int in, out;
    float *w, *b, *gw, *gb, *mw, *vw, *mb, *vb;  // w: [in, out]
    Layer(int in, int out) : in(in), out(out) {
        for (float** p : {&w, &gw, &mw, &vw}) *p = floats(static_cast<size_t>(in) * out);
        for (float** p : {&b, &gb, &mb, &vb}) *p = floats(out);
        float bound = 1 / std::sqrt(static_cast<float>(in));
        for (int i = 0; i < in * out; ++i) w[i] = bound * (2 * drand48() - 1);
    }
    void forward(const float* x, float* y, bool relu) const {
        product(B, out, in, x, in, 1, w, out, 1, y, out);
#pragma omp for schedule(static)
        for (int r = 0; r < B; ++r)
            for (int j = 0; j < out; ++j) {
                float z = y[r * out + j] + b[j];
                y[r * out + j] = relu ? std::max(z, 0.0f) : z;
            }
    }
    void gradients(const float* x, const float* dy) {
        product(in, out, B, x, 1, in, dy, out, 1, gw, out);
#pragma omp for schedule(static)
        for (int j0 = 0; j0 < out; j0 += 16) {
            for (int j = j0; j < std::min(out, j0 + 16); ++j) gb[j] = 0;
            for (int r = 0; r < B; ++r)
                for (int j = j0; j < std::min(out, j0 + 16); ++j) gb[j] += dy[r * out + j];
        }
    }
    // dx = dy * w', zero where the layer below was cut off by its relu (y may be null)
    void back(const float* dy, float* dx, const float* y) const {
        product(B, in, out, dy, out, 1, w, 1, out, dx, in);
        if (!y) return;
#pragma omp for schedule(static)
        for (int i = 0; i < B * in; ++i) dx[i] = y[i] > 0 ? dx[i] : 0;
    }
    static void adam(float* p, const float* g, float* m, float* v, int n, float c1, float c2) {
#pragma omp for schedule(static)
        for (int i = 0; i < n; ++i) {
            m[i] += 0.1f * (g[i] - m[i]);
            v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
            p[i] -= 3e-4f / c1 * m[i] / (std::sqrt(v[i]) / c2 + 1e-8f);
        }
    }
    void step(float c1, float c2) {
        adam(w, gw, mw, vw, in * out, c1, c2);
        adam(b, gb, mb, vb, out, c1, c2);
    }
    void follow(const Layer& o) {
#pragma omp for schedule(static)
        for (int i = 0; i < in * out; ++i) w[i] += 0.005f * (o.w[i] - w[i]);
#pragma omp for schedule(static)
        for (int i = 0; i < out; ++i) b[i] += 0.005f * (o.b[i] - b[i]);
    }
};

struct Net {
    Layer a, b, c;
    float *h1, *h2, *y, *d1, *d2, *dx;
    Net(int in, int out) : a(in, H), b(H, H), c(H, out) {
        h1 = floats(B * H), h2 = floats(B * H), y = floats(B * out), d1 = floats(B * H), d2 = floats(B * H), dx = floats(B * in);
    }
    void forward(const float* x) { a.forward(x, h1, true), b.forward(h1, h2, true), c.forward(h2, y, false); }
    void back(const float* dy) { c.back(dy, d2, h2), b.back(d2, d1, h1); }
    void learn(const float* x, const float* dy, float c1, float c2) {
        back(dy);
        c.gradients(h2, dy), b.gradients(h1, d2), a.gradients(x, d1);
        c.step(c1, c2), b.step(c1, c2), a.step(c1, c2);
    }
    void input_gradient(const float* dy) { back(dy), a.back(d1, dx, nullptr); }
    void follow(const Net& o) { a.follow(o.a), b.follow(o.b), c.follow(o.c); }
};

static Net actor(O, 2 * A), q1(O + A, 1), q2(O + A, 1), t1(O + A, 1), t2(O + A, 1);
static float *obs = floats(B * O), *next = floats(B * O), *act = floats(B * A), *reward = floats(B), *goes_on = floats(B);
static float *noise = floats(2 * B * A), *action = floats(B * A), *x = floats(B * (O + A)), *logp = floats(B), *target = floats(B);
static float *dq1 = floats(B), *dq2 = floats(B), *dy = floats(B * 2 * A);
static float log_alpha = 0, m_alpha = 0, v_alpha = 0, critic_loss = 0, entropy = 0;

static void draw(const float* eps) {  // from actor.y; flat loops, so that the compiler uses its vector exp and tanh
#pragma omp for schedule(static)
    for (int block = 0; block < B; block += 64) {
        float mean[64 * A], log_std[64 * A], part[64 * A];
        for (int i = 0; i < 64 * A; ++i) {
            const float* row = actor.y + (block + i / A) * 2 * A + i % A;
            mean[i] = row[0], log_std[i] = row[A];
        }
        const float* e = eps + block * A;
        float* to = action + block * A;
        for (int i = 0; i < 64 * A; ++i) log_std[i] = -5 + 3.5f * (std::tanh(log_std[i]) + 1);
        for (int i = 0; i < 64 * A; ++i) {
            float u = mean[i] + std::exp(log_std[i]) * e[i];
            to[i] = std::tanh(u);
            float a = std::fabs(u);  // log(1 - tanh(u)^2) is even in u
            part[i] = -0.5f * e[i] * e[i] - log_std[i] - 0.9189385f - 2 * (0.6931472f - a - std::log(1 + std::exp(-2 * a)));
        }
        for (int r = 0; r < 64; ++r) {
            logp[block + r] = 0;
            for (int j = 0; j < A; ++j) logp[block + r] += part[r * A + j];
        }
    }
}

static void join(const float* o, const float* a) {
#pragma omp for schedule(static)
    for (int r = 0; r < B; ++r) {
        std::memcpy(x + r * (O + A), o + r * O, O * 4);
        std::memcpy(x + r * (O + A) + O, a + r * A, A * 4);
    }
}

static void update(long t) {  // every thread runs it; loops are shared
    float c1 = 1 - std::pow(0.9, t), c2 = std::sqrt(1 - std::pow(0.999, t)), alpha = std::exp(log_alpha);
    actor.forward(next), draw(noise), join(next, action), t1.forward(x), t2.forward(x);
#pragma omp for schedule(static)
    for (int r = 0; r < B; ++r) target[r] = reward[r] + goes_on[r] * (std::min(t1.y[r], t2.y[r]) - alpha * logp[r]);
    join(obs, act), q1.forward(x), q2.forward(x);
#pragma omp single
    {
        critic_loss = 0;
        for (int r = 0; r < B; ++r) {
            dq1[r] = 2 * (q1.y[r] - target[r]) / B, dq2[r] = 2 * (q2.y[r] - target[r]) / B;
            critic_loss += (std::pow(q1.y[r] - target[r], 2) + std::pow(q2.y[r] - target[r], 2)) / B;
        }
    }
    q1.learn(x, dq1, c1, c2), q2.learn(x, dq2, c1, c2);

    actor.forward(obs), draw(noise + B * A), join(obs, action), q1.forward(x), q2.forward(x);
#pragma omp for schedule(static)
    for (int r = 0; r < B; ++r) {
        bool first = q1.y[r] <= q2.y[r];
        dq1[r] = first ? -1.0f / B : 0, dq2[r] = first ? 0 : -1.0f / B;
    }
    q1.input_gradient(dq1), q2.input_gradient(dq2);
#pragma omp for schedule(static)
    for (int r = 0; r < B; ++r)
        for (int j = 0; j < A; ++j) {
            float th = std::tanh(actor.y[r * 2 * A + A + j]), log_std = -5 + 3.5f * (th + 1), a = action[r * A + j];
            float e = noise[B * A + r * A + j] * std::exp(log_std), g = q1.dx[r * (O + A) + O + j] + q2.dx[r * (O + A) + O + j];
            float du = g * (1 - a * a) + alpha / B * 2 * a;
            dy[r * 2 * A + j] = du;
            dy[r * 2 * A + A + j] = (du * e - alpha / B) * 3.5f * (1 - th * th);
        }
    actor.learn(obs, dy, c1, c2);
#pragma omp single
    {
        float gap = 0;
        for (int r = 0; r < B; ++r) gap -= logp[r] / B;
        entropy = gap, gap += A;
        m_alpha += 0.1f * (gap - m_alpha), v_alpha = 0.999f * v_alpha + 0.001f * gap * gap;
        log_alpha -= 3e-4f / c1 * m_alpha / (std::sqrt(v_alpha) / c2 + 1e-8f);
    }
    t1.follow(q1), t2.follow(q2);
}

int main(int argc, char** argv) {
    int threads = argc > 1 ? std::atoi(argv[1]) : 1;
    double enough = argc > 2 ? std::atof(argv[2]) : 5;
    omp_set_num_threads(threads);
    auto normal = [] { return std::sqrt(-2 * std::log(1 - drand48())) * std::cos(6.2831853 * drand48()); };
    for (float* p : {obs, next})
        for (int i = 0; i < B * O; ++i) p[i] = normal();
    for (int i = 0; i < B * A; ++i) act[i] = std::tanh(normal());
    for (int i = 0; i < B; ++i) reward[i] = normal(), goes_on[i] = 0.99f;
    std::vector<double> times;
    float first = 0;
    auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
    double begin = now();
    for (long t = 1; t < 20 || now() - begin < enough; ++t) {
        for (int i = 0; i < 2 * B * A; ++i) noise[i] = normal();
        double start = now();
#pragma omp parallel
        update(t);
        times.push_back(1e3 * (now() - start));
        if (t == 1) first = critic_loss;
    }
    std::sort(times.begin(), times.end());
    double mean = 0;
    for (double x : times) mean += x / times.size();
    std::printf("{\"figure\": %.4f, \"median\": %.4f, \"least\": %.4f, \"updates\": %zu, \"loss\": [%.4f, %.4f], \"entropy\": %.3f, \"threads_used\": %d}\n",
                mean, times[times.size() / 2], times[0], times.size(), first, critic_loss, entropy, threads);
}
