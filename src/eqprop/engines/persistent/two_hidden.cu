/* Many minibatches of networks with two hidden layers, each network held on the chip.

   A network lives in a cluster of GRID × GRID multiprocessors, and so do the weights between its
   hidden layers, in blocks: the one at (down, across) holds those from segment `down` of the first
   layer to segment `across` of the second. A step is
     1. a block times its segments of h1 and h2: partial sums for the other layer,
     2. sent to the multiprocessor that owns a slice of that segment, which adds them up, applies σ,
     3. and sends the new states to all whose blocks need them.
   Input weights and output weights are those of the slices that a multiprocessor owns, as with
   one hidden layer (input.cuh, output.cuh).

   The blocks are held in registers, each number as the sum of two float16 (22 bits), as the units
   for matrix products want them: a b ≈ a₁b₁ + a₁b₂ + a₂b₁ with float32 sums. The weights
   themselves stay in global memory in float32. With DOUBLE, for tests, plain loops do the same. */

#define SEGMENT (SLICE * GRID)
#define TILES (SEGMENT / 16) /* of rows, as many as warps for each direction; and steps of the sum */
#define BN ((B + 7) / 8 * 8) /* rows of the minibatch in eights */
#define PITCH (SEGMENT + 8)
#define WEIGHT_SCALE 16.0f /* keeps the second float16 of a small weight away from zero */

enum { FIRST = 2 }; /* of three buffers of states: the steady state; 0 and 1 are now and next */

/* The states of a segment of a layer. */
struct Segment {
#ifdef DOUBLE
    real v[BN][PITCH];
#else
    unsigned short high[BN][PITCH], low[BN][PITCH];
#endif
};

struct Shared {
    __align__(16) real x[NX][BP]; /* transposed */
    real sums[HALF][BP][SLICE];   /* of the drive, by parts of the pixels */
    __align__(16) Segment s1[3], s2[3];
    __align__(16) unsigned short zero[PITCH];
    real h1[3][BH][SLICE], h2[3][BH][SLICE]; /* the slices owned */
    real arrived[2][GRID][BP][SLICE];        /* partial sums for them, by layer and source */
    real drive[BP][SLICE];                   /* in the nudged phase, with −(c G + c_b) h1_0 in it */
    real wf[OP][SLICE], wb[OP][SLICE];
    real wf0[OP][SLICE];   /* before the phase */
    real other[OP][SLICE]; /* C-VF: wb before the phase; C-EP: h2_0ᵀ o_0 */
    __align__(16) real o[2][BH][OP], changed[BH][OP]; /* o_t and o_{t+1}; their difference */
    __align__(16) real spread[BP][BP];                /* inside · (c G + c_b) */
    real partial[2][CLUSTER][SETS * SET];
    real y[BP][OP];
    real bx[SLICE], bm[SLICE], bo[OP], bias_m[SLICE], bias[OP]; /* bias: as it is at this step */
    real sum_m[SLICE], sum_o[OP]; /* over the minibatch, at the steady state */
    real pixel[256];
    u64 ready[2], sums_ready[2], states_ready[2]; /* of outputs by exchange; by layer */
    bits residual[BP];
    u32 lit[(NX + 31) / 32 + 1];
    short active[NX];
    int actives;
    unsigned char label[BP];
    double wrong[BP], loss[BP];
#ifdef DOUBLE
    real strip[2 * TILES][16][SEGMENT];
#endif
};

/* A matrix in global memory, [rows, columns] by strides, seen from a first row and column on. */
struct View {
    real *at;
    int row_stride, column_stride, rows, columns;
    __device__ __forceinline__ bool has(int i, int j) const { return i < rows && j < columns; }
    __device__ __forceinline__ real &operator()(int i, int j) const {
        return at[(i64)i * row_stride + (i64)j * column_stride];
    }
};

/* Sixteen rows of a block, or of its transpose: rows are neurons of one layer, columns of the other.
   Where a lane holds which number follows mma.m16n8k16: row lane / 4 and 8 below, two neighbouring
   columns from 2 (lane % 4) on. */
struct Strip {
    Shared &m;
    const int warp, lane, row, pair;
#ifndef DOUBLE
    u32 high[TILES][4], low[TILES][4];
#endif

    __device__ __forceinline__ Strip(Shared &m)
        : m(m), warp(threadIdx.x / 32), lane(threadIdx.x % 32), row(lane / 4), pair(lane % 4 * 2) {}

