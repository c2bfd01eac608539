/* Many minibatches of networks with one hidden layer. Each network stays on the chip.

   A network occupies a cluster of CLUSTER multiprocessors. Each has SLICE of the H hidden neurons:
   their state, drive and weights to the output in registers. They exchange partial sums at every
   step, and each computes the whole output layer. Only the input weights stay in global memory. Per
   minibatch they are read once for the drive and moved once, only in the rows of pixels that are
   nonzero in some sample.

   Within the nudged phase (c = η/(β B), s_t = (h_t, o_t)):
       drive of the input   X W_x(t) = X W_x(0) + (c G + c_b) (h_t − h_0),   G = X Xᵀ
       hidden weights       W(t) = W(0) + inside · total(t)
           C-EP, EP         total(t) = c (h_tᵀ o_t − h_0ᵀ o_0)
           C-VF, VF         total(t+1) = total(t) + c h_tᵀ (o_{t+1} − o_t), and the same backward
   with inside = 1 for the continual rules, η_tiny/η if rescaled, 0 for EP and VF. With SLOPE every
   change s_{t+1} − s_t is multiplied by σ', per synapse of its neuron, and the drive of the input is
   drive(t+1) = drive(t) + (c G + c_b) (σ' ⊙ (h_{t+1} − h_t)).

   A thread computes ROWS × COLUMNS of the hidden states; a team of GROUPS warps computes those of
   ROWS samples. Samples are independent in the free phase, so there a team waits only for the teams
   with the same samples on the other multiprocessors. */

#define GROUPS (SLICE / (32 * COLUMNS))
#define TEAMS ((B + ROWS - 1) / ROWS)
#define RH (TEAMS * ROWS > BP ? TEAMS * ROWS : BP) /* rows of h */

/* Partial sums of the outputs over the columns of a warp: SPLIT lanes share the sums of OUTS neurons. */
#define OUTS ((O * SPLIT + 31) / 32)
#define SUMS (ROWS * OUTS)
#define REACH (32 * COLUMNS / SPLIT)
#define STEP (REACH % 4 == 0 ? 4 : REACH % 2 == 0 ? 2 : 1)
#define SOURCES (CLUSTER * GROUPS)
#define PLACES ((ROWS * O + 3) / 4 * 4)
/* In the free phase a team sends the sums of h_{t+1} before it waits for those of h_t. A team that
   sends exchange n + 4 has received exchange n + 2 from all teams, so all have read exchange n. */
#define EXCHANGES 4

struct ALIGNED(COLUMNS) Columns { real v[COLUMNS]; };
struct ALIGNED(STEP) Stretch { real v[STEP]; };

/* Sum `size` values over SPLIT neighbouring lanes; each lane keeps `count` of the sums. */
struct Kept { int first, count; };
template <int size> __device__ __forceinline__ Kept kept_by(u32 lane) {
    Kept k = {0, size};
#pragma unroll
    for (int mask = SPLIT / 2, n = size; mask; mask >>= 1) {
        int half = (n + 1) / 2;
        if (lane & mask) { k.first += half; k.count = k.count > half ? k.count - half : 0; }
        else if (k.count > half) k.count = half;
        n = half;
    }
    return k;
}
template <int size> __device__ __forceinline__ void sum_over_lanes(real *v, u32 lane) {
    int n = size;
#pragma unroll
    for (int mask = SPLIT / 2; mask; mask >>= 1) {
        int half = (n + 1) / 2;
        bool upper = lane & mask;
#pragma unroll
        for (int i = 0; i < (size + 1) / 2; i++)
            if (i < half) {
                real low = v[i], high = half + i < n ? v[half + i] : (real)0;
                real given = upper ? low : high;
                v[i] = (upper ? high : low) + __shfl_xor_sync(~0u, given, mask);
            }
        n = half;
    }
}

/* ---- the shared memory of a multiprocessor ---- */

