/* The minibatch and the input weights. The weights stay in global memory. Per minibatch they are
   read once for the drive and moved once, only in the rows of pixels that are nonzero in some
   sample ("active"). */

/* Products with the input weights: each thread has STRIP columns and a part of the pixels. There are
   at most MOST_PARTS parts, since their sums must fit. */
#ifndef STRIP
#define STRIP 2
#endif
#define STRIPS (SLICE / STRIP)
#if THREADS < STRIPS
#error "some columns of the input weights would have no thread"
#endif
#define PARTS (THREADS / STRIPS > MOST_PARTS ? MOST_PARTS : THREADS / STRIPS)
#define HALF ((PARTS + 1) / 2)

#if NX % 16 == 0
#define WORD 16
#elif NX % 4 == 0
#define WORD 4
#else
#define WORD 1
#endif

/* Start to fetch the labels of a minibatch, and with PREFETCH its bytes into m.raw. They are complete
   after `wait_for_copies` and a barrier. */
template <class M> __device__ __forceinline__ void fetch_bytes(const Problem &p, M &m, int e, int at) {
    const i64 *sample = p.index + ((i64)at * p.members + e) * B;
#if PREFETCH
    for (int k = threadIdx.x; k < B * (NX / WORD); k += THREADS) {
        int b = k / (NX / WORD), i = k % (NX / WORD) * WORD;
        const unsigned char *from = p.images + sample[b] * NX + i;
#if WORD == 1
        m.raw[b][i] = *from;
#else
        copy_in_background<WORD>(&m.raw[b][i], from);
#endif
    }
#endif
    if (threadIdx.x < B) m.label[threadIdx.x] = p.labels[sample[threadIdx.x]];
}
template <class M>
__device__ __forceinline__ unsigned char byte_of(const Problem &p, const M &m, int e, int at, int b, int i) {
#if PREFETCH
    return m.raw[b][i];
#else
    return p.images[p.index[((i64)at * p.members + e) * B + b] * NX + i];
#endif
}

/* Write what the input transmits to m.x. */
template <class M> __device__ __forceinline__ void read_pixels(const Problem &p, M &m, int e, int at, int first) {
    for (int k = threadIdx.x; k < NX * (BP / 4); k += THREADS) {
        int b = k / NX * 4, i = k % NX;
        Quad four;
        if (p.images)
            for (int r = 0; r < 4; r++) four.v[r] = b + r < B ? m.pixel[byte_of(p, m, e, at, b + r, i)] : (real)0;
        else {
            const real *x = p.x + (p.shared_x ? 0 : (i64)e * p.samples * NX);
            for (int r = 0; r < 4; r++) {
                bool there = b + r < B && first + b + r < p.samples;
                four.v[r] = there ? x[(i64)(first + b + r) * NX + i] : (real)0;
            }
        }
        *(Quad *)&m.x[i][b] = four;
    }
}

template <class M> __device__ __forceinline__ void read_minibatch(const Problem &p, M &m, int e, int at, int first) {
    int t = threadIdx.x;
    if (p.images) {
        wait_for_copies();
        __syncthreads();
    }
    read_pixels(p, m, e, at, first);
    if (p.images)
        for (int k = t; k < BP * OP; k += THREADS) {
            int b = k / OP, o = k % OP;
            m.y[b][o] = b < B && m.label[b] == o;
        }
    else {
        const real *y = p.y ? p.y + (p.shared_y ? 0 : (i64)e * p.samples * O) : 0;
        for (int k = t; k < BP * OP; k += THREADS) {
            int b = k / OP, o = k % OP;
            m.y[b][o] = y && b < B && o < O && first + b < p.samples ? y[(i64)(first + b) * O + o] : (real)0;
        }
    }
    __syncthreads();
    /* list the active pixels in order */
    const int words = (NX + 31) / 32;
    for (int w = t / 32; w < words; w += THREADS / 32) {
        int i = 32 * w + t % 32;
        bool any = false;
        if (i < NX)
            for (int b = 0; b < BP; b++) any |= m.x[i][b] != 0;
        u32 bits = __ballot_sync(~0u, any);
        if (t % 32 == 0) m.lit[w] = bits;
    }
    __syncthreads();
    for (int w = t / 32; w < words; w += THREADS / 32) {
        int before = 0;
        for (int v = 0; v < w; v++) before += __popc(m.lit[v]);
        u32 bits = m.lit[w], lane = t % 32;
        if (bits >> lane & 1) m.active[before + __popc(bits & ((1u << lane) - 1))] = 32 * w + lane;
        if (w == words - 1 && lane == 0) m.actives = before + __popc(bits);
    }
    __syncthreads();
}

/* m.spread = c_w G + c_b with G = X Xᵀ, in blocks of 4 × 4, one per warp. */
template <class M> __device__ __forceinline__ void spread(M &m, real c_w, real c_b) {
    const int lane = threadIdx.x % 32, blocks = (BP / 4) * (BP / 4 + 1) / 2;
    for (int k = threadIdx.x / 32; k < blocks; k += THREADS / 32) {
        int down = 0, before = 0; /* block k of the lower triangle */
        while (before + down + 1 <= k) before += ++down;
        int rows = down * 4, cols = (k - before) * 4;
        real sum[16] = {};
#pragma unroll 4
        for (int n = lane; n < m.actives; n += 32) {
            int i = m.active[n];
            Quad a = *(const Quad *)&m.x[i][rows], b = *(const Quad *)&m.x[i][cols];
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++) sum[4 * r + c] += a.v[r] * b.v[c];
        }
        /* butterfly: lanes exchange half of their sums until each has one, over half of the warp */
#pragma unroll
        for (int half = 8; half; half >>= 1) {
            bool upper = lane & half;
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i < half) {
                    real given = upper ? sum[i] : sum[half + i];
                    sum[i] = (upper ? sum[half + i] : sum[i]) + __shfl_xor_sync(~0u, given, half);
                }
        }
        sum[0] += __shfl_xor_sync(~0u, sum[0], 16);
        int r = rows + lane % 16 / 4, c = cols + lane % 4;
        if (lane < 16) m.spread[r][c] = m.spread[c][r] = c_w * sum[0] + c_b;
    }
}