    __device__ __forceinline__ static real read(const View &w, int i, int j) {
        return w.has(i, j) ? w(i, j) : (real)0;
    }

#ifdef DOUBLE
    __device__ __forceinline__ void load(const View &w) {
        for (int i = 0; i < 16; i++)
            for (int j = lane; j < SEGMENT; j += 32) m.strip[warp][i][j] = read(w, i, j);
        __syncwarp();
    }
    /* sums[n][i]: of row `row` (+ 8 for i > 1) and sample 8 n + pair (+ 1 for odd i) */
    __device__ __forceinline__ void multiply(const Segment &s, real (*sums)[4]) const {
        for (int n = 0; n < BN / 8; n++)
            for (int i = 0; i < 4; i++) {
                real sum = 0;
                for (int k = 0; k < SEGMENT; k++)
                    sum += m.strip[warp][row + i / 2 * 8][k] * s.v[8 * n + pair + i % 2][k];
                sums[n][i] = sum;
            }
    }
    /* d[half][i] += sign · Σ over the minibatch of a (rows) times b (columns 16 step + 8 half …) */
    __device__ __forceinline__ void correlate(
        const Segment &a, int first_row, const Segment &b, int step, real sign, real (*d)[4]) const {
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 4; i++)
                for (int n = 0; n < B; n++)
                    d[half][i] += sign * a.v[n][first_row + row + i / 2 * 8] *
                                  b.v[n][16 * step + 8 * half + pair + i % 2];
    }
    __device__ __forceinline__ void add(int step, real (*d)[4], real factor) {
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 4; i++)
                m.strip[warp][row + i / 2 * 8][16 * step + 8 * half + pair + i % 2] += factor * d[half][i];
    }
#else
    __device__ __forceinline__ void set(int step, int r, float first, float second) {
        high[step][r] = halves(first, second);
        low[step][r] = halves(first - first_half(high[step][r]), second - second_half(high[step][r]));
    }
    __device__ __forceinline__ void load(const View &w) {
#pragma unroll
        for (int step = 0; step < TILES; step++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                int i = row + r % 2 * 8, j = 16 * step + r / 2 * 8 + pair;
                set(step, r, WEIGHT_SCALE * read(w, i, j), WEIGHT_SCALE * read(w, i, j + 1));
            }
    }
    __device__ __forceinline__ void multiply(const Segment &s, real (*sums)[4]) const {
#pragma unroll
        for (int n = 0; n < BN / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[n][i] = 0;
#pragma unroll
        for (int step = 0; step < TILES; step++)
#pragma unroll
            for (int n = 0; n < BN / 8; n++) {
                const unsigned short *h = &s.high[8 * n + row][16 * step + pair];
                const unsigned short *l = &s.low[8 * n + row][16 * step + pair];
                u32 b_high[2] = {*(const u32 *)h, *(const u32 *)(h + 8)};
                u32 b_low[2] = {*(const u32 *)l, *(const u32 *)(l + 8)};
                multiply_add(sums[n], high[step], b_high);
                multiply_add(sums[n], high[step], b_low);
                multiply_add(sums[n], low[step], b_high);
            }
#pragma unroll
        for (int n = 0; n < BN / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[n][i] *= 1 / WEIGHT_SCALE;
    }
    /* The row of a matrix of states that this lane speaks for; samples beyond the last are zero. */
    __device__ __forceinline__ const void *place(const unsigned short (*s)[PITCH], int sample, int column) const {
        return sample < BN ? &s[sample][column] : &m.zero[0];
    }
    __device__ __forceinline__ void correlate(
        const Segment &a, int first_row, const Segment &b, int step, real sign, real (*d)[4]) const {
        const int matrix = lane / 8, line = lane % 8;
#pragma unroll
        for (int from = 0; from < BN; from += 16) {
            int sample_a = from + matrix / 2 * 8 + line, column_a = first_row + matrix % 2 * 8;
            int sample_b = from + matrix % 2 * 8 + line, column_b = 16 * step + matrix / 2 * 8;
            u32 a_high[4], a_low[4], b_high[4], b_low[4];
            load_transposed(a_high, place(a.high, sample_a, column_a));
            load_transposed(a_low, place(a.low, sample_a, column_a));
            load_transposed(b_high, place(b.high, sample_b, column_b));
            load_transposed(b_low, place(b.low, sample_b, column_b));
            if (sign < 0)
#pragma unroll
                for (int r = 0; r < 4; r++) { /* the signs of both halves */
                    a_high[r] ^= 0x80008000u;
                    a_low[r] ^= 0x80008000u;
                }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                multiply_add(d[half], a_high, b_high + 2 * half);
                multiply_add(d[half], a_high, b_low + 2 * half);
                multiply_add(d[half], a_low, b_high + 2 * half);
            }
        }
    }
    __device__ __forceinline__ void add(int step, real (*d)[4], real factor) {
        factor *= WEIGHT_SCALE;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const float *change = &d[r / 2][r % 2 * 2];
            u32 h = high[step][r], l = low[step][r];
            set(step, r, first_half(h) + first_half(l) + factor * change[0],
                second_half(h) + second_half(l) + factor * change[1]);
        }
    }
