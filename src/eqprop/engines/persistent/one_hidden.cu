/* Many minibatches of networks with one hidden layer, each network held on the chip.

   A network lives in a cluster of CLUSTER multiprocessors. Each holds SLICE of the H hidden
   neurons: their state, drive and weights to the output in registers; the output layer is
   computed by all of them alike, from partial sums that they exchange at every step. Only the
   input weights stay in global memory: they are read once for the drive and moved once a
   minibatch, in the rows of pixels that are not zero throughout.

   Within the nudged phase (c = η/(β B), s_t = (h_t, o_t)):
       drive of the input   X W_x(t) = X W_x(0) + (c G + c_b) (h_t − h_0),   G = X Xᵀ
       hidden weights       W(t) = W(0) + inside · total(t)
           C-EP, EP         total(t) = c (h_tᵀ o_t − h_0ᵀ o_0)
           C-VF, VF         total(t+1) = total(t) + c h_tᵀ (o_{t+1} − o_t), and backward alike
   and inside = 1 for the continual rules, η_tiny/η if rescaled, 0 for EP and VF.

   Sizes are compiled in: NX, H, O, B; CLUSTER; ROWS × COLUMNS of the state a thread holds. */

#define SIGMOID 0
#define TANH 1
#define HARD_SIGMOID 2
#define IDENTITY 3

typedef unsigned int u32;
typedef long long i64;
#ifdef DOUBLE
typedef double real;
typedef unsigned long long bits; /* non-negative numbers are ordered as their bits are */
#define BITS(v) ((bits)__double_as_longlong(v))
#define NUMBER(b) __longlong_as_double((i64)(b))
#else
typedef float real;
typedef unsigned int bits;
#define BITS(v) __float_as_uint(v)
#define NUMBER(b) __uint_as_float(b)
#endif

#define BP ((B + 3) / 4 * 4) /* rows of the minibatch in fours */
#define OP ((O + 3) / 4 * 4)
#define GROUP (32 * COLUMNS) /* columns of a warp */
#define GROUPS ((H + CLUSTER * GROUP - 1) / (CLUSTER * GROUP))
#define SLICE (GROUPS * GROUP)
#define ROW_GROUPS ((B + ROWS - 1) / ROWS)
#define WARPS (GROUPS * ROW_GROUPS)
#define THREADS (32 * WARPS)
#define SOURCES (CLUSTER * GROUPS) /* partial sums of an output */
#define TOGETHER (ROWS < 2 ? ROWS : 2) /* rows whose outputs are summed over the warp at once */
#define VALUES (TOGETHER * O)
#define LEFT ((VALUES + 31) / 32)  /* of a lane, after the sum over the warp */

#define PAIRS (SLICE / 2) /* of columns, in the products with the input weights */
#ifdef DOUBLE
#define MOST_PARTS 6 /* their sums must fit */
#else
#define MOST_PARTS 20
#endif
#define PARTS (THREADS / PAIRS > MOST_PARTS ? MOST_PARTS : THREADS / PAIRS < 1 ? 1 : THREADS / PAIRS)
#define HALF ((PARTS + 1) / 2)

#define SHARES (THREADS / SLICE < 1 ? 1 : (THREADS / SLICE > O ? O : THREADS / SLICE))
#define SHARE ((O + SHARES - 1) / SHARES) /* outputs of a thread that moves weights */
#define TURNS ((SLICE + THREADS - 1) / THREADS)

struct Problem {
    real *wx, *bx, *wf, *wb, *bo; /* [E, NX, H] [E, H] [E, H, O] [E, O, H] [E, O]; bx, wb, bo or NULL */
    const real *rate_wx, *rate_bx, *rate_wf, *rate_wb, *rate_bo; /* [E]: η/B, 0 where frozen */
    const real *beta;                                            /* [M, E], signed */
    const unsigned char *images, *labels; /* [n, NX] [n]; NULL: x and y */
    const i64 *index;                     /* [M, E, B] */
    const real *pixel;                    /* [256]: what a byte transmits */
    const real *x, *y;                    /* [(E,) n, NX] [(E,) n, O] */
    real *h, *o, *residual;               /* [E, n, H] [E, n, O] [E, n]: the end of the free phase;
                                             residual starts at 0 */
    double *wrong, *loss;                 /* [E], or NULL */
    double inside;
    int members, samples; /* samples: n of x, y, h, o, residual */
    int minibatches, free_steps, nudged_steps, shared_x, shared_y;
};

