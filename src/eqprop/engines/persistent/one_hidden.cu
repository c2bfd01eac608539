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

   Sizes are compiled in: NX, H, O, B; CLUSTER; ROWS × COLUMNS of the hidden state a thread
   computes; SPLIT threads that share a sum over the slice. */

#define BP ((B + 3) / 4 * 4) /* rows of the minibatch in fours */
#define OP ((O + 3) / 4 * 4)
#define GROUPS ((H + CLUSTER * 32 * COLUMNS - 1) / (CLUSTER * 32 * COLUMNS)) /* warps side by side */
#define SLICE (GROUPS * 32 * COLUMNS)
#define ROW_GROUPS ((B + ROWS - 1) / ROWS)
#define WARPS (GROUPS * ROW_GROUPS)
#define THREADS (32 * WARPS)

/* Outputs: SPLIT threads share the sums of one output neuron over SET rows of the minibatch. */
#define SET 5
#define SETS ((B + SET - 1) / SET * O)
#define AT_ONCE (THREADS / SPLIT)
#define PASSES ((SETS + AT_ONCE - 1) / AT_ONCE)
#define DEPTH (SLICE / SPLIT)
#define CHUNK (DEPTH % 4 == 0 ? 4 : DEPTH % 2 == 0 ? 2 : 1)
#define BH ((B + SET - 1) / SET * SET > BP ? (B + SET - 1) / SET * SET : BP) /* rows of h */

/* The products with the input weights: a pair of columns and a part of the pixels a thread. */
#define PAIRS (SLICE / 2)
#ifdef DOUBLE
#define MOST_PARTS 6 /* their sums must fit */
#else
#define MOST_PARTS 20
#endif
#define PARTS (THREADS / PAIRS > MOST_PARTS ? MOST_PARTS : THREADS / PAIRS < 1 ? 1 : THREADS / PAIRS)
#define HALF ((PARTS + 1) / 2)

/* The movement of the hidden weights: WIDTH columns and four outputs a thread. */
#define WIDTH (SLICE >= 256 ? 2 : 1)
#define MOVERS (SLICE / WIDTH * (OP / 4))
#define TURNS ((MOVERS + THREADS - 1) / THREADS)

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
    i64 *clocks;                          /* [16], with PROFILE: of the first multiprocessor */
    double inside;
    int members, samples; /* samples: n of x, y, h, o, residual */
    int minibatches, free_steps, nudged_steps, shared_x, shared_y;
};

struct ALIGNED(COLUMNS) Columns { real v[COLUMNS]; };
struct ALIGNED(CHUNK) Chunk { real v[CHUNK]; };

enum { SIGMOID, TANH, HARD_SIGMOID, IDENTITY };
__device__ __forceinline__ real activate(real v) {
    switch (ACTIVATION) {
#ifdef DOUBLE
        case SIGMOID: return 1 / (1 + exp(2 - 4 * v));
        case TANH: return tanh(v);
#else
        case SIGMOID: return reciprocal(1 + power_of_two(fmaf(v, -5.77078016f, 2.88539008f)));
        case TANH: return tanhf(v);
#endif
        case HARD_SIGMOID: return v < 0 ? (real)0 : (v > 1 ? (real)1 : v); /* NaN stays */
        default: return v;
    }
}