struct Shared {
    __align__(16) real x[NX][BP];         /* transposed */
    union {
        real sums[HALF][BP][SLICE];       /* of the drive, per part of the pixels */
        struct {
            real h[2][RH][SLICE];         /* h_t and h_{t+1} */
#if SLOPE
            real input_change[RH][SLICE]; /* (h_{t+1} − h_t) σ' for the input weights; at the end, its sum over t */
#else
            real first_h[RH][SLICE];      /* h_0 */
#endif
        };
    };
#if SLOPE
    real output_change[BP][SLICE];        /* the same for the weights from the output */
#else
    real drive[BP][SLICE];                /* in the nudged phase, including −(c G + c_b) h_0 */
#endif
    real wf[OP][SLICE], wb[O][SLICE];
    real wf0[O][SLICE];                   /* before the phase */
    real other[O][SLICE];                 /* C-VF: wb before the phase; C-EP: h_0ᵀ o_0 */
    __align__(16) unsigned char raw[BP][(NX + 15) / 16 * 16]; /* the next minibatch */
    __align__(16) unsigned char label[(BP + 15) / 16 * 16];
    __align__(16) real o[2][RH][OP], changed[RH][OP]; /* o_t and o_{t+1}; their difference */
    __align__(16) real spread[BP][BP];    /* inside · (c G + c_b) */
    __align__(16) real leaving[TEAMS * GROUPS][PLACES];
    __align__(16) real partial[EXCHANGES][TEAMS][SOURCES][PLACES];
    u64 ready[EXCHANGES][TEAMS];
    real y[BP][OP];
    real bx[SLICE], bo[OP], bias[OP];     /* bias: bo at this step */
    real sum_o[OP];                       /* for moved_output */
    real pixel[256];
    bits residual[BP];
    u32 lit[(NX + 31) / 32 + 1];
    short active[NX];
    int actives;
    double wrong[BP], loss[BP];
#ifdef PROFILE
    i64 clocks[16], last;
#endif
    __device__ __forceinline__ Quad change_of_output(int, int b, int first) const {
        return *(const Quad *)&changed[b][first];
    }
};

/* A thread's share of the hidden states. */
struct Hidden {
    Shared &m;
    const int row, column, first_column;
    real drive[ROWS][COLUMNS], wb[COLUMNS][O];
#if SLOPE
    real moved[ROWS][COLUMNS]; /* sum of the changes for the input weights */
#endif

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

    /* h_{t+1} = σ(drive + o_t W_b); if `watched`, its largest change is the residual */
    template <bool NUDGED = false> __device__ __forceinline__ void next_hidden(int now, int held, bool watched = false) {
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
            real from_output[COLUMNS];
            const bool apart = SLOPE && NUDGED;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                real v = apart ? (real)0 : drive[r][c];
#pragma unroll
                for (int o = 0; o < O; o++) v += o_r[o] * wb[c][o];
                h.v[c] = activate(apart ? drive[r][c] + v : v);
                from_output[c] = v;
            }
            if (row + r >= B) continue;
#if SLOPE
            if (NUDGED) {
                Columns before = *(const Columns *)&m.h[held][row + r][column], behind;
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    const real change = h.v[c] - before.v[c];
                    const Slopes k = slopes(drive[r][c], from_output[c], h.v[c]);
                    before.v[c] = k.before * change;
                    behind.v[c] = k.behind * change;
                    moved[r][c] += before.v[c];
                }
                *(Columns *)&m.input_change[row + r][column] = before;
                *(Columns *)&m.output_change[row + r][column] = behind;
            }
#endif
            if (watched)
                for (int c = 0; c < COLUMNS && first_column + column + c < H; c++)
                    atomicMax(&m.residual[row + r], BITS(fabs(h.v[c] - m.h[held][row + r][column + c])));
            *(Columns *)&m.h[held ^ 1][row + r][column] = h;
        }
        __syncwarp();
    }

#if SLOPE
    __device__ __forceinline__ void begin_nudging() {
        for (int k = threadIdx.x; k < RH * SLICE; k += THREADS) (&m.input_change[0][0])[k] = 0; /* all rows */
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) moved[r][c] = 0;
    }
    __device__ __forceinline__ void keep_sum() {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                if (row + r < B) m.input_change[row + r][column + c] = moved[r][c];
    }
#else
    /* drive(t) = drive + spread · h_t; the stored drive includes −spread · h_0 */
    __device__ __forceinline__ void read_drive() {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) drive[r][c] = ((const Columns *)&m.drive[safe_row(r)][column])->v[c];
    }
#endif
    __device__ __forceinline__ void add_to_drive(const real (*moved)[SLICE], real sign) {
#pragma unroll
        for (int b = 0; b < BP; b += 4) {
            Quad s[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) s[r] = *(const Quad *)&m.spread[safe_row(r)][b];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                Columns h = *(const Columns *)&moved[b + k][column];
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) drive[r][c] += sign * s[r].v[k] * h.v[c];
            }
        }
    }
};