struct __align__(16) Quad { real v[4]; };

/* ---- clusters ---- */

__device__ __forceinline__ u32 rank_in_cluster() {
#if CLUSTER == 1
    return 0;
#else
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
#endif
}
__device__ __forceinline__ void arrive() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void await() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}
/* Write to the same place in the shared memory of another multiprocessor of the cluster. */
__device__ __forceinline__ void send(real *place, u32 rank, real value) {
#if CLUSTER == 1
    *place = value;
#else
    u32 here = (u32)__cvta_generic_to_shared(place), there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
#ifdef DOUBLE
    asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(there), "d"(value) : "memory");
#else
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
#endif
#endif
}

/* ---- σ ---- */

__device__ __forceinline__ real activate(real v) {
#if ACTIVATION == SIGMOID
#ifdef DOUBLE
    return 1.0 / (1.0 + exp(2.0 - 4.0 * v));
#else
    float power, result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(fmaf(v, -5.77078016f, 2.88539008f)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power));
    return result;
#endif
#elif ACTIVATION == TANH
#ifdef DOUBLE
    return tanh(v);
#else
    return tanhf(v);
#endif
#elif ACTIVATION == HARD_SIGMOID
    return v < 0 ? (real)0 : (v > 1 ? (real)1 : v); /* NaN stays */
#else
    return v;
#endif
}

/* The sum over a warp of each of n values; lane l is left with values first … first + count. */
struct Kept { int first, count; };
__device__ __forceinline__ Kept kept_by(u32 lane) {
    Kept k = {0, VALUES};
#pragma unroll
    for (int mask = 16, n = VALUES; mask; mask >>= 1) {
        int half = (n + 1) / 2;
        if (lane & mask) { k.first += half; k.count = k.count > half ? k.count - half : 0; }
        else if (k.count > half) k.count = half;
        n = half;
    }
    return k;
}
__device__ __forceinline__ void sum_over_warp(real *v, u32 lane) {
    int n = VALUES;
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) {
        int half = (n + 1) / 2;
        bool upper = lane & mask;
#pragma unroll
        for (int i = 0; i < (VALUES + 1) / 2; i++)
            if (i < half) {
                real low = v[i], high = half + i < n ? v[half + i] : (real)0;
                real given = upper ? low : high;
                v[i] = (upper ? high : low) + __shfl_xor_sync(~0u, given, mask);
            }
        n = half;
    }
}

/* ---- what a multiprocessor holds in its shared memory ---- */

struct Shared {
    __align__(16) real x[NX][BP];         /* transposed */
    union {
        real sums[HALF][BP][SLICE];       /* of the drive, by parts of the pixels */
        struct { real h[2][BP][SLICE], first_h[BP][SLICE]; }; /* h_t and h_{t+1}; h_0 */
    };
    real drive[BP][SLICE];
    real wf[O][SLICE], wb[O][SLICE];
    real wf0[O][SLICE];                   /* before the phase */
#if VECTOR_FIELD
    real wb0[O][SLICE];
#else
    real start[O][SLICE];                 /* h_0ᵀ o_0 */
#endif
    __align__(16) unsigned char raw[BP][(NX + 15) / 16 * 16]; /* the next minibatch */
    unsigned char label[BP];
    real bx[SLICE], bo[OP];
    real partial[2][SOURCES][ROW_GROUPS * ROWS * O];
    __align__(16) real o[2][BP][OP];
    real first_o[BP][OP], y[BP][OP];
    real sum_o[OP];                       /* over the minibatch, at the steady state */
    real gram[BP][BP];
    real pixel[256];
    bits residual[BP];
    u32 lit[(NX + 31) / 32 + 1];
    short active[NX];
    int actives;
    double wrong[BP], loss[BP];
};