/* The sums over SPLIT neighbouring lanes of SET values; a lane is left with `count` of them. */
struct Kept { int first, count; };
__device__ __forceinline__ Kept kept_by(u32 lane) {
    Kept k = {0, SET};
#pragma unroll
    for (int mask = SPLIT / 2, n = SET; mask; mask >>= 1) {
        int half = (n + 1) / 2;
        if (lane & mask) { k.first += half; k.count = k.count > half ? k.count - half : 0; }
        else if (k.count > half) k.count = half;
        n = half;
    }
    return k;
}
__device__ __forceinline__ void sum_over_lanes(real *v, u32 lane) {
    int n = SET;
#pragma unroll
    for (int mask = SPLIT / 2; mask; mask >>= 1) {
        int half = (n + 1) / 2;
        bool upper = lane & mask;
#pragma unroll
        for (int i = 0; i < (SET + 1) / 2; i++)
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
        struct { real h[2][BH][SLICE], first_h[BH][SLICE]; }; /* h_t and h_{t+1}; h_0 */
    };
    real drive[BP][SLICE];                /* in the nudged phase, with −(c G + c_b) h_0 in it */
    real wf[OP][SLICE], wb[OP][SLICE];
    real wf0[OP][SLICE];                  /* before the phase */
    real other[OP][SLICE];                /* C-VF: wb before the phase; C-EP: h_0ᵀ o_0 */
    __align__(16) unsigned char raw[BP][(NX + 15) / 16 * 16]; /* the next minibatch */
    __align__(16) unsigned char label[(BP + 15) / 16 * 16];
    __align__(16) real o[2][BH][OP], changed[BH][OP]; /* o_t and o_{t+1}; their difference */
    __align__(16) real spread[BP][BP];    /* inside · (c G + c_b) */
    real partial[2][CLUSTER][SETS * SET];
    u64 ready[2];
    real y[BP][OP];
    real bx[SLICE], bo[OP], bias[OP];     /* bias: bo as it is at this step */
    real sum_o[OP];                       /* over the minibatch, at the steady state */
    real pixel[256];
    bits residual[BP];
    u32 lit[(NX + 31) / 32 + 1];
    short active[NX];
    int actives;
    double wrong[BP], loss[BP];
#ifdef PROFILE
    i64 clocks[16], last;
#endif
};

#if NX % 16 == 0
#define WORD 16
#elif NX % 4 == 0
#define WORD 4
#else
#define WORD 1
#endif