#endif
    /* W += inside · c · (a'ᵀ b' − aᵀ b) here, and `weights` += c · (…) where there are any */
    __device__ __forceinline__ void move(const Segment &a_next, const Segment &b_next, const Segment &a,
        const Segment &b, int first_row, real c, real inside, const View *weights) {
#pragma unroll
        for (int step = 0; step < TILES; step++) {
            real d[2][4] = {};
            correlate(a_next, first_row, b_next, step, 1, d);
            correlate(a, first_row, b, step, -1, d);
            if (inside != 0) add(step, d, inside * c);
            if (weights)
#pragma unroll
                for (int half = 0; half < 2; half++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int r = row + i / 2 * 8, k = 16 * step + 8 * half + pair + i % 2;
                        if (weights->has(r, k)) (*weights)(r, k) += c * d[half][i];
                    }
        }
    }
};

/* Two neighbouring states of a slice, to a multiprocessor that holds its segment. */
__device__ __forceinline__ void send_states(Segment &s, int b, int column, u64 *barrier, int rank, real v0, real v1) {
#ifdef DOUBLE
    send(&s.v[b][column], barrier, rank, v0);
    send(&s.v[b][column + 1], barrier, rank, v1);
#else
    u32 high = halves(v0, v1), low = halves(v0 - first_half(high), v1 - second_half(high));
    send((real *)&s.high[b][column], barrier, rank, __uint_as_float(high));
    send((real *)&s.low[b][column], barrier, rank, __uint_as_float(low));
#endif
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    run(const Problem p) {
    Shared &m = *(Shared *)shared_memory();
    const int t = threadIdx.x, warp = t / 32, rank = rank_in_cluster(), cluster = blockIdx.x / CLUSTER;
    const int down = rank / GRID, across = rank % GRID;
    const int e = cluster % p.members;
    const int first_sample = cluster / p.members * B; /* other than 0 only where nothing is learned */
    const int first1 = down * SEGMENT + across * SLICE, columns1 = H - first1;
    const int first2 = across * SEGMENT + down * SLICE, columns2 = H2 - first2;
    const real inside = (real)p.inside;
    real *const wx = p.wx + (i64)e * NX * H;

    for (int k = t; k < (int)(sizeof(Shared) / sizeof(real)); k += THREADS) ((real *)&m)[k] = 0;
    __syncthreads();
    if (p.images)
        for (int k = t; k < 256; k += THREADS) m.pixel[k] = p.pixel[k];
    read_output_weights(p, m, e, H2, first2);
    for (int j = t; j < SLICE; j += THREADS) {
        if (p.bx && j < columns1) m.bx[j] = p.bx[(i64)e * H + first1 + j];
        if (p.bm && j < columns2) m.bm[j] = p.bm[(i64)e * H2 + first2 + j];
    }
    if (t < 2) {
        prepare(&m.ready[t]);
        prepare(&m.sums_ready[t]);
        prepare(&m.states_ready[t]);
    }
    __syncthreads();
    meet(); /* nobody writes to a neighbour that has not cleared its memory */
    if (p.images) fetch_bytes(p, m, e, 0);

    /* The first half of the warps takes the block forwards, the other backwards. */
    const bool forward = warp < TILES;
    const int first_row = (forward ? warp : warp - TILES) * 16; /* of the segment that it drives */
    Strip strip(m);
    View weights;
    if (forward || TIED) {
        int rows = down * SEGMENT, columns = across * SEGMENT; /* of [H, H2] */
        real *at = p.wm + (i64)e * H * H2 + (i64)rows * H2 + columns;
        weights = forward ? View{at + first_row, 1, H2, H2 - columns - first_row, H - rows}
                          : View{at + (i64)first_row * H2, H2, 1, H - rows - first_row, H2 - columns};
    } else {
        int rows = across * SEGMENT, columns = down * SEGMENT; /* of [H2, H] */
        real *at = p.wn + (i64)e * H * H2 + (i64)rows * H + columns;
        weights = View{at + first_row, 1, H, H - columns - first_row, H2 - rows};
    }
    Outputs<Shared> outputs(m, rank);

    int exchange = 0, phase = 0, sums_phase = 0, states_phase = 0;
    int now1 = 0, now2 = 0, now = 0; /* which buffers hold h1_t, h2_t, o_t */
    for (int at = 0; at < p.minibatches; at++) {
        read_minibatch(p, m, e, at, first_sample);
        if (p.images && at + 1 < p.minibatches) fetch_bytes(p, m, e, at + 1);
        const real beta = p.nudged_steps ? p.beta[(i64)at * p.members + e] : (real)1;
        const real c_wx = p.rate_wx[e] / beta, c_bx = p.rate_bx[e] / beta, c_bm = p.rate_bm[e] / beta;
        const real c_m = (forward ? p.rate_wm[e] : p.rate_wn[e]) / beta;
        const real c_wf = p.rate_wf[e] / beta, c_wb = p.rate_wb[e] / beta, c_bo = p.rate_bo[e] / beta;
#if CONTINUAL
        if (p.nudged_steps) spread(m, inside * c_wx, inside * c_bx);
#endif
        strip.load(weights);
        input_drive(wx, m, first1);
        for (int k = t; k < BP * SLICE; k += THREADS)
            m.drive[k / SLICE][k % SLICE] = m.sums[0][k / SLICE][k % SLICE] + m.bx[k % SLICE];
        outputs.read_weights();
        now1 = now2 = now = 0;
        for (int k = t; k < BH * SLICE; k += THREADS) (&m.h1[0][0][0])[k] = (&m.h2[0][0][0])[k] = 0;
        for (int k = t; k < (int)(sizeof(Segment) / 4); k += THREADS) ((u32 *)&m.s1[0])[k] = ((u32 *)&m.s2[0])[k] = 0;
        for (int k = t; k < BH * OP; k += THREADS) (&m.o[0][0][0])[k] = 0;
        if (t < BP) m.residual[t] = 0;
        if (t < O) m.bias[t] = m.bo[t];
        for (int j = t; j < SLICE; j += THREADS) m.bias_m[j] = m.bm[j];
        __syncthreads();

        Mover<Shared> mover(m);
        const int steps = p.free_steps + p.nudged_steps;
        for (int step = 0; step < steps; step++) {
            const bool nudged = step >= p.free_steps;
            const bool both = !IN_TURN || nudged;
            const bool moves1 = both || step % 2 == 0, moves2 = both || step % 2 == 1;
            const bool watched = !nudged && step >= p.free_steps - (both ? 1 : 2);

            if (step == p.free_steps) { /* ---- the nudged phase begins ---- */
                for (int k = t; k < BH * SLICE; k += THREADS) {
                    (&m.h1[FIRST][0][0])[k] = (&m.h1[now1][0][0])[k];
                    (&m.h2[FIRST][0][0])[k] = (&m.h2[now2][0][0])[k];
                }
                for (int k = t; k < (int)(sizeof(Segment) / 4); k += THREADS) {
                    ((u32 *)&m.s1[FIRST])[k] = ((u32 *)&m.s1[now1])[k];
                    ((u32 *)&m.s2[FIRST])[k] = ((u32 *)&m.s2[now2])[k];
                }
                for (int j = t; j < SLICE; j += THREADS) {
                    real sum = 0;
                    for (int b = 0; b < B; b++) sum += m.h2[now2][b][j];
                    m.sum_m[j] = sum;
                }
                if (t < O) m.sum_o[t] = sum_of_output(m, now, t);
#if CONTINUAL
                for (int k = t; k < B * SLICE; k += THREADS) {
                    int b = k / SLICE, j = k % SLICE;
                    real sum = 0;
                    for (int i = 0; i < B; i++) sum += m.spread[i][b] * m.h1[now1][i][j];
                    m.drive[b][j] -= sum;
                }
#endif
                mover.begin(m.h2[now2], now);
                __syncthreads();
            }

            /* ---- 1. products, to the owners of the slices ---- */
            if (t == 0) {
                for (int layer = 0; layer < 2; layer++)
                    if (layer == 0 ? moves1 : moves2) {
                        expect(&m.sums_ready[layer], GRID * B * SLICE);
                        expect(&m.states_ready[layer], GRID * B * SLICE);
                    }
            }
            if (moves1) outputs.send_sums(m.h2[now2], exchange); /* the output moves with layer 1 */
            if (forward ? moves2 : moves1) {
                real sums[BN / 8][4];
                strip.multiply(forward ? m.s1[now1] : m.s2[now2], sums);
                const int owner = first_row / SLICE, to = forward ? owner * GRID + across : down * GRID + owner;
                real(*place)[SLICE] = m.arrived[forward ? 1 : 0][forward ? down : across];
                u64 *barrier = &m.sums_ready[forward ? 1 : 0];
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int b = 8 * n + strip.pair + i % 2, j = first_row % SLICE + strip.row + i / 2 * 8;
                        if (b < B) send(&place[b][j], barrier, to, sums[n][i]);
                    }
            }

            /* ---- 2. new states of the slices, 3. to all that need them ---- */
            for (int layer = 0; layer < 2; layer++) {
                if (!(layer == 0 ? moves1 : moves2)) continue;
                receive(&m.sums_ready[layer], sums_phase >> layer & 1);
                for (int k = t; k < B * (SLICE / 2); k += THREADS) {
                    int b = k / (SLICE / 2), j = k % (SLICE / 2) * 2;
                    real v[2];
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        v[i] = layer == 0 ? m.drive[b][j + i] : m.bias_m[j + i];
#pragma unroll
                        for (int source = 0; source < GRID; source++) v[i] += m.arrived[layer][source][b][j + i];
                    }
                    if (layer == 1) {
#pragma unroll
                        for (int o = 0; o < O; o++)
#pragma unroll
                            for (int i = 0; i < 2; i++)
                                v[i] += m.o[now][b][o] * (TIED ? m.wf[o][j + i] : m.wb[o][j + i]);
                    }
#if CONTINUAL
                    else if (nudged) {
#pragma unroll 4
                        for (int n = 0; n < B; n++)
#pragma unroll
                            for (int i = 0; i < 2; i++) v[i] += m.spread[n][b] * m.h1[now1][n][j + i];
                    }
#endif
                    const int columns = layer == 0 ? columns1 : columns2, here = layer == 0 ? now1 : now2;
                    real(*h)[BH][SLICE] = layer == 0 ? m.h1 : m.h2;
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        v[i] = j + i < columns ? activate(v[i]) : (real)0;
                        if (watched) atomicMax(&m.residual[b], BITS(fabs(v[i] - h[here][b][j + i])));
                        h[here ^ 1][b][j + i] = v[i];
                    }
                    Segment &s = layer == 0 ? m.s1[here ^ 1] : m.s2[here ^ 1];
#pragma unroll
                    for (int k = 0; k < GRID; k++) {
                        int to = layer == 0 ? down * GRID + k : k * GRID + across;
                        int column = (layer == 0 ? across : down) * SLICE + j;
                        send_states(s, b, column, &m.states_ready[layer], to, v[0], v[1]);
                    }
                }
                sums_phase ^= 1 << layer;
            }
            if (moves1) {
                if (t < B * O) receive(&m.ready[exchange], phase >> exchange & 1);
                for (int k = t; k < B * O; k += THREADS) {
                    int b = k / O, o = k % O;
                    real before = m.o[now][b][o], v = activate(m.bias[o] + outputs.sum(exchange, b, o));
                    if (nudged) v += beta * (m.y[b][o] - before);
                    if (watched) atomicMax(&m.residual[b], BITS(fabs(v - before)));
                    m.o[now ^ 1][b][o] = v;
                    m.changed[b][o] = v - before;
                }
                phase ^= 1 << exchange;
                exchange ^= 1;
            }
            for (int layer = 0; layer < 2; layer++)
                if (layer == 0 ? moves1 : moves2) {
                    receive(&m.states_ready[layer], states_phase >> layer & 1);
                    states_phase ^= 1 << layer;
                }
            __syncthreads();

            /* ---- the weights move ---- */
            if (nudged) {
                const bool last = step == steps - 1;
#if VECTOR_FIELD
                const Segment &a_next = forward ? m.s2[now2 ^ 1] : m.s1[now1 ^ 1];
                const Segment &a = forward ? m.s2[now2] : m.s1[now1], &b = forward ? m.s1[now1] : m.s2[now2];
                strip.move(a_next, b, a, b, first_row, c_m, CONTINUAL ? inside : (real)0, &weights);
                mover.follow(m.h2[now2], m.h2[now2 ^ 1], now);
#else
                if (CONTINUAL && !last) {
                    if (forward)
                        strip.move(m.s2[now2 ^ 1], m.s1[now1 ^ 1], m.s2[now2], m.s1[now1], first_row, c_m, inside, 0);
                    else
                        strip.move(m.s1[now1 ^ 1], m.s2[now2 ^ 1], m.s1[now1], m.s2[now2], first_row, c_m, inside, 0);
                }
                if (CONTINUAL || last) mover.correlate(m.h2[now2 ^ 1], now ^ 1);
#endif
#if CONTINUAL
                mover.write(c_wf, c_wb, inside, columns2);
                if (t >= THREADS - 32 && t - (THREADS - 32) < O) {
                    int o = t - (THREADS - 32);
                    m.bias[o] = m.bo[o] + inside * c_bo * (sum_of_output(m, now ^ 1, o) - m.sum_o[o]);
                }
                for (int j = t; j < SLICE; j += THREADS) {
                    real sum = -m.sum_m[j];
                    for (int b = 0; b < B; b++) sum += m.h2[now2 ^ 1][b][j];
                    m.bias_m[j] = m.bm[j] + inside * c_bm * sum;
                }
                __syncthreads();
                outputs.read_weights();
#endif
            }
            if (moves1) now1 ^= 1, now ^= 1;
            if (moves2) now2 ^= 1;

            if (step == p.free_steps - 1) { /* ---- what the free phase came to ---- */
                if (at == p.minibatches - 1) {
                    for (int k = t; k < B * SLICE; k += THREADS) {
                        int b = k / SLICE, j = k % SLICE;
                        i64 sample = (i64)e * p.samples + first_sample + b;
                        if (first_sample + b >= p.samples) continue;
                        if (j < columns1) p.h[sample * H + first1 + j] = m.h1[now1][b][j];
                        if (j < columns2) p.h2[sample * H2 + first2 + j] = m.h2[now2][b][j];
                    }
                    record_outputs(p, m, e, now, first_sample, rank);
                }
                count_answers(p, m, now, rank);
            }
        }
        if (!p.nudged_steps) continue;

        /* ---- the update ---- */
        __syncthreads();