/* A warp's share of the outputs: sums over its columns for the rows of its team, and all outputs of
   these rows. Exchanges are counted from the launch. */
struct Answers {
    Shared &m;
    const int warp, lane, team, row, column, first_output, source;
    const Kept kept;
    real wf[OUTS][REACH];

    __device__ __forceinline__ Answers(Shared &m, int rank)
        : m(m), warp(threadIdx.x / 32), lane(threadIdx.x % 32), team(warp / GROUPS), row(team * ROWS),
          column(warp % GROUPS * (32 * COLUMNS) + lane % SPLIT * STEP), first_output(lane / SPLIT * OUTS),
          source(rank * GROUPS + warp % GROUPS), kept(kept_by<SUMS>(lane % SPLIT)) {}

    __device__ __forceinline__ void read_weights() {
#pragma unroll
        for (int o = 0; o < OUTS; o++)
#pragma unroll
            for (int q = 0; q < REACH; q += STEP) {
                Stretch w = *(const Stretch *)&m.wf[first_output + o][column + q * SPLIT];
#pragma unroll
                for (int i = 0; i < STEP; i++) wf[o][q + i] = w.v[i];
            }
    }

    /* Send partial sums of h to the same team of every multiprocessor. */
    __device__ __forceinline__ void send_sums(const real (*h)[SLICE], u32 n) {
        u64 *ready = &m.ready[n % EXCHANGES][team];
        real *partial = m.partial[n % EXCHANGES][team][source];
        if (warp % GROUPS == 0 && lane == 0) expect(ready, SOURCES * PLACES);
        real v[SUMS] = {};
#pragma unroll
        for (int q = 0; q < REACH; q += STEP)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                Stretch s = *(const Stretch *)&h[row + r][column + q * SPLIT];
#pragma unroll
                for (int o = 0; o < OUTS; o++)
#pragma unroll
                    for (int i = 0; i < STEP; i++) v[r * OUTS + o] += s.v[i] * wf[o][q + i];
            }
        sum_over_lanes<SUMS>(v, lane % SPLIT);
#pragma unroll
        for (int i = 0; i < (SUMS + SPLIT - 1) / SPLIT; i++) {
            int r = (kept.first + i) / OUTS, o = first_output + (kept.first + i) % OUTS;
            if (i < kept.count && o < O) m.leaving[warp][r * O + o] = v[i];
        }
        __syncwarp();
#pragma unroll
        for (int k = lane; k < PLACES / 4 * CLUSTER; k += 32) {
            int place = k % (PLACES / 4) * 4;
            send_quad((Quad *)&partial[place], ready, k / (PLACES / 4), *(const Quad *)&m.leaving[warp][place]);
        }
    }
    __device__ __forceinline__ void receive_sums(u32 n) const {
        receive(&m.ready[n % EXCHANGES][team], n / EXCHANGES & 1);
    }
    /* The drive on output k of the team. */
    __device__ __forceinline__ real sum(u32 n, int k) const {
        real v[4] = {};
#pragma unroll
        for (int from = 0; from < SOURCES; from++) v[from % 4] += m.partial[n % EXCHANGES][team][from][k];
        return (v[0] + v[1]) + (v[2] + v[3]);
    }
};
#define EACH_OUTPUT(k, b, o)                                                         \
    _Pragma("unroll") for (int k = t % 32; k < ROWS * O; k += 32)                   \
        if (int b = outputs.row + k / O, o = k % O; b < B)

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    run(const Problem p) {
    Shared &m = *(Shared *)shared_memory();
    const int t = threadIdx.x, rank = rank_in_cluster(), cluster = blockIdx.x / CLUSTER;
    const int e = cluster % p.members;
    const int first_sample = cluster / p.members * B; /* nonzero only without learning */
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
    if (t < EXCHANGES * TEAMS) prepare(&m.ready[0][0] + t);
    __syncthreads();
    meet(); /* before others write to this memory, it must be cleared */
    if (p.images) fetch_bytes(p, m, e, 0);

    Hidden hidden(m, rank);
    Answers outputs(m, rank);
    u32 n = 0; /* exchanges so far */
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
        __syncthreads(); /* h takes the place of the sums */
        for (int k = t * 4; k < 2 * RH * SLICE; k += THREADS * 4) *(Quad *)(&m.h[0][0][0] + k) = Quad{};
        for (int k = t; k < 2 * RH * OP; k += THREADS) (&m.o[0][0][0])[k] = 0;
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
                continue;
            }
            outputs.send_sums(m.h[held], n);
