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

   A thread computes ROWS × COLUMNS of the hidden states. */

#define GROUPS (SLICE / (32 * COLUMNS)) /* warps side by side */

struct ALIGNED(COLUMNS) Columns { real v[COLUMNS]; };

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

/* A thread's share of the hidden states. */
struct Hidden {
    Shared &m;
    const int row, column, first_column;
    real drive[ROWS][COLUMNS], wb[COLUMNS][O];

    __device__ __forceinline__ Hidden(Shared &m, int rank)
        : m(m), row(threadIdx.x / 32 / GROUPS * ROWS),
          column((threadIdx.x / 32 % GROUPS * 32 + threadIdx.x % 32) * COLUMNS), first_column(rank * SLICE) {}
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
    read_output_weights(p, m, e, H, first_column);
    for (int j = t; j < SLICE && j < columns; j += THREADS)
        m.bx[j] = p.bx ? p.bx[(i64)e * H + first_column + j] : (real)0;
    if (t < 2) prepare(&m.ready[t]);
    __syncthreads();
    meet(); /* nobody writes to a neighbour that has not cleared its memory */
    if (p.images) fetch_bytes(p, m, e, 0);

    Hidden hidden(m, rank);
    Outputs<Shared> outputs(m, rank);
    int exchange = 0, phase = 0;
    for (int at = 0; at < p.minibatches; at++) {
        STAMP(15)
        read_minibatch(p, m, e, at, first_sample);
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
                hidden.drive[r][c] = m.sums[0][hidden.safe_row(r)][hidden.column + c] + m.bx[hidden.column + c];
        hidden.read_weights();
        outputs.read_weights();
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
                hidden.next_hidden(now, held, watched);
                held ^= 1;
                __syncthreads();
                continue;
            }
            outputs.send_sums(m.h[held], exchange);
#else
            const bool watched = step == p.free_steps - 1;
            outputs.send_sums(m.h[held], exchange);
            STAMP(4)
            hidden.next_hidden(now, held, watched);
            held ^= 1;
#endif
            STAMP(5)
            if (t < B * O) receive(&m.ready[exchange], phase >> exchange & 1);
            for (int k = t; k < B * O; k += THREADS) {
                int b = k / O, o = k % O;
                real v = activate(m.bias[o] + outputs.sum(exchange, b, o));
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
            record_outputs(p, m, e, now, first_sample, rank);
        }
        count_answers(p, m, now, rank);
        if (!p.nudged_steps) continue;

        /* ---- the nudged phase ---- */
        for (int k = t; k < BH * SLICE; k += THREADS) (&m.first_h[0][0])[k] = (&m.h[held][0][0])[k];
        if (t < O) m.sum_o[t] = sum_of_output(m, now, t);
#if CONTINUAL
        hidden.correct_drive(held, -1, false);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                if (hidden.row + r < BP) m.drive[hidden.row + r][hidden.column + c] = hidden.drive[r][c];
#endif
        Mover<Shared> mover(m);
        mover.begin(m.h[held], now);
        __syncthreads();
        STAMP(8)
        for (int step = 0; step < p.nudged_steps; step++) {
            outputs.send_sums(m.h[held], exchange);
            STAMP(9)
#if CONTINUAL
            hidden.correct_drive(held, 1, true);
#endif
            STAMP(10)
            hidden.next_hidden(now, held, false);
            STAMP(11)
            if (t < B * O) receive(&m.ready[exchange], phase >> exchange & 1);
            for (int k = t; k < B * O; k += THREADS) {
                int b = k / O, o = k % O;
                real v = activate(m.bias[o] + outputs.sum(exchange, b, o));
                v += beta * (m.y[b][o] - m.o[now][b][o]);
                m.o[now ^ 1][b][o] = v;
                m.changed[b][o] = v - m.o[now][b][o];
            }
            __syncthreads();
            STAMP(12)
#if VECTOR_FIELD
            mover.follow(m.h[held], m.h[held ^ 1], now);
#else
            if (CONTINUAL || step == p.nudged_steps - 1) mover.correlate(m.h[held ^ 1], now ^ 1);
#endif
            now ^= 1;
            held ^= 1;
            phase ^= 1 << exchange;
            exchange ^= 1;
#if CONTINUAL
            mover.write(c_wf, c_wb, inside, columns);
            if (t >= THREADS - 32 && t - (THREADS - 32) < O) { /* a warp that moves no weights */
                int o = t - (THREADS - 32);
                m.bias[o] = m.bo[o] + inside * c_bo * (sum_of_output(m, now, o) - m.sum_o[o]);
            }
            __syncthreads();
            hidden.read_weights();
            outputs.read_weights();
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
        if (t < O) m.bo[t] += c_bo * (sum_of_output(m, now, t) - m.sum_o[t]);
        move_input_weights(wx, m, m.h[held], m.first_h, first_column, c_wx);
        __syncthreads();
        STAMP(14)
    }

#ifdef PROFILE
    if (p.clocks && blockIdx.x == 0 && t < 16) p.clocks[t] = m.clocks[t];
#endif
    if (p.nudged_steps) {
        write_output_weights(p, m, e, H, first_column);
        for (int j = t; p.bx && j < SLICE && j < columns; j += THREADS)
            p.bx[(i64)e * H + first_column + j] = m.bx[j];
    }
    report_counts(p, m, e, rank);
    meet(); /* nobody leaves while a neighbour may still write to it */
}

extern "C" __device__ const int shared_bytes = sizeof(Shared);