/* Begin to fetch the bytes of a minibatch; they are there after `wait_for_copies` and a barrier. */
__device__ __forceinline__ void fetch_bytes(const Problem &p, Shared &m, int e, int at) {
    const i64 *sample = p.index + ((i64)at * p.members + e) * B;
    for (int k = threadIdx.x; k < B * (NX / WORD); k += THREADS) {
        int b = k / (NX / WORD), i = k % (NX / WORD) * WORD;
        const unsigned char *from = p.images + sample[b] * NX + i;
#if WORD == 1
        m.raw[b][i] = *from;
#else
        copy_in_background<WORD>(&m.raw[b][i], from);
#endif
    }
    if (threadIdx.x < B) m.label[threadIdx.x] = p.labels[sample[threadIdx.x]];
}
__device__ __forceinline__ void read_minibatch(const Problem &p, Shared &m, int e, int first) {
    int t = threadIdx.x;
    if (p.images) {
        wait_for_copies();
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

/* c_w G + c_b with G = X Xᵀ, in blocks of 4 × 4, each the work of a warp. */
__device__ __forceinline__ void spread(Shared &m, real c_w, real c_b) {
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
                if (lane == 0) m.spread[rows + r][cols + c] = m.spread[cols + c][rows + r] = c_w * sum[r][c] + c_b;
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

#ifdef PROFILE /* cycles between two stamps, of the first thread */
#define STAMP(i)                                            \
    if (threadIdx.x == 0) {                                 \
        i64 clock = clock64();                              \
        m.clocks[i] += clock - m.last;                      \
        m.last = clock;                                     \
    }
#else
#define STAMP(i)
#endif

/* What a thread does in a step: ROWS × COLUMNS of the hidden states, and a share of the outputs. */
struct Part {
    Shared &m;
    const int rank, lane, row, column, first_column;
    const Kept kept;
    real drive[ROWS][COLUMNS], wb[COLUMNS][O], wf[PASSES][DEPTH];

    __device__ __forceinline__ Part(Shared &m, int rank)
        : m(m), rank(rank), lane(threadIdx.x % SPLIT), row(threadIdx.x / 32 / GROUPS * ROWS),
          column((threadIdx.x / 32 % GROUPS * 32 + threadIdx.x % 32) * COLUMNS),
          first_column(rank * SLICE), kept(kept_by(threadIdx.x % SPLIT)) {}

    __device__ __forceinline__ int set(int pass) const { return threadIdx.x / SPLIT + pass * AT_ONCE; }
    __device__ __forceinline__ int safe_row(int r) const { return row + r < BP ? row + r : 0; }

    __device__ __forceinline__ void read_weights() {
#pragma unroll
        for (int o = 0; o < O; o++) {
#if TIED
            Columns w = *(const Columns *)&m.wf[o][column];
#else
            Columns w = *(const Columns *)&m.wb[o][column];
#endif
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) wb[c][o] = w.v[c];
        }
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
            for (int q = 0; q < DEPTH; q += CHUNK) {
                Chunk w = *(const Chunk *)&m.wf[set(pass) % O][q * SPLIT + lane * CHUNK];
#pragma unroll
                for (int i = 0; i < CHUNK; i++) wf[pass][q + i] = w.v[i];
            }
    }

    /* Partial sums of the outputs, from h, to every multiprocessor of the cluster. */
    __device__ __forceinline__ void send_partial_sums(int held, int exchange) {
        if (threadIdx.x == 0) expect(&m.ready[exchange], CLUSTER * SETS * SET);
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            int first = set(pass) < SETS ? set(pass) / O * SET : 0;
            real v[SET] = {};
#pragma unroll
            for (int q = 0; q < DEPTH; q += CHUNK)
#pragma unroll
                for (int r = 0; r < SET; r++) {
                    Chunk h = *(const Chunk *)&m.h[held][first + r][q * SPLIT + lane * CHUNK];
#pragma unroll
                    for (int i = 0; i < CHUNK; i++) v[r] += h.v[i] * wf[pass][q + i];
                }
            sum_over_lanes(v, lane);
            if (set(pass) < SETS)
#pragma unroll
                for (int i = 0; i < (SET + SPLIT - 1) / SPLIT; i++)
                    if (i < kept.count) {
                        real *place = &m.partial[exchange][rank][set(pass) * SET + kept.first + i];
#pragma unroll
                        for (int k = 0; k < CLUSTER; k++) send(place, &m.ready[exchange], k, v[i]);
                    }
        }
    }

    /* h_{t+1} = σ(drive + o_t W_b); `watched`: its largest change is the residual */
    __device__ __forceinline__ void next_hidden(int now, int held, bool watched) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            real o_r[OP];
#pragma unroll
            for (int o = 0; o < OP; o += 4) {
                Quad q = *(const Quad *)&m.o[now][safe_row(r)][o];
#pragma unroll
                for (int k = 0; k < 4; k++) o_r[o + k] = q.v[k];
            }
            Columns h;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                real v = drive[r][c];
#pragma unroll
                for (int o = 0; o < O; o++) v += o_r[o] * wb[c][o];
                h.v[c] = activate(v);
            }
            if (row + r >= B) continue;
            if (watched)
                for (int c = 0; c < COLUMNS && first_column + column + c < H; c++)
                    atomicMax(&m.residual[row + r], BITS(fabs(h.v[c] - m.h[held][row + r][column + c])));
            *(Columns *)&m.h[held ^ 1][row + r][column] = h;
        }
    }

    /* drive(t) = drive + spread · h_t, where the drive stored has −spread · h_0 in it */
    __device__ __forceinline__ void correct_drive(int held, real sign, bool stored) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                if (stored) drive[r][c] = m.drive[safe_row(r)][column + c];
#pragma unroll 4
        for (int b = 0; b < B; b++) {
            Columns h = *(const Columns *)&m.h[held][b][column];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                real s = sign * m.spread[b][safe_row(r)];
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) drive[r][c] += s * h.v[c];
            }
        }
    }

    /* What drives output o of sample b, when it has come in from all. */
    __device__ __forceinline__ real partial_sum(int exchange, int b, int o) const {
        int k = (b / SET * O + o) * SET + b % SET;
        real v = 0;
#pragma unroll
        for (int source = 0; source < CLUSTER; source++) v += m.partial[exchange][source][k];
        return v;
    }
};

/* The totals that the weights of WIDTH columns and four outputs have moved by, c left out. */
struct Mover {
    Shared &m;
    real f[TURNS][WIDTH][4], b[TURNS][WIDTH][4];