#else
            const bool watched = step == p.free_steps - 1;
            if (step == 0) outputs.send_sums(m.h[held], n);
            STAMP(4)
            hidden.next_hidden(now, held, watched);
            held ^= 1;
            STAMP(5)
            if (step + 1 < p.free_steps) outputs.send_sums(m.h[held], n + 1);
#endif
            STAMP(4)
            outputs.receive_sums(n);
            STAMP(6)
            EACH_OUTPUT(k, b, o) {
                real v = activate(m.bias[o] + outputs.sum(n, k));
                if (watched) atomicMax(&m.residual[b], BITS(fabs(v - m.o[now][b][o])));
                m.o[now ^ 1][b][o] = v;
            }
            __syncwarp();
            now ^= 1;
            n++;
            STAMP(7)
        }
        __syncthreads();

        /* ---- results of the free phase ---- */
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
#if SLOPE
        hidden.begin_nudging();
        if (t < O) m.sum_o[t] = 0;
#else
        for (int k = t * 4; k < RH * SLICE; k += THREADS * 4)
            *(Quad *)(&m.first_h[0][0] + k) = *(const Quad *)(&m.h[held][0][0] + k);
        if (t < O) m.sum_o[t] = sum_of_output(m, now, t);
#if CONTINUAL
        hidden.add_to_drive(m.h[held], -1);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                if (hidden.row + r < BP) m.drive[hidden.row + r][hidden.column + c] = hidden.drive[r][c];
#endif
#endif
        Mover<Shared> mover(m);
        mover.begin(m.h[held], now);
        __syncthreads();
        STAMP(8)
        for (int step = 0; step < p.nudged_steps; step++) {
#if CONTINUAL
            outputs.read_weights();
#endif
            outputs.send_sums(m.h[held], n);
            STAMP(9)
#if CONTINUAL
#if !SLOPE
            hidden.read_drive();
            hidden.add_to_drive(m.h[held], 1);
#endif
            hidden.read_weights();
#endif
            STAMP(10)
            hidden.next_hidden<true>(now, held);
            STAMP(11)
            outputs.receive_sums(n);
            EACH_OUTPUT(k, b, o) {
                const real drive = m.bias[o] + outputs.sum(n, k), was = m.o[now][b][o];
                const real a = activate(drive), v = a + beta * (m.y[b][o] - was);
                m.o[now ^ 1][b][o] = v;
#if SLOPE
                m.changed[b][o] = slope(drive, a) * (v - was);
#elif VECTOR_FIELD
                m.changed[b][o] = v - was;
#endif
            }
            n++;
            __syncthreads();
            STAMP(12)
#if SLOPE
            mover.follow(m.h[held], m.output_change, now);
            if (CONTINUAL) hidden.add_to_drive(m.input_change, 1);
#elif VECTOR_FIELD
            mover.follow(m.h[held], m.h[held ^ 1], now);
#else
            if (CONTINUAL || step == p.nudged_steps - 1) mover.correlate(m.h[held ^ 1], now ^ 1);
#endif
            now ^= 1;
            held ^= 1;
#if CONTINUAL
            mover.write(c_wf, c_wb, inside, columns);
#endif
            if ((CONTINUAL || SLOPE) && t >= THREADS - 32 && t - (THREADS - 32) < O) {
                int o = t - (THREADS - 32);
                m.bias[o] = m.bo[o] + inside * c_bo * moved_output(m, now, o);
            }
            __syncthreads();
            STAMP(13)
        }

        /* ---- the update ---- */
        mover.write(c_wf, c_wb, 1, columns);
#if SLOPE
        hidden.keep_sum();
        __syncthreads();
        const real(*last)[SLICE] = m.input_change, (*first)[SLICE] = 0;
#else
        const real(*last)[SLICE] = m.h[held], (*first)[SLICE] = m.first_h;
#endif
        for (int j = t; j < SLICE; j += THREADS) {
            real sum = 0;
            for (int b = 0; b < B; b++) sum += first ? last[b][j] - first[b][j] : last[b][j];
            m.bx[j] += c_bx * sum;
        }
        if (t < O) m.bo[t] += c_bo * (SLOPE ? m.sum_o[t] : moved_output(m, now, t));
        move_input_weights(wx, m, last, first, first_column, c_wx);
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
    meet(); /* stay while others may still write to this memory */
}

extern "C" __device__ const int shared_bytes = sizeof(Shared);