#define EACH_STATE for (int r = 0; r < ROWS; r++) for (int c = 0; c < COLUMNS; c++)

#if NX % 16 == 0
#define WORD 16
#elif NX % 4 == 0
#define WORD 4
#else
#define WORD 1
#endif

/* Begin to fetch the bytes of a minibatch; they are there after `wait_for_bytes` and a barrier. */
__device__ __forceinline__ void fetch_bytes(const Problem &p, Shared &m, int e, int at) {
    const i64 *sample = p.index + ((i64)at * p.members + e) * B;
    for (int k = threadIdx.x; k < B * (NX / WORD); k += THREADS) {
        int b = k / (NX / WORD), i = k % (NX / WORD) * WORD;
        const unsigned char *from = p.images + sample[b] * NX + i;
#if WORD == 1
        m.raw[b][i] = *from;
#else
        u32 to = (u32)__cvta_generic_to_shared(&m.raw[b][i]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(WORD) : "memory");
#endif
    }
    if (threadIdx.x < B) m.label[threadIdx.x] = p.labels[sample[threadIdx.x]];
}
__device__ __forceinline__ void wait_for_bytes() {
#if WORD > 1
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

__device__ __forceinline__ void read_minibatch(const Problem &p, Shared &m, int e, int first) {
    int t = threadIdx.x;
    if (p.images) {
        wait_for_bytes();
        __syncthreads();
        for (int k = t; k < NX * (BP / 4); k += THREADS) {
            int b = k / NX * 4, i = k % NX;
            Quad x;
            for (int r = 0; r < 4; r++) x.v[r] = b + r < B ? m.pixel[m.raw[b + r][i]] : (real)0;
            *(Quad *)&m.x[i][b] = x;
        }
        for (int k = t; k < BP * OP; k += THREADS) {
            int b = k / OP, o = k % OP;
            m.y[b][o] = b < B && m.label[b] == o;
        }
    } else {
        const real *x = p.x + (p.shared_x ? 0 : (i64)e * p.samples * NX);
        const real *y = p.y ? p.y + (p.shared_y ? 0 : (i64)e * p.samples * O) : 0;
        for (int k = t; k < NX * BP; k += THREADS) {
            int b = k / NX, i = k % NX;
            m.x[i][b] = b < B && first + b < p.samples ? x[(i64)(first + b) * NX + i] : (real)0;
        }
        for (int k = t; k < BP * OP; k += THREADS) {
            int b = k / OP, o = k % OP;
            m.y[b][o] = y && b < B && o < O && first + b < p.samples ? y[(i64)(first + b) * O + o] : (real)0;
        }
    }
    __syncthreads();
    /* the pixels that are not zero in every sample, in order */
    const int words = (NX + 31) / 32;
    for (int w = t / 32; w < words; w += WARPS) {
        int i = 32 * w + t % 32;
        bool any = false;
        if (i < NX)
            for (int b = 0; b < BP; b++) any |= m.x[i][b] != 0;
        u32 bits = __ballot_sync(~0u, any);
        if (t % 32 == 0) m.lit[w] = bits;
    }
    __syncthreads();
    for (int w = t / 32; w < words; w += WARPS) {
        int before = 0;
        for (int v = 0; v < w; v++) before += __popc(m.lit[v]);
        u32 bits = m.lit[w], lane = t % 32;
        if (bits >> lane & 1) m.active[before + __popc(bits & ((1u << lane) - 1))] = 32 * w + lane;
        if (w == words - 1 && lane == 0) m.actives = before + __popc(bits);
    }
    __syncthreads();
}

/* G = X Xᵀ in blocks of 4 × 4, each the work of a warp. */
__device__ __forceinline__ void gram(Shared &m) {
    int lane = threadIdx.x % 32;
    const int blocks = BP / 4 * (BP / 4);
    for (int k = threadIdx.x / 32; k < blocks; k += WARPS) {
        int rows = k / (BP / 4) * 4, cols = k % (BP / 4) * 4;
        if (cols > rows) continue;
        real sum[4][4] = {};
        for (int i = lane; i < NX; i += 32) {
            Quad a = *(const Quad *)&m.x[i][rows], b = *(const Quad *)&m.x[i][cols];
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++) sum[r][c] += a.v[r] * b.v[c];
        }
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
#pragma unroll
                for (int mask = 16; mask; mask >>= 1) sum[r][c] += __shfl_xor_sync(~0u, sum[r][c], mask);
                if (lane == 0) m.gram[rows + r][cols + c] = m.gram[cols + c][rows + r] = sum[r][c];
            }
    }
}

