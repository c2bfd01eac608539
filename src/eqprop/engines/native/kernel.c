/* Minibatches of a layered dense network, for every member of an ensemble.

   The numbers are those of the reference engine, computed in another order:
   - The drive of the input is computed once. If most pixels are zero they are skipped; if not, the
     product is dense.
   - Continual updates of the input weights telescope: with G = X Xᵀ,
         X W_x(t) = X W_x(0) + c G R_t,    R_t = Σ of the post-synaptic changes.
   - Under C-EP, ∂Φ/∂θ does not depend on θ, so a block of hidden weights is
         W(t) = W_00 + c A_tᵀ P_t,         W_00 = W(0) − c A_0ᵀ P_0.
     Small blocks are written at each step. Large blocks are never written:
         A_t W(t) = A_t W_00 + c (A_t A_tᵀ) P_t.
   - C-VF accumulates W += c A_tᵀ D_t in a packed copy.
   - σ′ in the update (update_slope) is a factor of D, so the same identities hold.
   A minibatch has five stages: read it, drive the first layer, run the two phases, move the
   parameters. `step` shares each stage of all members among its threads. It runs the last stage
   only if no member has failed; otherwise all parameters keep their values. `learn` takes each
   member through many minibatches of a data set; there the caller keeps a copy of the parameters.

   A is what the layer before a synapse transmits, P what the layer after it transmits; rows are
   samples. Rows are padded to whole vectors; sums never include the padding. */

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
#define BYTES 64
#define MR 10
#define DOTS 5
#else
#define BYTES 32
#define MR 5
#define DOTS 3
#endif
#define NR 2
#define MAX_LAYERS 8
#define MAX_THREADS 256
#define STRIP (8 * V) /* columns of the input weights that one thread reads at a time */
#define AHEAD 32      /* rows of them to prefetch */
#define ROWS 98       /* rows of them that one thread moves at a time */
#define SAMPLES 10    /* samples of a minibatch that one thread relaxes at a time */
#define PATIENCE 3e-4 /* seconds of busy waiting: the second phase of one small member */

#ifdef DOUBLE
typedef double real;
typedef int64_t whole;
#define LARGEST_EXPONENT 1020.0
#define MANTISSA 52
#define ROUND 6755399441055744.0 /* 1.5 · 2^52: adding it leaves the nearest integer */
#else
typedef float real;
typedef int32_t whole;
#define LARGEST_EXPONENT 124.0f
#define MANTISSA 23
#define ROUND 12582912.0f /* 1.5 · 2^23: adding it leaves the nearest integer */
#endif
#define V ((int)(BYTES / sizeof(real)))
typedef real vec __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
typedef whole ivec __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
#define INLINE static inline __attribute__((always_inline))

enum { EP, CONTINUAL_EP, VF, CONTINUAL_VF };
enum { SIGMOID, TANH, HARD_SIGMOID, IDENTITY };
enum { SLOPE_ALL, SLOPE_HIDDEN, SLOPE_NONE };                    /* σ′ in the dynamics of real time */
enum { UPDATE_SLOPE_NONE, UPDATE_SLOPE_OWN, UPDATE_SLOPE_FULL }; /* σ′ in the update of discrete time */

typedef struct {
    int32_t layers, batch, inputs, members;
    int32_t size[MAX_LAYERS];
    int32_t rule, activation, real_time, slope, update_slope, tied, groups, free_steps, nudged_steps;
    int32_t shared_x, shared_y, threads, minibatches;
    double dt, tolerance, rescale; /* tolerance < 0: none */
    const real *x, *y;
    real *weight[MAX_LAYERS], *backward[MAX_LAYERS], *bias[MAX_LAYERS]; /* or NULL */
    /* Either one minibatch, x and y above, or minibatches of a data set: */
    const uint8_t *images, *labels;    /* [n, inputs], [n]; NULL: x and y */
    const int64_t *index;              /* [minibatches, members, batch] */
    const real *pixel;                 /* [256]: what a byte transmits */
    double *wrong, *loss;              /* [members]: sums over the minibatches */
    const double *beta;                /* [minibatches, members], signed */
    const double *rate[MAX_LAYERS];    /* [members] of weight; 0: does not move */
    const double *back_rate[MAX_LAYERS];
    const double *bias_rate[MAX_LAYERS];
    real *state[MAX_LAYERS];           /* [members, batch, size]: the end of the free phase */
    real *residual;                    /* [members, batch] */
    int64_t *steps;                    /* [members] */
    int32_t *failed;                   /* [members] */
    int32_t *progress;                 /* [2, members], initially zero: for the threads of `learn` */
    char *scratch;                     /* members × scratch_bytes(p) */
} Problem;

/* ---- vectors ---- */