#if !VECTOR_FIELD
        if (forward) strip.move(m.s2[now2], m.s1[now1], m.s2[FIRST], m.s1[FIRST], first_row, c_m, 0, &weights);
#endif
        mover.write(c_wf, c_wb, 1, columns2);
        for (int j = t; j < SLICE; j += THREADS) {
            real sum1 = 0, sum2 = -m.sum_m[j];
            for (int b = 0; b < B; b++) {
                sum1 += m.h1[now1][b][j] - m.h1[FIRST][b][j];
                sum2 += m.h2[now2][b][j];
            }
            m.bx[j] += c_bx * sum1;
            m.bm[j] += c_bm * sum2;
        }
        if (t < O) m.bo[t] += c_bo * (sum_of_output(m, now, t) - m.sum_o[t]);
        move_input_weights(wx, m, m.h1[now1], m.h1[FIRST], first1, c_wx);
        __syncthreads();
    }

    if (p.nudged_steps) {
        write_output_weights(p, m, e, H2, first2);
        for (int j = t; j < SLICE; j += THREADS) {
            if (p.bx && j < columns1) p.bx[(i64)e * H + first1 + j] = m.bx[j];
            if (p.bm && j < columns2) p.bm[(i64)e * H2 + first2 + j] = m.bm[j];
        }
    }
    report_counts(p, m, e, rank);
    meet(); /* nobody leaves while a neighbour may still write to it */
}

extern "C" __device__ const int shared_bytes = sizeof(Shared);