/* Two neighbouring columns of a row of W_x; the second may be beyond the last. */
#if H % 2 == 0
struct __align__(2 * sizeof(real)) Pair { real v[2]; };
#else
struct Pair { real v[2]; };
#endif
__device__ __forceinline__ Pair load(const real *w, bool whole) {
#if H % 2 == 0
    return *(const Pair *)w;
#else
    return {w[0], whole ? w[1] : (real)0};
#endif
}
__device__ __forceinline__ void store(real *w, bool whole, Pair v) {
#if H % 2 == 0
    *(Pair *)w = v;
#else
    w[0] = v.v[0];
    if (whole) w[1] = v.v[1];
#endif
}
#define AHEAD 4 /* rows that are loaded before the first is used */

/* X W_x into m.sums[0]. */
__device__ __forceinline__ void input_drive(const real *wx, Shared &m, int first_column) {
    int part = threadIdx.x / PAIRS, j = threadIdx.x % PAIRS * 2;
    bool works = part < PARTS && first_column + j < H, whole = first_column + j + 1 < H;
    const real *w = wx + first_column + j;
    real sum[BP][2] = {};
    int end = works ? m.actives : 0;
    for (int k = part; k < end; k += AHEAD * PARTS) {
        Pair row[AHEAD];
        int pixel[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            bool there = k + a * PARTS < end;
            pixel[a] = there ? m.active[k + a * PARTS] : -1;
            row[a] = there ? load(w + (i64)pixel[a] * H, whole) : Pair{0, 0};
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (pixel[a] < 0) break;
#pragma unroll
            for (int b = 0; b < BP; b += 4) {
                Quad x = *(const Quad *)&m.x[pixel[a]][b];
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    sum[b + r][0] += x.v[r] * row[a].v[0];
                    sum[b + r][1] += x.v[r] * row[a].v[1];
                }
            }
        }
    }
#pragma unroll
    for (int n = PARTS; n > 1; n = (n + 1) / 2) {
        int half = (n + 1) / 2;
        if (part >= half && part < n)
#pragma unroll
            for (int b = 0; b < BP; b++) {
                m.sums[part - half][b][j] = sum[b][0];
                m.sums[part - half][b][j + 1] = sum[b][1];
            }
        __syncthreads();
        if (part + half < n)
#pragma unroll
            for (int b = 0; b < BP; b++) {
                sum[b][0] += m.sums[part][b][j];
                sum[b][1] += m.sums[part][b][j + 1];
            }
        __syncthreads();
    }
    if (part == 0)
#pragma unroll
        for (int b = 0; b < BP; b++) {
            m.sums[0][b][j] = sum[b][0];
            m.sums[0][b][j + 1] = sum[b][1];
        }
    __syncthreads();
}