    __device__ __forceinline__ Mover(Shared &m) : m(m), f{}, b{} {}
    __device__ __forceinline__ int at(int turn) const { return threadIdx.x + turn * THREADS; }
    __device__ __forceinline__ int column(int turn) const { return at(turn) % (SLICE / WIDTH) * WIDTH; }
    __device__ __forceinline__ int output(int turn) const { return at(turn) / (SLICE / WIDTH) * 4; }

#define EACH_TURN _Pragma("unroll") for (int turn = 0; turn < TURNS; turn++) if (at(turn) < MOVERS)
#define EACH_WEIGHT                                      \
    _Pragma("unroll") for (int w = 0; w < WIDTH; w++)    \
        _Pragma("unroll") for (int k = 0; k < 4; k++)

    /* f = h_heldᵀ o_now */
    __device__ __forceinline__ void correlate(int held, int now) {
        EACH_TURN {
            EACH_WEIGHT f[turn][w][k] = 0;
#pragma unroll 4
            for (int i = 0; i < B; i++) {
                Quad o = *(const Quad *)&m.o[now][i][output(turn)];
#pragma unroll
                for (int w = 0; w < WIDTH; w++) {
                    real h = m.h[held][i][column(turn) + w];
#pragma unroll
                    for (int k = 0; k < 4; k++) f[turn][w][k] += h * o.v[k];
                }
            }
        }
    }
    /* f += h_tᵀ (o_{t+1} − o_t), b += o_tᵀ (h_{t+1} − h_t) */
    __device__ __forceinline__ void follow(int held, int now) {
        EACH_TURN {
#pragma unroll 4
            for (int i = 0; i < B; i++) {
                Quad o = *(const Quad *)&m.o[now][i][output(turn)];
                Quad d = *(const Quad *)&m.changed[i][output(turn)];
#pragma unroll
                for (int w = 0; w < WIDTH; w++) {
                    real h = m.h[held][i][column(turn) + w];
                    real moved = m.h[held ^ 1][i][column(turn) + w] - h;
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        f[turn][w][k] += h * d.v[k];
                        b[turn][w][k] += moved * o.v[k];
                    }
                }
            }
        }
    }
    /* before the phase */
    __device__ __forceinline__ void begin(int held, int now) {
#if !VECTOR_FIELD
        correlate(held, now);
#endif
        EACH_TURN EACH_WEIGHT {
            int o = output(turn) + k, j = column(turn) + w;
            m.wf0[o][j] = m.wf[o][j];
#if VECTOR_FIELD
            m.other[o][j] = m.wb[o][j];
#else
            m.other[o][j] = f[turn][w][k];
#endif
        }
    }
    /* W = W(0) + inside · c · total, where there are neurons */
    __device__ __forceinline__ void write(real c_f, real c_b, real inside, int columns) {
        EACH_TURN EACH_WEIGHT {
            int o = output(turn) + k, j = column(turn) + w;
            if (o < O && j < columns) {
#if VECTOR_FIELD
                real forward = c_f * f[turn][w][k], backward = c_b * b[turn][w][k];
                m.wb[o][j] = m.other[o][j] + inside * backward;
                m.wf[o][j] = m.wf0[o][j] + inside * (forward + (TIED ? backward : (real)0));
#else
                m.wf[o][j] = m.wf0[o][j] + inside * c_f * (f[turn][w][k] - m.other[o][j]);
#endif
            }
        }
    }
};

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    run(const Problem p) {
    Shared &m = *(Shared *)shared_memory();
    const int t = threadIdx.x, rank = rank_in_cluster(), cluster = blockIdx.x / CLUSTER;
    const int e = cluster % p.members;
    const int first_sample = cluster / p.members * B; /* other than 0 only where nothing is learned */
    const int first_column = rank * SLICE, columns = H - first_column;
    const real inside = (real)p.inside;
    real *const wx = p.wx + (i64)e * NX * H;

    for (int k = t; k < (int)(sizeof(Shared) / sizeof(real)); k += THREADS) ((real *)&m)[k] = 0;
    __syncthreads();
    if (p.images)
        for (int k = t; k < 256; k += THREADS) m.pixel[k] = p.pixel[k];
    for (int k = t; k < O * SLICE; k += THREADS) {
        int o = k / SLICE, j = k % SLICE, at = first_column + j;
        if (j >= columns) continue;
        m.wf[o][j] = p.wf[((i64)e * H + at) * O + o];
#if !TIED
        m.wb[o][j] = p.wb[((i64)e * O + o) * H + at];
#endif
    }
    for (int j = t; j < SLICE && j < columns; j += THREADS)
        m.bx[j] = p.bx ? p.bx[(i64)e * H + first_column + j] : (real)0;
    if (t < O) m.bo[t] = p.bo ? p.bo[(i64)e * O + t] : (real)0;
    if (t < 2) prepare(&m.ready[t]);
    __syncthreads();
    meet(); /* nobody writes to a neighbour that has not cleared its memory */
    if (p.images) fetch_bytes(p, m, e, 0);

    Part part(m, rank);
    int exchange = 0, phase = 0;
    for (int at = 0; at < p.minibatches; at++) {
        STAMP(15)
        read_minibatch(p, m, e, first_sample);
        STAMP(0)
        if (p.images && at + 1 < p.minibatches) fetch_bytes(p, m, e, at + 1);
        const real beta = p.nudged_steps ? p.beta[(i64)at * p.members + e] : (real)1;
        const real c_wf = p.rate_wf[e] / beta, c_bo = p.rate_bo[e] / beta;
        const real c_wx = p.rate_wx[e] / beta, c_bx = p.rate_bx[e] / beta;
        const real c_wb = p.rate_wb[e] / beta;
#if CONTINUAL
        if (p.nudged_steps) spread(m, inside * c_wx, inside * c_bx);
#endif
        STAMP(1)
        input_drive(wx, m, first_column);
        STAMP(2)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                part.drive[r][c] = m.sums[0][part.safe_row(r)][part.column + c] + m.bx[part.column + c];
        part.read_weights();
        __syncthreads(); /* h lies where the sums were */
        for (int k = t; k < 2 * BH * SLICE; k += THREADS) (&m.h[0][0][0])[k] = 0;
        for (int k = t; k < 2 * BH * OP; k += THREADS) (&m.o[0][0][0])[k] = 0;
        if (t < BP) m.residual[t] = 0;
        if (t < O) m.bias[t] = m.bo[t];
        __syncthreads();

        /* ---- the free phase ---- */
        STAMP(3)
        int now = 0, held = 0; /* m.o[now] is o_t, m.h[held] is h_t */
        for (int step = 0; step < p.free_steps; step++) {
#if IN_TURN
            const bool watched = step >= p.free_steps - 2;
            if (step % 2 == 0) {
                part.next_hidden(now, held, watched);
                held ^= 1;
                __syncthreads();
                continue;
            }
            part.send_partial_sums(held, exchange);
#else
            const bool watched = step == p.free_steps - 1;
            part.send_partial_sums(held, exchange);
            STAMP(4)
            part.next_hidden(now, held, watched);
            held ^= 1;
#endif
            STAMP(5)
            if (t < B * O) receive(&m.ready[exchange], phase >> exchange & 1);
            for (int k = t; k < B * O; k += THREADS) {
                int b = k / O, o = k % O;
                real v = activate(m.bias[o] + part.partial_sum(exchange, b, o));
                if (watched) atomicMax(&m.residual[b], BITS(fabs(v - m.o[now][b][o])));
                m.o[now ^ 1][b][o] = v;
            }
            now ^= 1;
            phase ^= 1 << exchange;
            exchange ^= 1;
            STAMP(6)
            __syncthreads();
            STAMP(7)
        }

        /* ---- what it came to ---- */
        if (at == p.minibatches - 1) {
            for (int k = t; k < B * SLICE; k += THREADS) {
                int b = first_sample + k / SLICE, j = k % SLICE;
                if (b < p.samples && j < columns)
                    p.h[((i64)e * p.samples + b) * H + first_column + j] = m.h[held][k / SLICE][j];
            }
            if (rank == 0)
                for (int k = t; k < B * O; k += THREADS) {
                    int b = first_sample + k / O;
                    if (b < p.samples) p.o[((i64)e * p.samples + b) * O + k % O] = m.o[now][k / O][k % O];
                }
            /* every multiprocessor knows the largest change of its own slice */
            if (t < B && first_sample + t < p.samples)
                atomicMax((bits *)p.residual + (i64)e * p.samples + first_sample + t, m.residual[t]);
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
        for (int k = t; k < BH * SLICE; k += THREADS) (&m.first_h[0][0])[k] = (&m.h[held][0][0])[k];
        if (t < O) {
            real sum = 0;
            for (int b = 0; b < B; b++) sum += m.o[now][b][t];
            m.sum_o[t] = sum;
        }
#if CONTINUAL
        part.correct_drive(held, -1, false);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                if (part.row + r < BP) m.drive[part.row + r][part.column + c] = part.drive[r][c];
#endif
        Mover mover(m);
        mover.begin(held, now);
        __syncthreads();
        STAMP(8)
        for (int step = 0; step < p.nudged_steps; step++) {
            part.send_partial_sums(held, exchange);
            STAMP(9)
#if CONTINUAL
            part.correct_drive(held, 1, true);
#endif
            STAMP(10)
            part.next_hidden(now, held, false);
            STAMP(11)
            if (t < B * O) receive(&m.ready[exchange], phase >> exchange & 1);
            for (int k = t; k < B * O; k += THREADS) {
                int b = k / O, o = k % O;
                real v = activate(m.bias[o] + part.partial_sum(exchange, b, o));
                v += beta * (m.y[b][o] - m.o[now][b][o]);
                m.o[now ^ 1][b][o] = v;
                m.changed[b][o] = v - m.o[now][b][o];
            }
            __syncthreads();
            STAMP(12)
#if VECTOR_FIELD
            mover.follow(held, now);
#else
            if (CONTINUAL || step == p.nudged_steps - 1) mover.correlate(held ^ 1, now ^ 1);
#endif
            now ^= 1;
            held ^= 1;
            phase ^= 1 << exchange;
            exchange ^= 1;
#if CONTINUAL
            mover.write(c_wf, c_wb, inside, columns);
            if (t >= THREADS - 32 && t - (THREADS - 32) < O) { /* a warp that moves no weights */
                int o = t - (THREADS - 32);
                real sum = -m.sum_o[o];
                for (int b = 0; b < B; b++) sum += m.o[now][b][o];
                m.bias[o] = m.bo[o] + inside * c_bo * sum;
            }
            __syncthreads();
            part.read_weights();
#else
            __syncthreads();
#endif
            STAMP(13)
        }

        /* ---- the update ---- */
        mover.write(c_wf, c_wb, 1, columns);
        for (int j = t; j < SLICE; j += THREADS) {
            real sum = 0;
            for (int b = 0; b < B; b++) sum += m.h[held][b][j] - m.first_h[b][j];
            m.bx[j] += c_bx * sum;
        }
        if (t < O) {
            real sum = -m.sum_o[t];
            for (int b = 0; b < B; b++) sum += m.o[now][b][t];
            m.bo[t] += c_bo * sum;
        }
        move_input_weights(wx, m, held, first_column, c_wx);
        __syncthreads();
        STAMP(14)
    }

#ifdef PROFILE
    if (p.clocks && blockIdx.x == 0 && t < 16) p.clocks[t] = m.clocks[t];
#endif
    if (p.nudged_steps) {
        for (int k = t; k < O * SLICE; k += THREADS) {
            int o = k / SLICE, j = k % SLICE, at = first_column + j;
            if (j >= columns) continue;
            p.wf[((i64)e * H + at) * O + o] = m.wf[o][j];
#if !TIED
            p.wb[((i64)e * O + o) * H + at] = m.wb[o][j];
#endif
        }
        for (int j = t; p.bx && j < SLICE && j < columns; j += THREADS)
            p.bx[(i64)e * H + first_column + j] = m.bx[j];
        if (p.bo && rank == 0 && t < O) p.bo[(i64)e * O + t] = m.bo[t];
    }
    if (p.wrong && rank == 0 && t == 0)
        for (int b = 0; b < B; b++) {
            p.wrong[e] += m.wrong[b];
            p.loss[e] += m.loss[b];
        }
    meet(); /* nobody leaves while a neighbour may still write to it */
}

extern "C" __device__ const int shared_bytes = sizeof(Shared), threads = THREADS;