INLINE vec splat(real a) { return a - (vec){0}; }
INLINE vec choose(ivec mask, vec a, vec b) {
    return (vec)(((ivec)a & mask) | ((ivec)b & ~mask));
}
#if defined(__AVX512F__) && defined(DOUBLE)
INLINE vec vmax(vec a, vec b) { return (vec)_mm512_max_pd((__m512d)a, (__m512d)b); }
INLINE vec vmin(vec a, vec b) { return (vec)_mm512_min_pd((__m512d)a, (__m512d)b); }
INLINE real total(vec v) { return _mm512_reduce_add_pd((__m512d)v); }
#elif defined(__AVX512F__)
INLINE vec vmax(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vec vmin(vec a, vec b) { return (vec)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE real total(vec v) { return _mm512_reduce_add_ps((__m512)v); }
#else
INLINE vec vmax(vec a, vec b) { return choose(a > b, a, b); }
INLINE vec vmin(vec a, vec b) { return choose(a < b, a, b); }
INLINE real total(vec v) {
    real sum = 0;
    for (int i = 0; i < V; i++) sum += v[i];
    return sum;
}
#endif

/* 2^y: a polynomial on [−½, ½]; the integer part is added to the exponent */
INLINE vec power_of_two(vec y) {
#ifdef DOUBLE /* the series of exp(f ln 2) */
    static const real term[] = {
        1.0, 0.69314718055994531, 0.24022650695910072, 0.055504108664821580, 0.0096181291076284772,
        0.0013333558146428444, 1.5403530393381609e-4, 1.5252733804059841e-5, 1.3215486790144309e-6,
        1.0178086009239700e-7, 7.0549116208011233e-9, 4.4455382718708116e-10, 2.5678435993488203e-11,
        1.3691488853904129e-12};
#else /* minimax polynomial: relative error at most 7.5e-8 */
    static const real term[] = {1.0000000716546849f,  0.6931469670647609f,   0.24022119723839974f,
                                0.055507132734978495f, 0.009675541334453752f, 0.0013276471992533978f};
#endif
    const int degree = sizeof term / sizeof *term - 1;
    y = vmin(vmax(y, splat(-LARGEST_EXPONENT)), splat(LARGEST_EXPONENT));
    vec shifted = y + ROUND;
    vec f = y - (shifted - ROUND);
    vec sum = splat(term[degree]);
    for (int i = degree - 1; i >= 0; i--) sum = sum * f + term[i];
    return (vec)((ivec)sum + ((ivec)shifted << MANTISSA));
}

INLINE vec activate(int activation, vec v) {
    const double log2_e = 1.4426950408889634;
    switch (activation) {
        case SIGMOID: /* 1 / (1 + exp(−4(v − ½))) */
            return (real)1 / ((real)1 + power_of_two(v * (real)(-4 * log2_e) + (real)(2 * log2_e)));
        case TANH: /* 1 − 2 / (1 + exp(2v)) */
            return (real)1 - (real)2 / ((real)1 + power_of_two(v * (real)(2 * log2_e)));
        case HARD_SIGMOID: return vmin(vmax(v, splat(0)), splat(1));
        default: return v;
    }
}

/* σ'(s), given a = σ(s) */
INLINE vec slope(int activation, vec s, vec a) {
    switch (activation) {
        case SIGMOID: return (real)4 * a * ((real)1 - a);
        case TANH: return (real)1 - a * a;
        case HARD_SIGMOID: return choose((s >= splat(0)) & (s <= splat(1)), splat(1), splat(0));
        default: return splat(1);
    }
}

/* Stays 0 as long as every v is finite; otherwise NaN. */
INLINE vec watch(vec seen, vec v) { return v * (real)0 + seen; }
static int all_well(vec seen) {
    for (int v = 0; v < V; v++)
        if (seen[v] != 0) return 0; /* also true for NaN */
    return 1;
}

/* ---- products: C = base + alpha · A · W, rows of W, base and C in whole vectors ---- */

typedef struct {
    const real *A;
    long lda;
    const real *W;
    long ldw;
    const real *base; /* or NULL */
    real *C;
    long ld; /* of base and C */
    int K;
    real alpha;
} Product;

/* `far`: W, or C if transposed, is the input weights, which exceed the cache: prefetch them. */
INLINE void block(const int rows, const int cols, const int transposed, const int far, Product p, int i, int j) {
    const real *A = p.A + (transposed ? i : i * p.lda), *W = p.W + j, *base = p.base ? p.base + i * p.ld + j : 0;
    real *C = p.C + i * p.ld + j;
    vec sum[MR][NR];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            sum[r][c] = (vec){0};
            if (far && transposed) __builtin_prefetch(C + r * p.ld + c * V, 1);
        }
    for (int k = 0; k < p.K; k++) {
        vec w[NR];
        for (int c = 0; c < cols && far && !transposed; c++) __builtin_prefetch(W + (k + AHEAD) * p.ldw + c * V);
        for (int c = 0; c < cols; c++) w[c] = *(const vec *)(W + k * p.ldw + c * V);
        for (int r = 0; r < rows; r++) {
            real a = A[transposed ? k * p.lda + r : r * p.lda + k];
            for (int c = 0; c < cols; c++) sum[r][c] += a * w[c];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            long at = r * p.ld + c * V;
            vec v = (base ? *(const vec *)(base + at) : (vec){0}) + p.alpha * sum[r][c];
            *(vec *)(C + at) = v;
        }
}

#define CASE(m) case m: block(m, cols, transposed, far, p, r, j); break;
#if MR == 10
#define CASES CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10)
#else
#define CASES CASE(1) CASE(2) CASE(3) CASE(4) CASE(5)
#endif
/* Rows i to `end` of the columns from j on. `sigmoid`: C = σ(base + alpha · A · W); `seen` then
   watches the argument of σ. */
INLINE void panel(const int cols, const int transposed, const int sigmoid, const int far, Product p, int i, int end,
                  int j, vec *seen) {
    for (int r = i; r < end; r += MR)
        switch (end - r < MR ? end - r : MR) { CASES }
    for (int r = i; sigmoid && r < end; r++)
        for (int c = 0; c < cols; c++) {
            vec *v = (vec *)(p.C + r * p.ld + j + c * V);
            *seen = watch(*seen, *v);
            *v = activate(SIGMOID, *v);
        }
}

/* All columns up to n, in whole vectors. The larger of W and C is traversed once. */
INLINE vec panels(const int transposed, const int sigmoid, const int far, int m, int n, Product p) {
    vec seen = {0};
    int at_once = p.K < m ? MR : m;
    for (int i = 0; i < m; i += at_once) {
        int end = m - i < at_once ? m : i + at_once, j = 0;
        for (; j + NR * V <= n; j += NR * V) panel(NR, transposed, sigmoid, far, p, i, end, j, &seen);
        for (; j < n; j += V) panel(1, transposed, sigmoid, far, p, i, end, j, &seen);
    }
    return seen;
}

static void multiply(int m, int n, Product p) { panels(0, 0, 0, m, n, p); }
static void multiply_transposed(int m, int n, Product p) { panels(1, 0, 0, m, n, p); } /* Aᵀ · W */
static vec multiply_and_activate(int m, int n, Product p) { return panels(0, 1, 0, m, n, p); }
static void multiply_far(int m, int n, Product p) { panels(0, 0, 1, m, n, p); }
static void multiply_transposed_far(int m, int n, Product p) { panels(1, 0, 1, m, n, p); }

/* C = base + A · Bᵀ, for rows [i, i + DOTS) of A and [j, j + DOTS) of B */
static void dot_block(int m, int n, int K, const real *A, long lda, const real *B, long ldb,
                      const real *base, real *C, long ld, int i, int j) {
    const real *a[DOTS], *b[DOTS];
    vec sum[DOTS][DOTS];
    for (int r = 0; r < DOTS; r++) { /* beyond the last row, repeat the last */
        a[r] = A + (i + r < m ? i + r : m - 1) * lda;
        b[r] = B + (j + r < n ? j + r : n - 1) * ldb;
        for (int c = 0; c < DOTS; c++) sum[r][c] = (vec){0};
    }
    int whole_vectors = K / V * V;
    for (int k = 0; k < whole_vectors; k += V)
        for (int r = 0; r < DOTS; r++)
            for (int c = 0; c < DOTS; c++) sum[r][c] += *(const vec *)(a[r] + k) * *(const vec *)(b[c] + k);
    for (int r = 0; r < DOTS; r++)
        for (int c = 0; c < DOTS; c++) {
            if (i + r >= m || j + c >= n) continue;
            long at = (i + r) * ld + j + c;
            real rest = 0;
            for (int k = whole_vectors; k < K; k++) rest += a[r][k] * b[c][k];
            C[at] = (base ? base[at] : 0) + (total(sum[r][c]) + rest);
        }
}

static void dots(int m, int n, int K, const real *A, long lda, const real *B, long ldb,
                 const real *base, real *C, long ld) {
    for (int i = 0; i < m; i += DOTS)
        for (int j = 0; j < n; j += DOTS) dot_block(m, n, K, A, lda, B, ldb, base, C, ld, i, j);
}

static void gram(int B, int n, const real *A, long lda, real *G) {
    for (int i = 0; i < B; i += DOTS)
        for (int j = 0; j <= i; j += DOTS) dot_block(B, B, n, A, lda, A, lda, 0, G, B, i, j);
    for (int i = 0; i < B; i++)
        for (int j = i + 1; j < B; j++) G[i * B + j] = G[j * B + i];
}

/* ---- one member ---- */

typedef struct {
    const Problem *p;
    int e, at, L;                             /* member, minibatch, layers */
    long B, pad[MAX_LAYERS];
    int silent;                               /* every rate is 0 */
    int32_t *dense;                           /* whether few pixels are zero; then the lists below are empty */
    double beta;
    const real *x, *y;                        /* [B, inputs], [B, size of the last layer] */
    real *gathered_x, *gathered_y;
    real *s[MAX_LAYERS], *next[MAX_LAYERS];   /* states, [B, pad] */
    real *rate[MAX_LAYERS];                   /* what a layer transmits: s itself in discrete time */
    real *first[MAX_LAYERS];                  /* rates at the steady state */
    real *drive[MAX_LAYERS];                  /* by the input and the bias */
    real *moved[MAX_LAYERS];                  /* R: sum of D over the steps; under EP and C-EP,
                                                 change of the rates since the steady state */
    real *change[MAX_LAYERS];                 /* first σ′ at the drive by the synapse before the layer;
                                                 then D, the change of the layer times σ′; after the
                                                 phase, the last rates */
    real *back_change[MAX_LAYERS];            /* the same for the synapse after the layer; equal to
                                                 `change` unless update_slope is "own" */
    real *wf[MAX_LAYERS], *wb[MAX_LAYERS];    /* packed weights of synapse k: layer k−1 → k, and back;
                                                 the first transposed if the layer is narrow */
    real *f0[MAX_LAYERS], *b0[MAX_LAYERS];    /* W_00, or the total update of VF */
    real *corrected;                          /* drive, corrected for the weights moved in this phase */
    real *gram_x, *gram_l;
    int32_t *first_entry, *sample;            /* nonzero entries of pixel i: from first_entry[i] on */
    int32_t *first_pixel, *pixel;             /* nonzero pixels of sample b: from first_pixel[b] on */
    real *by_pixel, *by_sample;
} Member;

/* The length of a row of n in whole vectors, plus one if rows would fall into few sets of the cache */
static long padded(int n) {
    long width = (n + V - 1) / V * V;
    return width * sizeof(real) % 1024 ? width : width + V;
}
static int low_rank(const Problem *p, int k) {
    long a = p->size[k - 1], b = p->size[k];
    return p->rule == CONTINUAL_EP && a * b > 2L * p->batch * (a + b);
}
/* Whether layer k fills so little of a vector that dot products are faster. */
static int narrow(const Problem *p, int k) { return 4 * p->size[k] <= 3 * V; }
/* Whether the block before layer k is one array for both directions. */
static int shared(const Problem *p, int k) { return p->tied && narrow(p, k); }
static int accumulates(const Problem *p) { return p->rule == VF || p->rule == CONTINUAL_VF; }
/* Whether the total update is stored apart from the weights. */
static int has_totals(const Problem *p) {
    return p->rule == VF || (p->rule == CONTINUAL_VF && p->rescale != 1);
}

/* Lay out the buffers and return their size; with m == NULL, only the size. */
static size_t layout(const Problem *p, Member *m, char *at) {
    char *start = at;
#define TAKE(field, type, count)                                       \
    do {                                                               \
        if (m) m->field = (type *)at;                                  \
        at += (((size_t)(count) * sizeof(type)) + 63) / 64 * 64;       \
    } while (0)
    long B = p->batch;
    long widest = 0;
    for (int l = 0; l < p->layers; l++) {
        long n = padded(p->size[l]);
        if (n > widest) widest = n;
        TAKE(s[l], real, B * n);
        TAKE(next[l], real, B * n);
        TAKE(rate[l], real, B * n);
        TAKE(first[l], real, B * n);
        TAKE(drive[l], real, B * n);
        TAKE(moved[l], real, B * n);
        TAKE(change[l], real, B * n);
        if (p->update_slope == UPDATE_SLOPE_OWN)
            TAKE(back_change[l], real, B * n);
        else if (m)
            m->back_change[l] = m->change[l];
        if (l > 0) {
            long b = p->size[l] * padded(p->size[l - 1]), f = narrow(p, l) ? b : p->size[l - 1] * n;
            TAKE(wb[l], real, b);
            TAKE(b0[l], real, b);
            if (!shared(p, l)) {
                TAKE(wf[l], real, f);
                TAKE(f0[l], real, f);
            } else if (m) {
                m->wf[l] = m->wb[l];
                m->f0[l] = m->b0[l];
            }
        }
    }
    TAKE(corrected, real, B * widest);
    TAKE(gram_x, real, p->nudged_steps ? B * B : 0);
    TAKE(gram_l, real, p->nudged_steps ? B * B : 0);
    TAKE(dense, int32_t, 1);
    TAKE(first_entry, int32_t, p->inputs + 1);
    TAKE(sample, int32_t, B * p->inputs);
    TAKE(first_pixel, int32_t, B + 1);
    TAKE(pixel, int32_t, B * p->inputs);
    TAKE(by_pixel, real, B * p->inputs);
    TAKE(by_sample, real, B * p->inputs);
    TAKE(gathered_x, real, p->images ? B * p->inputs : 0);
    TAKE(gathered_y, real, p->images ? B * p->size[p->layers - 1] : 0);
    return at - start;
}

size_t scratch_bytes(const Problem *p) { return layout(p, 0, 0); }

static void open_member(const Problem *p, int e, int at, Member *m) {
    m->p = p;
    m->e = e;
    m->at = at;
    m->beta = p->nudged_steps ? p->beta[(long)at * p->members + e] : 0;
    m->L = p->layers;
    m->B = p->batch;
    m->silent = 0;
    for (int l = 0; l < m->L; l++) m->pad[l] = padded(p->size[l]);
    layout(p, m, p->scratch + (size_t)e * scratch_bytes(p));
    m->x = p->images ? m->gathered_x : p->x + (p->shared_x ? 0 : e * m->B * p->inputs);
    m->y = p->images ? m->gathered_y : p->y + (p->shared_y ? 0 : e * m->B * p->size[m->L - 1]);
}

static real *parameter(real *base, const Member *m, long rows, long cols) {
    return base ? base + (long)m->e * rows * cols : 0;
}

static void pack(const real *from, long rows, long cols, real *to, long ld) {
    for (long i = 0; i < rows; i++) {
        memcpy(to + i * ld, from + i * cols, cols * sizeof(real));
        memset(to + i * ld + cols, 0, (ld - cols) * sizeof(real));
    }
}

static void pack_transposed(const real *from, long rows, long cols, real *to, long ld) {
    memset(to, 0, cols * ld * sizeof(real));
    for (long i0 = 0; i0 < rows; i0 += 16)
        for (long j = 0; j < cols; j++)
            for (long i = i0; i < rows && i < i0 + 16; i++) to[j * ld + i] = from[i * cols + j];
}

static const int64_t *samples(const Member *m) {
    return m->p->index + ((long)m->at * m->p->members + m->e) * m->B;
}

static void gather_minibatch(Member *m) {
    const Problem *p = m->p;
    long n = p->inputs, n_out = p->size[m->L - 1];
    memset(m->gathered_y, 0, m->B * n_out * sizeof(real));
    for (int b = 0; b < m->B; b++) {
        int64_t k = samples(m)[b];
        for (long i = 0; i < n; i++) m->gathered_x[b * n + i] = p->pixel[p->images[k * n + i]];
        m->gathered_y[b * n_out + p->labels[k]] = 1;
    }
}

/* The address of the state after the free phase, for layer l of sample b. */
static real *steady_state(const Member *m, int l, int b) {
    return m->p->state[l] + ((long)m->e * m->p->batch + b) * m->p->size[l];
}

/* Count errors and loss of the free phase. */
static void count_answers(const Member *m) {
    const Problem *p = m->p;
    int last = m->L - 1;
    long n = p->size[last];
    for (int b = 0; b < m->B; b++) {
        const real *o = steady_state(m, last, b), *y = m->y + b * n;
        int answer = 0;
        for (int j = 0; j < n; j++) {
            if (o[j] > o[answer]) answer = j;
            p->loss[m->e] += 0.5 * (double)((o[j] - y[j]) * (o[j] - y[j]));
        }
        p->wrong[m->e] += answer != p->labels[samples(m)[b]];
    }
}

/* List the nonzero inputs by sample and by pixel. If most are nonzero, the products are dense. */
static void read_input(Member *m) {
    const Problem *p = m->p;
    long n = p->inputs, nonzero = 0;
    const real *x = m->x;
    if (p->nudged_steps) gram(m->B, n, x, n, m->gram_x);
    for (long i = 0; i < m->B * n; i++) nonzero += x[i] != 0;
    *m->dense = 2 * nonzero > m->B * n;
    if (*m->dense) return;
    memset(m->first_entry, 0, (n + 1) * sizeof(int32_t));
    int count = 0;
    for (int b = 0; b < m->B; b++) {
        m->first_pixel[b] = count;
        for (int i = 0; i < n; i++) { /* without unpredictable branches */
            int there = x[b * n + i] != 0;
            m->pixel[count] = i;
            m->by_sample[count] = x[b * n + i];
            m->first_entry[i + 1] += there;
            count += there;
        }
    }
    m->first_pixel[m->B] = count;
    for (int i = 0; i < n; i++) m->first_entry[i + 1] += m->first_entry[i];
    for (int b = 0; b < m->B; b++)
        for (int k = m->first_pixel[b]; k < m->first_pixel[b + 1]; k++) {
            int at = m->first_entry[m->pixel[k]]++;
            m->sample[at] = b;
            m->by_pixel[at] = m->by_sample[k];
        }
    memmove(m->first_entry + 1, m->first_entry, n * sizeof(int32_t));
    m->first_entry[0] = 0;
}

/* row += Σ value[k] · rows[index[k]] over `cols` vectors */
INLINE void gather(const int cols, int count, const int32_t *index, const real *value,
                   const real *rows, long ld, real alpha, real *row) {
    vec sum[8];
    for (int c = 0; c < cols; c++) sum[c] = (vec){0};
    for (int k = 0; k < count; k++)
        for (int c = 0; c < cols; c++) sum[c] += value[k] * *(const vec *)(rows + index[k] * ld + c * V);
    for (int c = 0; c < cols; c++) *(vec *)(row + c * V) += alpha * sum[c];
}

/* The same for columns [j, j + width) of a row of n; width is at most 8 V */
static void gather_part(int width, int count, const int32_t *index, const real *value,
                        const real *rows, long ld, real alpha, real *row) {
    if (count == 0) return;
    int j = 0;
    if (width == 8 * V) {
        gather(8, count, index, value, rows, ld, alpha, row);
        return;
    }
    for (; j + V <= width; j += V) gather(1, count, index, value, rows + j, ld, alpha, row + j);
    for (; j < width; j++) {
        real sum = 0;
        for (int k = 0; k < count; k++) sum += value[k] * rows[index[k] * ld + j];
        row[j] += alpha * sum;
    }
}

static void open_weights(Member *m) {
    const Problem *p = m->p;
    for (int l = 0; l < m->L; l++) {
        long n = p->size[l], ld = m->pad[l];
        const real *bias = parameter(p->bias[l], m, 1, n);
        memset(m->drive[l], 0, m->B * ld * sizeof(real));
        for (int b = 0; b < m->B && bias; b++) memcpy(m->drive[l] + b * ld, bias, n * sizeof(real));
        if (l == 0) continue;
        long before = p->size[l - 1];
        const real *w = parameter(p->weight[l], m, before, n);
        if (narrow(p, l))
            pack_transposed(w, before, n, m->wf[l], m->pad[l - 1]);
        else
            pack(w, before, n, m->wf[l], ld);
        if (!p->tied)
            pack(parameter(p->backward[l], m, n, before), n, before, m->wb[l], m->pad[l - 1]);
        else if (!shared(p, l))
            pack_transposed(w, before, n, m->wb[l], m->pad[l - 1]);
    }
}

/* Add the drive of the input to a strip of columns of the first layer. The strip of the weights
   stays in the cache for all samples. */
static void drive_strip(Member *m, int strip) {
    const Problem *p = m->p;
    long n = p->size[0], inputs = p->inputs, j = strip * STRIP, width = n - j < STRIP ? n - j : STRIP;
    long ld = m->pad[0], whole = *m->dense ? width / V * V : 0;
    const real *w = parameter(p->weight[0], m, inputs, n) + j;
    real *to = m->drive[0] + j;
    if (!*m->dense) {
        for (int b = 0; b < m->B; b++) {
            int k = m->first_pixel[b];
            gather_part(width, m->first_pixel[b + 1] - k, m->pixel + k, m->by_sample + k, w, n, 1, to + b * ld);
        }
        return;
    }
    multiply_far(m->B, whole, (Product){m->x, inputs, w, n, to, to, ld, inputs, 1});
    for (int b = 0; b < m->B; b++)
        for (long c = whole; c < width; c++) { /* a whole vector would reach into the next row */
            real sum = 0;
            for (long i = 0; i < inputs; i++) sum += m->x[b * inputs + i] * w[i * n + c];
            to[b * ld + c] += sum;
        }
}

/* The next state of layer l, from its drives by the synapse before it (`forward`) and after it (in
   `back_change`). Writes σ′ at the first drive to `change`, and replaces the second by its σ′.
   Returns `watch` of the sum of both drives. */
INLINE vec move_with_slopes(const int activation, Member *m, int l, const real *forward) {
    vec seen = {0};
    int n = m->p->size[l], inner = l + 1 < m->L;
    for (int b = 0; b < m->B; b++)
        for (long j = 0, at = b * m->pad[l]; j < n; j += V, at += V) {
            vec u = *(const vec *)(forward + at), a = activate(activation, u);
            *(vec *)(m->change[l] + at) = slope(activation, u, a);
            if (inner) {
                vec v = *(vec *)(m->back_change[l] + at);
                *(vec *)(m->back_change[l] + at) = slope(activation, v, activate(activation, v));
                u += v;
                a = activate(activation, u);
            }
            seen = watch(seen, u);
            *(vec *)(m->next[l] + at) = a;
        }
    return seen;
}

/* The next state of layer l, from `base` + the drives of its neighbours. Writes the σ′ of
   `update_slope` to `change` and `back_change`. Returns `watch` of the drives. */
static vec move(Member *m, int l, const real *base, int update_slope) {
    const Problem *p = m->p;
    int fused = !p->real_time && p->activation == SIGMOID && update_slope == UPDATE_SLOPE_NONE;
    long ld = m->pad[l], count = m->B * ld;
    real *to = m->next[l];
    int n_before = l > 0 && !m->silent ? p->size[l - 1] : 0;
    int n_after = l + 1 < m->L && !m->silent ? p->size[l + 1] : 0;
    if (l > 0 && narrow(p, l)) {
        long la = m->pad[l - 1];
        dots(m->B, p->size[l], n_before, m->rate[l - 1], la, m->wf[l], la, base, to, ld);
        base = to;
    } else if (l > 0) {
        Product before = {m->rate[l - 1], m->pad[l - 1], m->wf[l], ld, base, to, ld, n_before, 1};
        if (fused && l + 1 == m->L) return multiply_and_activate(m->B, p->size[l], before);
        multiply(m->B, p->size[l], before);
        base = to;
    }
    if (update_slope == UPDATE_SLOPE_OWN) {
        if (l + 1 < m->L)
            multiply(m->B, p->size[l], (Product){m->rate[l + 1], m->pad[l + 1], m->wb[l + 1], ld, 0,
                                                 m->back_change[l], ld, n_after, 1});
        return p->activation == SIGMOID ? move_with_slopes(SIGMOID, m, l, base)
                                        : move_with_slopes(p->activation, m, l, base);
    }
    if (l + 1 < m->L) {
        Product after = {m->rate[l + 1], m->pad[l + 1], m->wb[l + 1], ld, base, to, ld, n_after, 1};
        if (fused) return multiply_and_activate(m->B, p->size[l], after);
        multiply(m->B, p->size[l], after);
    } else if (l == 0)
        for (int b = 0; b < m->B; b++) memcpy(to + b * ld, base + b * ld, p->size[l] * sizeof(real));
    vec seen = {0};
    const real *s = m->s[l], *a = m->rate[l];
    int with_slope = p->slope == SLOPE_ALL || (p->slope == SLOPE_HIDDEN && l + 1 < m->L);
    for (long i = 0; i < count; i += V) {
        vec v = *(vec *)(to + i);
        seen = watch(seen, v);
        if (!p->real_time) {
            vec next = activate(p->activation, v);
            *(vec *)(to + i) = next;
            if (update_slope == UPDATE_SLOPE_FULL) *(vec *)(m->change[l] + i) = slope(p->activation, v, next);
        } else {
            vec state = *(const vec *)(s + i);
            if (with_slope) v *= slope(p->activation, state, *(const vec *)(a + i));
            *(vec *)(to + i) = (real)(1 - p->dt) * state + (real)p->dt * v;
        }
    }
    return seen;
}

/* Make the state written by `move` the current one. */
static void settle(Member *m, int l) {
    real *old = m->s[l];
    m->s[l] = m->next[l];
    m->next[l] = old;
    if (!m->p->real_time)
        m->rate[l] = m->s[l];
    else
        for (long i = 0; i < m->B * m->pad[l]; i += V)
            *(vec *)(m->rate[l] + i) = activate(m->p->activation, *(vec *)(m->s[l] + i));
}

/* The largest change of layer l in sample b, from the previous state to the current one. */
static real largest_change(const Member *m, int l, int b) {
    const real *now = m->s[l] + b * m->pad[l], *before = m->next[l] + b * m->pad[l];
    int n = m->p->size[l], j = 0;
    vec most = {0};
    for (; j + V <= n; j += V) {
        vec d = *(const vec *)(now + j) - *(const vec *)(before + j);
        most = vmax(most, vmax(d, -d));
    }
    real largest = 0;
    for (int v = 0; v < V; v++) largest = most[v] > largest ? most[v] : largest;
    for (; j < n; j++) {
        real d = now[j] - before[j];
        d = d < 0 ? -d : d;
        largest = d > largest ? d : largest;
    }
    return largest;
}

/* Run `count` samples from `first` on. `m` then has only these samples. */
static int free_phase(Member *m, int first, int count) {
    const Problem *p = m->p;
    int groups = p->groups;
    real *residual = p->residual + (long)m->e * m->B + first;
    m->B = count;
    for (int l = 0; l < m->L; l++) {
        long skipped = first * m->pad[l];
        m->s[l] += skipped;
        m->next[l] += skipped;
        m->rate[l] += skipped;
        m->drive[l] += skipped;
        memset(m->s[l], 0, m->B * m->pad[l] * sizeof(real));
        memset(m->next[l], 0, m->B * m->pad[l] * sizeof(real));
        if (p->real_time) memset(m->rate[l], 0, m->B * m->pad[l] * sizeof(real));
        settle(m, l);
    }
    vec seen = {0};
    int t = 0;
    while (t < p->free_steps) {
        m->silent = t == 0 && !p->real_time && p->free_steps > 1; /* but one single step must show non-finite weights */
        for (int l = 0; l < m->L; l++)
            if (groups == 1 || l % 2 == t % 2) seen += move(m, l, m->drive[l], UPDATE_SLOPE_NONE);
        for (int l = 0; l < m->L; l++)
            if (groups == 1 || l % 2 == t % 2) settle(m, l);
        t++;
        if ((p->tolerance >= 0 && t >= groups) || t == p->free_steps) {
            real most = 0;
            for (int b = 0; b < m->B; b++) {
                residual[b] = 0;
                for (int l = 0; l < m->L; l++) {
                    real d = largest_change(m, l, b);
                    if (!(d <= residual[b])) residual[b] = d;
                }
                if (!(residual[b] <= most)) most = residual[b];
            }
            if (p->tolerance >= 0 && most <= p->tolerance) break;
        }
    }
    m->silent = 0;
    if (first == 0) p->steps[m->e] = t; /* the same for all samples */
    for (int l = 0; l < m->L; l++)
        for (int b = 0; b < m->B; b++)
            memcpy(steady_state(m, l, first + b), m->s[l] + b * m->pad[l], p->size[l] * sizeof(real));
    return !all_well(seen);
}

/* η/(β ε B) of a member; η/(β B) under EP and C-EP, where the factor ε of ∂Φ/∂θ cancels */
static real coefficient(const Member *m, const double *rate) {
    double epsilon = m->p->real_time ? m->p->dt : 1;
    return rate ? (real)(rate[m->e] / (m->beta * m->B) * (accumulates(m->p) ? 1 / epsilon : 1)) : 0;
}

/* The drive of layer l in the second phase, corrected for the weights moved so far. For the first
   layer the correction uses gram_x, which holds c G + c_bias by now. */
static const real *second_drive(Member *m, int l) {
    const Problem *p = m->p;
    long ld = m->pad[l];
    real inside = (real)p->rescale, *to = m->corrected;
    const real *from = m->drive[l];
    if (l == 0) {
        multiply(m->B, p->size[l], (Product){m->gram_x, m->B, m->moved[0], ld, from, to, ld, m->B, 1});
        from = to;
    } else if (p->bias[l]) {
        real c = inside * coefficient(m, p->bias_rate[l]);
        for (long j = 0; j < ld; j += V) {
            vec total = {0};
            for (int b = 0; b < m->B; b++) total += *(vec *)(m->moved[l] + b * ld + j);
            total *= c;
            for (int b = 0; b < m->B; b++)
                *(vec *)(to + b * ld + j) = *(const vec *)(from + b * ld + j) + total;
        }
        from = to;
    }
    for (int k = l; k <= l + 1; k++) { /* synapse k joins layers k−1 and k */
        if (k < 1 || k >= m->L || !low_rank(p, k)) continue;
        int other = k == l ? l - 1 : l + 1;
        real c = inside * coefficient(m, p->rate[k]);
        gram(m->B, p->size[other], m->rate[other], m->pad[other], m->gram_l);
        multiply(m->B, p->size[l], (Product){m->gram_l, m->B, m->rate[l], ld, from, to, ld, m->B, c});
        from = to;
    }
    return from;
}

/* to = base + c AᵀP for synapse k, A of layer k−1 and P of layer k, in the layout of wb */
static void add_backward(Member *m, int k, real c, real **A, real **P, const real *base, real *to) {
    long la = m->pad[k - 1], lb = m->pad[k];
    multiply_transposed(m->p->size[k], m->p->size[k - 1], (Product){P[k], lb, A[k - 1], la, base, to, la, m->B, c});
}

/* The same in the layout of wf */
static void add_forward(Member *m, int k, real c, real **A, real **P, const real *base, real *to) {
    long la = m->pad[k - 1], lb = m->pad[k];
    if (narrow(m->p, k))
        add_backward(m, k, c, A, P, base, to);
    else
        multiply_transposed(m->p->size[k - 1], m->p->size[k], (Product){A[k - 1], la, P[k], lb, base, to, lb, m->B, c});
}

/* W_00 = W(0) − c A_0ᵀ P_0, in both directions */
static void open_blocks(Member *m) {
    const Problem *p = m->p;
    for (int k = 1; k < m->L; k++) {
        if (p->rule == CONTINUAL_EP) {
            real c = -(real)p->rescale * coefficient(m, p->rate[k]), **A = m->first;
            real *f = low_rank(p, k) ? m->wf[k] : m->f0[k], *w = low_rank(p, k) ? m->wb[k] : m->b0[k];
            add_forward(m, k, c, A, A, m->wf[k], f);
            if (!shared(p, k)) add_backward(m, k, c, A, A, m->wb[k], w);
        } else if (has_totals(p)) {
            long a = p->size[k - 1], b = p->size[k], la = m->pad[k - 1], lb = m->pad[k];
            memset(m->f0[k], 0, (narrow(p, k) ? b * la : a * lb) * sizeof(real));
            memset(m->b0[k], 0, b * la * sizeof(real));
        }
    }
}

/* f += cf A_tᵀ D and w += cb P_tᵀ D_back for synapse k; a tied weight gets both */
static void add_steps(Member *m, int k, real cf, real cb, real *f, real *w) {
    real **A = m->rate, **D = m->change, **D_back = m->back_change;
    add_forward(m, k, cf, A, D, f, f);
    if (m->p->tied) add_forward(m, k, cf, D_back, A, f, f);
    if (shared(m->p, k)) return;
    add_backward(m, k, cb, D_back, A, w, w);
    if (m->p->tied) add_backward(m, k, cb, A, D, w, w);
}

/* Update the hidden blocks for the step from s_t to s_{t+1}. Under C-VF and VF `rate` is still that
   of time t, and `change` the step; under C-EP `rate` is that of time t+1. */
static void update_blocks(Member *m) {
    const Problem *p = m->p;
    for (int k = 1; k < m->L; k++) {
        real **A = m->rate;
        if (p->rule == CONTINUAL_EP && !low_rank(p, k)) {
            real c = (real)p->rescale * coefficient(m, p->rate[k]);
            add_forward(m, k, c, A, A, m->f0[k], m->wf[k]);
            if (!shared(p, k)) add_backward(m, k, c, A, A, m->b0[k], m->wb[k]);
        } else if (accumulates(p)) {
            real cf = coefficient(m, p->rate[k]);
            real cb = coefficient(m, p->tied ? p->rate[k] : p->back_rate[k]);
            if (has_totals(p)) add_steps(m, k, cf, cb, m->f0[k], m->b0[k]);
            real inside = (real)p->rescale;
            if (p->rule == CONTINUAL_VF) add_steps(m, k, inside * cf, inside * cb, m->wf[k], m->wb[k]);
        }
    }
}

static int nudged_phase(Member *m) {
    const Problem *p = m->p;
    int last = m->L - 1, moving = p->rule == CONTINUAL_EP || p->rule == CONTINUAL_VF;
    long n_out = p->size[last];
    const real *y = m->y;
    real strength = (real)(m->beta * (p->real_time ? p->dt : 1));
    for (int l = 0; l < m->L; l++) {
        pack(steady_state(m, l, 0), m->B, p->size[l], m->next[l], m->pad[l]);
        settle(m, l);
        memcpy(m->first[l], m->rate[l], m->B * m->pad[l] * sizeof(real));
        memset(m->moved[l], 0, m->B * m->pad[l] * sizeof(real));
        if (p->update_slope == UPDATE_SLOPE_OWN) { /* `move` writes no σ′ beyond the vector of the last neuron */
            memset(m->change[l], 0, m->B * m->pad[l] * sizeof(real));
            memset(m->back_change[l], 0, m->B * m->pad[l] * sizeof(real));
        }
    }
    open_blocks(m);
    real c = (real)p->rescale * coefficient(m, p->rate[0]);
    real c_bias = p->bias[0] ? (real)p->rescale * coefficient(m, p->bias_rate[0]) : 0;
    for (long i = 0; i < m->B * m->B; i++) m->gram_x[i] = c * m->gram_x[i] + c_bias;
    vec seen = {0};
    for (int t = 0; t < p->nudged_steps; t++) {
        for (int l = 0; l < m->L; l++)
            seen += move(m, l, moving ? second_drive(m, l) : m->drive[l], p->update_slope);
        for (int b = 0; b < m->B; b++) /* − β ε ∂ℓ/∂s at s_t */
            for (long j = 0; j < n_out; j++)
                m->next[last][b * m->pad[last] + j] +=
                    strength * (y[b * n_out + j] - m->s[last][b * m->pad[last] + j]);
        if (accumulates(p)) {
            for (int l = 0; l < m->L; l++) {
                int with_slope = p->real_time &&
                    (p->slope == SLOPE_ALL || (p->slope == SLOPE_HIDDEN && l < last));
                for (long i = 0; i < m->B * m->pad[l]; i += V) {
                    vec s = *(vec *)(m->s[l] + i), d = *(vec *)(m->next[l] + i) - s;
                    if (p->real_time) d *= (real)p->dt;
                    if (with_slope) d *= slope(p->activation, s, *(vec *)(m->rate[l] + i));
                    if (p->update_slope == UPDATE_SLOPE_OWN) *(vec *)(m->back_change[l] + i) *= d;
                    if (p->update_slope != UPDATE_SLOPE_NONE) d *= *(vec *)(m->change[l] + i);
                    *(vec *)(m->change[l] + i) = d;
                    *(vec *)(m->moved[l] + i) += d;
                }
            }
            update_blocks(m);
        }
        for (int l = 0; l < m->L; l++) settle(m, l);
        if (!accumulates(p)) {
            for (int l = 0; l < m->L; l++)
                for (long i = 0; i < m->B * m->pad[l]; i += V)
                    *(vec *)(m->moved[l] + i) = *(vec *)(m->rate[l] + i) - *(vec *)(m->first[l] + i);
            if (p->rule == CONTINUAL_EP) update_blocks(m);
        }
    }
    return !all_well(seen);
}

static int all_finite(const real *v, long n) {
    vec seen = {0};
    for (long i = 0; i < n; i += V) seen = watch(seen, *(const vec *)(v + i));
    return all_well(seen);
}

static real largest(const real *v, long n) {
    vec most = {0};
    long i = 0;
    for (; i + V <= n; i += V) {
        vec a = *(const vec *)(v + i);
        most = vmax(most, vmax(a, -a));
    }
    real result = 0;
    for (int k = 0; k < V; k++) result = most[k] > result ? most[k] : result;
    for (; i < n; i++) result = v[i] > result ? v[i] : -v[i] > result ? -v[i] : result;
    return result;
}

/* Whether an update of some weight could overflow. Then the reference engine decides. */
static int may_overflow(const Member *m) {
    const Problem *p = m->p;
    double limit = sizeof(real) == 4 ? 1e37 : 1e307;
    double from = *m->dense ? largest(m->x, m->B * p->inputs) : largest(m->by_sample, m->first_pixel[m->B]);
    for (int l = 0; l < m->L; l++) {
        double rate = largest(m->rate[l], m->B * m->pad[l]), moved = largest(m->moved[l], m->B * m->pad[l]);
        double most = m->B * (1 + (from > rate ? from : rate)) * (1 + rate + moved) * p->nudged_steps;
        const double *rates[] = {p->rate[l], p->back_rate[l], p->bias_rate[l]};
        for (int i = 0; i < 3; i++) {
            double c = rates[i] ? rates[i][m->e] / m->beta : 0;
            if (!((c < 0 ? -c : c) * most < limit)) return 1;
        }
        from = rate;
    }
    return 0;
}

/* w = scale · w + update, without the padding */
INLINE void unpack(real *w, long rows, long cols, real scale, const real *update, long down, long right) {
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < cols; j++)
            w[i * cols + j] = scale * w[i * cols + j] + update[i * down + j * right];
}

static void unpack_blocks(const Member *m, int k, real scale, const real *f, const real *w) {
    const Problem *p = m->p;
    long a = p->size[k - 1], b = p->size[k], la = m->pad[k - 1], lb = m->pad[k];
    real *forward = parameter(p->weight[k], m, a, b);
    if (narrow(p, k))
        unpack(forward, a, b, scale, f, 1, la);
    else
        unpack(forward, a, b, scale, f, lb, 1);
    if (!p->tied) unpack(parameter(p->backward[k], m, b, a), b, a, scale, w, la, 1);
}

static void move_hidden(Member *m) {
    const Problem *p = m->p;
    for (int l = 0; l < m->L; l++) {
        long n = p->size[l], ld = m->pad[l];
        real *bias = parameter(p->bias[l], m, 1, n);
        real c = coefficient(m, p->bias_rate[l]);
        if (bias && c != 0)
            for (long j = 0; j < n; j++) {
                real sum = 0;
                for (int b = 0; b < m->B; b++) sum += m->moved[l][b * ld + j];
                bias[j] += c * sum;
            }
        if (l == 0) continue;
        real cf = coefficient(m, p->rate[l]), *f = m->wf[l];
        if (!accumulates(p)) { /* c (A_Kᵀ P_K − A_0ᵀ P_0), in the packed copy */
            add_forward(m, l, cf, m->change, m->change, 0, f);
            add_forward(m, l, -cf, m->first, m->first, f, f);
            unpack_blocks(m, l, 1, f, 0);
        } else if (has_totals(p))
            unpack_blocks(m, l, 1, m->f0[l], m->b0[l]);
        else /* C-VF: the packed copy is the new weight */
            unpack_blocks(m, l, 0, f, m->wb[l]);
    }
}

/* Move some rows of the input weights by c XᵀR. */
static void move_rows(Member *m, int part) {
    const Problem *p = m->p;
    long n = p->size[0], inputs = p->inputs, first = part * ROWS, end = inputs - first < ROWS ? inputs : first + ROWS;
    long ld = m->pad[0], whole = n / V * V;
    real *w = parameter(p->weight[0], m, inputs, n), *R = m->moved[0];
    real c = coefficient(m, p->rate[0]);
    if (c == 0) return;
    if (*m->dense)
        multiply_transposed_far(end - first, whole,
                            (Product){m->x + first, inputs, R, ld, w + first * n, w + first * n, n, m->B, c});
    for (long i = first; i < end; i++) {
        if (*m->dense) {
            for (long j = whole; j < n; j++) {
                real sum = 0;
                for (int b = 0; b < m->B; b++) sum += m->x[b * inputs + i] * R[b * ld + j];
                w[i * n + j] += c * sum;
            }
            continue;
        }
        int k = m->first_entry[i];
        for (long j = 0; j < n; j += STRIP)
            gather_part(n - j < STRIP ? n - j : STRIP, m->first_entry[i + 1] - k, m->sample + k, m->by_pixel + k,
                        R + j, ld, c, w + i * n + j);
    }
}

/* ---- the stages of a minibatch, each in independent parts ---- */

static int strips(const Problem *p) { return (p->size[0] + STRIP - 1) / STRIP; }
static int row_parts(const Problem *p) { return (p->inputs + ROWS - 1) / ROWS; }
/* Samples are independent in the free phase, unless a tolerance stops them all together. In `learn`
   one thread runs them all. */
static int samples_at_once(const Problem *p) { return p->images || p->tolerance >= 0 ? p->batch : SAMPLES; }
static int sample_parts(const Problem *p) { return (p->batch + samples_at_once(p) - 1) / samples_at_once(p); }

static void read_stage(Member *m, int part) {
    (void)part;
    if (m->p->images) gather_minibatch(m);
    read_input(m);
    open_weights(m);
}
static void free_stage(Member *m, int part) {
    int at_once = samples_at_once(m->p), first = part * at_once, left = m->p->batch - first;
    if (free_phase(m, first, left < at_once ? left : at_once))
        __atomic_store_n(m->p->failed + m->e, 1, __ATOMIC_RELAXED); /* other parts may write it too */
}
static void nudged_stage(Member *m, int part) {
    (void)part;
    if (m->p->images) count_answers(m);
    int bad = nudged_phase(m);
    for (int l = 0; l < m->L; l++) {
        if (!all_finite(m->s[l], m->B * m->pad[l]) || !all_finite(m->moved[l], m->B * m->pad[l])) bad = 1;
        memmove(m->change[l], m->rate[l], m->B * m->pad[l] * sizeof(real));
    }
    m->p->failed[m->e] = bad || may_overflow(m);
}
static void move_stage(Member *m, int part) {
    if (part == 0)
        move_hidden(m);
    else
        move_rows(m, part - 1);
}

typedef struct {
    void (*work)(Member *, int part);
    int parts;
} Stage;
#define STAGES 5

static void list_stages(const Problem *p, Stage *stages) {
    int learns = p->nudged_steps > 0;
    Stage all[STAGES] = {{read_stage, 1},
                         {drive_strip, strips(p)},
                         {free_stage, sample_parts(p)},
                         {nudged_stage, learns},
                         {move_stage, learns ? 1 + row_parts(p) : 0}};
    memcpy(stages, all, sizeof all);
}

/* ---- helpers: a pool of threads, since starting one takes a tenth of a minibatch ---- */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* Wait until a value guarded by the lock changes: busy at first, since waking a thread takes as long
   as a stage of one member. */
static void wait_for_change(const _Atomic int *value, pthread_cond_t *changed, pthread_mutex_t *lock) {
    int old = *value;
    pthread_mutex_unlock(lock);
    for (double end = seconds() + PATIENCE; *value == old && seconds() < end;) continue;
    pthread_mutex_lock(lock);
    while (*value == old) pthread_cond_wait(changed, lock);
}

static struct {
    pthread_mutex_t lock;
    pthread_cond_t called, left;
    int started, busy;
    _Atomic int room, inside; /* how many helpers may still join the work, and how many are working */
    void *(*worker)(void *);
    void *argument;
} helpers = {.lock = PTHREAD_MUTEX_INITIALIZER, .called = PTHREAD_COND_INITIALIZER, .left = PTHREAD_COND_INITIALIZER};

static void *help(void *unused) {
    pthread_mutex_lock(&helpers.lock);
    for (;;) {
        while (!helpers.room) wait_for_change(&helpers.room, &helpers.called, &helpers.lock);
        helpers.room--;
        helpers.inside++;
        pthread_mutex_unlock(&helpers.lock);
        helpers.worker(helpers.argument);
        pthread_mutex_lock(&helpers.lock);
        helpers.inside--;
        pthread_cond_signal(&helpers.left);
    }
    return unused;
}

/* A forked process has none of the threads of its parent. */
static void forget_helpers(void) {
    helpers.started = helpers.busy = helpers.room = helpers.inside = 0;
    pthread_mutex_init(&helpers.lock, 0);
    pthread_cond_init(&helpers.called, 0);
    pthread_cond_init(&helpers.left, 0);
}

static int start_helper(void) {
    static int registered;
    if (!registered && pthread_atfork(0, 0, forget_helpers)) return 0;
    registered = 1;
    pthread_t thread;
    if (pthread_create(&thread, 0, help, 0)) return 0;
    pthread_detach(thread);
    return 1;
}

/* Run the worker here and in as many helpers as there is work for and the system allows; only here
   if another call has the helpers. */
static void share(const Problem *p, long work, void *(*worker)(void *), void *argument) {
    int wanted = p->threads < MAX_THREADS ? p->threads : MAX_THREADS;
    wanted = (work < wanted ? work : wanted) - 1;
    pthread_mutex_lock(&helpers.lock);
    int mine = wanted > 0 && !helpers.busy;
    if (mine) {
        while (helpers.started < wanted && start_helper()) helpers.started++;
        helpers.busy = 1;
        helpers.worker = worker;
        helpers.argument = argument;
        helpers.room = wanted;
        for (int i = 0; i < wanted; i++) pthread_cond_signal(&helpers.called);
    }
    pthread_mutex_unlock(&helpers.lock);
    worker(argument);
    if (!mine) return;
    pthread_mutex_lock(&helpers.lock);
    helpers.room = 0; /* helpers that have not joined yet are not needed any more */
    while (helpers.inside) wait_for_change(&helpers.inside, &helpers.left, &helpers.lock);
    helpers.busy = 0;
    pthread_mutex_unlock(&helpers.lock);
}

/* ---- one minibatch of all members, stage by stage ---- */

typedef struct {
    const Problem *p;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Stage stages[STAGES];
    _Atomic int stage;
    long taken, finished; /* parts of this stage, of all members */
} Shift;

static int any_failed(const Problem *p) {
    for (int e = 0; e < p->members; e++)
        if (p->failed[e]) return 1;
    return 0;
}

static void next_stage(Shift *shift) {
    shift->stage = any_failed(shift->p) ? STAGES : shift->stage + 1; /* if one member fails, none moves */
    shift->taken = shift->finished = 0;
    pthread_cond_broadcast(&shift->changed);
}

static void *stage_worker(void *argument) {
    Shift *shift = argument;
    const Problem *p = shift->p;
    pthread_mutex_lock(&shift->lock);
    while (shift->stage < STAGES) {
        Stage stage = shift->stages[shift->stage];
        long all = (long)p->members * stage.parts;
        if (shift->finished == all) {
            next_stage(shift);
            continue;
        }
        if (shift->taken == all) {
            wait_for_change(&shift->stage, &shift->changed, &shift->lock);
            continue;
        }
        long mine = shift->taken++;
        pthread_mutex_unlock(&shift->lock);
        Member m;
        open_member(p, mine / stage.parts, 0, &m);
        stage.work(&m, mine % stage.parts);
        pthread_mutex_lock(&shift->lock);
        shift->finished++;
    }
    pthread_cond_broadcast(&shift->changed);
    pthread_mutex_unlock(&shift->lock);
    return 0;
}

/* Run one minibatch, or without nudged steps only its free phase. Returns whether a member failed. */
int step(const Problem *p) {
    Shift shift = {p, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {{0}}, 0, 0, 0};
    list_stages(p, shift.stages);
    share(p, (long)p->members * strips(p), stage_worker, &shift);
    return any_failed(p);
}

/* ---- many minibatches of all members ----

   The minibatches of one member run in order; different members are independent. A free thread
   takes the member that is furthest behind. So the load is balanced even if the number of members
   is no multiple of the number of threads. */

typedef struct {
    const Problem *p;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t *done, *busy; /* [members] */
} Queue;

/* The free member that is furthest behind. −1: none is free. −2: no work is left. */
static int next_member(const Queue *queue) {
    int best = -2;
    for (int e = 0; e < queue->p->members; e++) {
        if (queue->p->failed[e] || queue->done[e] == queue->p->minibatches) continue;
        if (queue->busy[e])
            best = best == -2 ? -1 : best;
        else if (best < 0 || queue->done[e] < queue->done[best])
            best = e;
    }
    return best;
}

static void learn_member(const Problem *p, int e, int at) {
    Member m;
    Stage stages[STAGES];
    list_stages(p, stages);
    open_member(p, e, at, &m);
    for (int i = 0; i < STAGES && !p->failed[e]; i++)
        for (int part = 0; part < stages[i].parts; part++) stages[i].work(&m, part);
}

static void *member_worker(void *argument) {
    Queue *queue = argument;
    pthread_mutex_lock(&queue->lock);
    for (int e; (e = next_member(queue)) != -2;) {
        if (e == -1) {
            pthread_cond_wait(&queue->changed, &queue->lock);
            continue;
        }
        queue->busy[e] = 1;
        int at = queue->done[e];
        pthread_mutex_unlock(&queue->lock);
        learn_member(queue->p, e, at);
        pthread_mutex_lock(&queue->lock);
        queue->busy[e] = 0;
        queue->done[e]++;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    return 0;
}

int learn(const Problem *p) {
    Queue queue = {p, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, p->progress, p->progress + p->members};
    share(p, p->members, member_worker, &queue);
    return any_failed(p);
}

size_t problem_bytes(void) { return sizeof(Problem); }