/* W_x += c Xᵀ (h_K − h_0), in the rows of active pixels. */
__device__ __forceinline__ void move_input_weights(real *wx, Shared &m, int held, int first_column, real c) {
    int part = threadIdx.x / PAIRS, j = threadIdx.x % PAIRS * 2;
    bool works = part < PARTS && first_column + j < H, whole = first_column + j + 1 < H;
    if (!works || c == 0) return;
    real moved[BP][2];
#pragma unroll
    for (int b = 0; b < BP; b++)
#pragma unroll
        for (int i = 0; i < 2; i++) moved[b][i] = c * (m.h[held][b][j + i] - m.first_h[b][j + i]);
    real *w = wx + first_column + j;
    for (int k = part; k < m.actives; k += AHEAD * PARTS) {
        Pair row[AHEAD];
        int pixel[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            bool there = k + a * PARTS < m.actives;
            pixel[a] = there ? m.active[k + a * PARTS] : -1;
            row[a] = there ? load(w + (i64)pixel[a] * H, whole) : Pair{0, 0};
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (pixel[a] < 0) break;
#pragma unroll
            for (int b = 0; b < BP; b += 4) {
                Quad x = *(const Quad *)&m.x[pixel[a]][b];
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    row[a].v[0] += x.v[r] * moved[b + r][0];
                    row[a].v[1] += x.v[r] * moved[b + r][1];
                }
            }
            store(w + (i64)pixel[a] * H, whole, row[a]);
        }
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    run(const Problem p) {
    extern __shared__ __align__(16) char memory[];
    Shared &m = *(Shared *)memory;
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const int rank = rank_in_cluster();
    const int cluster = blockIdx.x / CLUSTER;
    const int e = cluster % p.members;
    const int first_sample = cluster / p.members * B; /* other than 0 only where nothing is learned */
    const int first_column = rank * SLICE;
    const int group = warp % GROUPS;
    const int row = warp / GROUPS * ROWS, column = group * GROUP + lane * COLUMNS;
    const Kept kept = kept_by(lane);
    const real inside = (real)p.inside;
    const real rate_wx = p.rate_wx[e], rate_bx = p.rate_bx[e];
    const real rate_wf = p.rate_wf[e], rate_wb = p.rate_wb[e], rate_bo = p.rate_bo[e];
    real *const wx = p.wx + (i64)e * NX * H;

    for (int k = t; k < (int)(sizeof(Shared) / sizeof(real)); k += THREADS) ((real *)&m)[k] = 0;
    __syncthreads();
    if (p.images)
        for (int k = t; k < 256; k += THREADS) m.pixel[k] = p.pixel[k];
    for (int k = t; k < O * SLICE; k += THREADS) {
        int o = k / SLICE, j = k % SLICE, at = first_column + j;
        bool there = at < H;
        m.wf[o][j] = there ? p.wf[((i64)e * H + at) * O + o] : (real)0;
#if !TIED
        m.wb[o][j] = there ? p.wb[((i64)e * O + o) * H + at] : (real)0;
#endif
    }
    for (int k = t; k < SLICE; k += THREADS)
        m.bx[k] = p.bx && first_column + k < H ? p.bx[(i64)e * H + first_column + k] : (real)0;
    if (t < O) m.bo[t] = p.bo ? p.bo[(i64)e * O + t] : (real)0;
    __syncthreads();
    arrive(); /* nobody writes to a neighbour that has not cleared its memory */
    await();
    if (p.images) fetch_bytes(p, m, e, 0);

    real wf[COLUMNS][O];
#if TIED
#define WB wf
#define MB wf
#else
    real wb[COLUMNS][O];
#define WB wb
#define MB wb
#endif
    real h[ROWS][COLUMNS], drive[ROWS][COLUMNS];
    /* what this thread moves: column `moving` of the slice, outputs share … share + SHARE */
    const int moving = t % SLICE, share = t / SLICE * SHARE;
    const bool mover = t / SLICE < SHARES;
    int exchange = 0;

#define READ_WEIGHTS()                                                          \
    for (int c = 0; c < COLUMNS; c++)                                           \
        for (int o = 0; o < O; o++) {                                           \
            wf[c][o] = m.wf[o][column + c];                                     \
            WB[c][o] = m.MB[o][column + c];                                     \
        }

/* Partial sums of the outputs, from h, to every multiprocessor of the cluster. */
#define SEND_PARTIAL_SUMS()                                                     \
    {                                                                           \
        _Pragma("unroll") for (int two = 0; two < ROWS; two += TOGETHER) {      \
            real v[VALUES];                                                     \
            for (int r = 0; r < TOGETHER; r++)                                  \
                for (int o = 0; o < O; o++) {                                   \
                    real sum = 0;                                               \
                    for (int c = 0; c < COLUMNS; c++) sum += h[two + r][c] * wf[c][o]; \
                    v[r * O + o] = sum;                                         \
                }                                                               \
            sum_over_warp(v, lane);                                             \
            real *place = &m.partial[exchange][rank * GROUPS + group][(row + two) * O + kept.first]; \
            for (int i = 0; i < LEFT; i++)                                      \
                if (i < kept.count)                                             \
                    for (int k = 0; k < CLUSTER; k++) send(place + i, k, v[i]); \
        }                                                                       \
        arrive();                                                               \
    }

/* h = σ(drive + o W_b); `watched`: the largest change is the residual */
#define NEXT_HIDDEN(now, watched)                                               \
    for (int r = 0; r < ROWS; r++) {                                            \
        real o_r[OP];                                                           \
        for (int o = 0; o < OP; o += 4) {                                       \
            Quad q = *(const Quad *)&m.o[now][row + r < BP ? row + r : 0][o];   \
            for (int k = 0; k < 4; k++) o_r[o + k] = q.v[k];                    \
        }                                                                       \
        for (int c = 0; c < COLUMNS; c++) {                                     \
            real v = drive[r][c];                                               \
            for (int o = 0; o < O; o++) v += o_r[o] * WB[c][o];                 \
            v = activate(v);                                                    \
            if (watched && row + r < B && first_column + column + c < H)        \
                HOLD(row + r, v - h[r][c]);                                     \
            h[r][c] = v;                                                        \
        }                                                                       \
    }

#define PARTIAL_SUM(b, o)                                                    \
    for (int source = 0; source < SOURCES; source++) v += m.partial[exchange][source][b * O + o];

#define HOLD(b, change) atomicMax(&m.residual[b], BITS(fabs(change)))

    for (int at = 0; at < p.minibatches; at++) {
        read_minibatch(p, m, e, first_sample);
        if (p.images && at + 1 < p.minibatches) fetch_bytes(p, m, e, at + 1);
#if CONTINUAL
        if (p.nudged_steps) gram(m);
#endif
        input_drive(wx, m, first_column);
        const real beta = p.nudged_steps ? p.beta[(i64)at * p.members + e] : (real)1;
        const real c_wf = rate_wf / beta, c_wb = rate_wb / beta, c_bo = rate_bo / beta;
        const real c_wx = rate_wx / beta, c_bx = rate_bx / beta;
#pragma unroll
        EACH_STATE {
            drive[r][c] = m.sums[0][row + r < BP ? row + r : 0][column + c] + m.bx[column + c];
            h[r][c] = 0;
        }
        READ_WEIGHTS()
        for (int k = t; k < 2 * BP * OP; k += THREADS) (&m.o[0][0][0])[k] = 0;
        if (t < BP) m.residual[t] = 0;
        __syncthreads();

        /* ---- the free phase ---- */
        int now = 0;
        for (int step = 0; step < p.free_steps; step++) {
#if IN_TURN
            const bool last_of_kind = step >= p.free_steps - 2;
            if (step % 2 == 0) {
                NEXT_HIDDEN(now, last_of_kind)
                continue;
            }
            SEND_PARTIAL_SUMS()
            await();
#else
            const bool last_of_kind = step == p.free_steps - 1;
            SEND_PARTIAL_SUMS()
            NEXT_HIDDEN(now, last_of_kind)
            await();
#endif
            for (int k = t; k < B * O; k += THREADS) {
                int b = k / O, o = k % O;
                real v = m.bo[o];
                PARTIAL_SUM(b, o)
                v = activate(v);
                if (last_of_kind) HOLD(b, v - m.o[now][b][o]);
                m.o[now ^ 1][b][o] = v;
            }
            now ^= 1;
            exchange ^= 1;
            __syncthreads();
        }

        /* ---- what it came to ---- */
        bool recorded = at == p.minibatches - 1;
        __syncthreads();
        if (recorded) {
            EACH_STATE {
                int b = first_sample + row + r, j = first_column + column + c;
                if (row + r < B && b < p.samples && j < H) p.h[((i64)e * p.samples + b) * H + j] = h[r][c];
            }
            if (rank == 0)
                for (int k = t; k < B * O; k += THREADS) {
                    int b = first_sample + k / O;
                    if (b < p.samples) p.o[((i64)e * p.samples + b) * O + k % O] = m.o[now][k / O][k % O];
                }
            /* every multiprocessor knows the largest change of its own slice */
            if (t < B && first_sample + t < p.samples) {
                atomicMax((bits *)p.residual + (i64)e * p.samples + first_sample + t, m.residual[t]);
            }
        }
        if (p.wrong && rank == 0 && t < B) {
            int best = 0, label = 0;
            real loss = 0;
            for (int o = 0; o < O; o++) {
                real d = m.o[now][t][o] - m.y[t][o];
                loss += d * d;
                if (m.o[now][t][o] > m.o[now][t][best]) best = o;
                if (m.y[t][o] > m.y[t][label]) label = o;
            }
            m.wrong[t] += best != label;
            m.loss[t] += 0.5 * loss;
        }
        if (!p.nudged_steps) continue;

        /* ---- the nudged phase ---- */
        real total_f[TURNS][SHARE], total_b[TURNS][SHARE];
        for (int k = t; k < BP * OP; k += THREADS) (&m.first_o[0][0])[k] = (&m.o[now][0][0])[k];
        EACH_STATE if (row + r < BP) {
            real v = row + r < B ? h[r][c] : (real)0;
            m.h[0][row + r][column + c] = m.h[1][row + r][column + c] = v;
            m.first_h[row + r][column + c] = v;
            m.drive[row + r][column + c] = drive[r][c];
        }
        if (t < O) {
            real sum = 0;
            for (int b = 0; b < B; b++) sum += m.o[now][b][t];
            m.sum_o[t] = sum;
        }
        __syncthreads();
#define MOVERS                                                                  \
    if (mover)                                                                  \
        for (int turn = 0; turn < TURNS; turn++)                                \
            for (int j = moving + turn * THREADS, once = j < SLICE && first_column + j < H; once; once = 0)
#define OUTPUTS for (int q = 0; q < SHARE; q++) if (share + q < O)
        MOVERS {
            OUTPUTS {
                m.wf0[share + q][j] = m.wf[share + q][j];
#if VECTOR_FIELD
                m.wb0[share + q][j] = m.wb[share + q][j];
#endif
                total_f[turn][q] = total_b[turn][q] = 0;
            }
#if !VECTOR_FIELD
            for (int b = 0; b < B; b++) {
                real h_b = m.h[0][b][j];
                OUTPUTS total_f[turn][q] += h_b * m.o[now][b][share + q];
            }
            OUTPUTS m.start[share + q][j] = total_f[turn][q];
#endif
        }
        int held = 0; /* m.h[held] is h_t */
        for (int step = 0; step < p.nudged_steps; step++) {
            SEND_PARTIAL_SUMS()
#if CONTINUAL
            EACH_STATE drive[r][c] = m.drive[row + r < BP ? row + r : 0][column + c];
            if (step > 0) {
#pragma unroll 4
                for (int b = 0; b < B; b++) {
                    real moved[COLUMNS];
                    for (int c = 0; c < COLUMNS; c++)
                        moved[c] = inside * (m.h[held][b][column + c] - m.first_h[b][column + c]);
                    for (int r = 0; r < ROWS; r++) {
                        real spread = c_wx * m.gram[row + r < BP ? row + r : 0][b] + c_bx;
                        for (int c = 0; c < COLUMNS; c++) drive[r][c] += spread * moved[c];
                    }
                }
            }
#endif
            NEXT_HIDDEN(now, false)
            EACH_STATE if (row + r < B) m.h[held ^ 1][row + r][column + c] = h[r][c];
            await();
            for (int k = t; k < B * O; k += THREADS) {
                int b = k / O, o = k % O;
                real v = m.bo[o];
                PARTIAL_SUM(b, o)
#if CONTINUAL
                if (step > 0) {
                    real sum = 0;
                    for (int i = 0; i < B; i++) sum += m.o[now][i][o];
                    v += inside * c_bo * (sum - m.sum_o[o]);
                }
#endif
                m.o[now ^ 1][b][o] = activate(v) + beta * (m.y[b][o] - m.o[now][b][o]);
            }
            __syncthreads();
#if VECTOR_FIELD
            MOVERS for (int b = 0; b < B; b++) {
                real h_b = m.h[held][b][j], d_b = m.h[held ^ 1][b][j] - h_b;
                OUTPUTS {
                    real o_b = m.o[now][b][share + q];
                    total_f[turn][q] += c_wf * h_b * (m.o[now ^ 1][b][share + q] - o_b);
                    total_b[turn][q] += c_wb * d_b * o_b;
                }
            }
#else
            if (CONTINUAL || step == p.nudged_steps - 1) {
                MOVERS {
                    OUTPUTS total_f[turn][q] = -m.start[share + q][j];
                    for (int b = 0; b < B; b++) {
                        real h_b = m.h[held ^ 1][b][j];
                        OUTPUTS total_f[turn][q] += h_b * m.o[now ^ 1][b][share + q];
                    }
                    OUTPUTS total_f[turn][q] *= c_wf;
                }
            }
#endif
#if VECTOR_FIELD && TIED
#define FORWARD (total_f[turn][q] + total_b[turn][q])
#else
#define FORWARD total_f[turn][q]
#endif
#if CONTINUAL
            MOVERS OUTPUTS {
                m.wf[share + q][j] = m.wf0[share + q][j] + inside * FORWARD;
#if VECTOR_FIELD
                m.wb[share + q][j] = m.wb0[share + q][j] + inside * total_b[turn][q];
#endif
            }
#endif
            now ^= 1;
            held ^= 1;
            exchange ^= 1;
            __syncthreads();
#if CONTINUAL
            READ_WEIGHTS()
#endif
        }

        /* ---- the update ---- */
        MOVERS OUTPUTS {
            m.wf[share + q][j] = m.wf0[share + q][j] + FORWARD;
#if VECTOR_FIELD
            m.wb[share + q][j] = m.wb0[share + q][j] + total_b[turn][q];
#endif
        }
        for (int j = t; j < SLICE; j += THREADS) {
            real sum = 0;
            for (int b = 0; b < B; b++) sum += m.h[held][b][j] - m.first_h[b][j];
            m.bx[j] += c_bx * sum;
        }
        if (t < O) {
            real sum = 0;
            for (int b = 0; b < B; b++) sum += m.o[now][b][t];
            m.bo[t] += c_bo * (sum - m.sum_o[t]);
        }
        move_input_weights(wx, m, held, first_column, c_wx);
        __syncthreads();
    }

    if (p.nudged_steps) {
        for (int k = t; k < O * SLICE; k += THREADS) {
            int o = k / SLICE, j = k % SLICE, at = first_column + j;
            if (at < H) {
                p.wf[((i64)e * H + at) * O + o] = m.wf[o][j];
#if !TIED
                p.wb[((i64)e * O + o) * H + at] = m.wb[o][j];
#endif
            }
        }
        if (p.bx)
            for (int k = t; k < SLICE; k += THREADS)
                if (first_column + k < H) p.bx[(i64)e * H + first_column + k] = m.bx[k];
        if (p.bo && rank == 0 && t < O) p.bo[(i64)e * O + t] = m.bo[t];
    }
    if (p.wrong && rank == 0 && t == 0)
        for (int b = 0; b < B; b++) {
            p.wrong[e] += m.wrong[b];
            p.loss[e] += m.loss[b];
        }
    arrive(); /* nobody leaves while a neighbour may still write to it */
    await();
}

extern "C" __device__ const int shared_bytes = sizeof(Shared), threads = THREADS;