/* STRIP neighbouring columns of a row of W_x. If H is no multiple of STRIP, the second may be missing. */
#if H % STRIP == 0
struct ALIGNED(STRIP) Stripe { real v[STRIP]; };
#else
struct Stripe { real v[2]; };
#endif
__device__ __forceinline__ Stripe load(const real *w, bool whole) {
#if H % STRIP == 0
    return *(const Stripe *)w;
#else
    return {w[0], whole ? w[1] : (real)0};
#endif
}
__device__ __forceinline__ void store(real *w, bool whole, Stripe v) {
#if H % STRIP == 0
    *(Stripe *)w = v;
#else
    w[0] = v.v[0];
    if (whole) w[1] = v.v[1];
#endif
}
#define AHEAD (THREADS > 320 ? 4 : 8) /* rows to load before the first is used */

/* Load the rows of active pixels k, k + PARTS, …; pixel −1 beyond the last. */
template <class M>
__device__ __forceinline__ void load_rows(const M &m, const real *w, bool whole, int k, Stripe *row, int *pixel) {
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
        bool there = k + a * PARTS < m.actives;
        pixel[a] = there ? m.active[k + a * PARTS] : -1;
        row[a] = there ? load(w + (i64)pixel[a] * H, whole) : Stripe{};
    }
}

/* STRIP numbers in shared memory, which always has room for all. */
struct ALIGNED(STRIP) Whole { real v[STRIP]; };
__device__ __forceinline__ void put(real *place, const real *v) {
    Whole w;
#pragma unroll
    for (int c = 0; c < STRIP; c++) w.v[c] = v[c];
    *(Whole *)place = w;
}

/* m.sums[0] = X W_x. */
template <class M> __device__ __forceinline__ void input_drive(const real *wx, M &m, int first_column) {
    int part = threadIdx.x / STRIPS, j = threadIdx.x % STRIPS * STRIP;
    bool works = part < PARTS && first_column + j < H, whole = first_column + j + 1 < H;
    const real *w = wx + first_column + j;
    real sum[BP][STRIP] = {};
    int end = works ? m.actives : 0;
    for (int k = part; k < end; k += AHEAD * PARTS) {
        Stripe row[AHEAD];
        int pixel[AHEAD];
        load_rows(m, w, whole, k, row, pixel);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (pixel[a] < 0) break;
#pragma unroll
            for (int b = 0; b < BP; b += 4) {
                Quad x = *(const Quad *)&m.x[pixel[a]][b];
#pragma unroll
                for (int r = 0; r < 4; r++)
#pragma unroll
                    for (int c = 0; c < STRIP; c++) sum[b + r][c] += x.v[r] * row[a].v[c];
            }
        }
    }
#pragma unroll
    for (int n = PARTS; n > 1; n = (n + 1) / 2) {
        int half = (n + 1) / 2;
        if (part >= half && part < n)
#pragma unroll
            for (int b = 0; b < BP; b++) put(&m.sums[part - half][b][j], sum[b]);
        __syncthreads();
        if (part + half < n)
#pragma unroll
            for (int b = 0; b < BP; b++) {
                Whole more = *(const Whole *)&m.sums[part][b][j];
#pragma unroll
                for (int c = 0; c < STRIP; c++) sum[b][c] += more.v[c];
            }
        __syncthreads();
    }
    if (part == 0)
#pragma unroll
        for (int b = 0; b < BP; b++) put(&m.sums[0][b][j], sum[b]);
    __syncthreads();
}

/* W_x += c Xᵀ (now − first), or c Xᵀ now if first is NULL, in the rows of active pixels. */
template <class M>
__device__ __forceinline__ void move_input_weights(
    real *wx, M &m, const real (*now)[SLICE], const real (*first)[SLICE], int first_column, real c) {
    int part = threadIdx.x / STRIPS, j = threadIdx.x % STRIPS * STRIP;
    bool works = part < PARTS && first_column + j < H, whole = first_column + j + 1 < H;
    if (!works || c == 0) return;
    real moved[BP][STRIP];
#pragma unroll
    for (int b = 0; b < BP; b++) {
        Whole last = *(const Whole *)&now[b][j], before = first ? *(const Whole *)&first[b][j] : Whole{};
#pragma unroll
        for (int i = 0; i < STRIP; i++) moved[b][i] = c * (last.v[i] - before.v[i]);
    }
    real *w = wx + first_column + j;
    for (int k = part; k < m.actives; k += AHEAD * PARTS) {
        Stripe row[AHEAD];
        int pixel[AHEAD];
        load_rows(m, w, whole, k, row, pixel);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (pixel[a] < 0) break;
#pragma unroll
            for (int b = 0; b < BP; b += 4) {
                Quad x = *(const Quad *)&m.x[pixel[a]][b];
#pragma unroll
                for (int r = 0; r < 4; r++)
#pragma unroll
                    for (int i = 0; i < STRIP; i++) row[a].v[i] += x.v[r] * moved[b + r][i];
            }
            store(w + (i64)pixel[a] * H, whole, row[a]);
        }
    }
}
