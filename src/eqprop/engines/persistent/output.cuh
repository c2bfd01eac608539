/* The weights between the last hidden layer and the output: reading, writing and moving them; and the
   outputs of the network. */

/* Moving these weights: WIDTH columns and four outputs per thread. */
#define WIDTH (SLICE * (OP / 4) <= THREADS ? 1 : SLICE / 2 * (OP / 4) <= THREADS ? 2 : 4)
#define MOVERS (SLICE / WIDTH * (OP / 4))
#define TURNS ((MOVERS + THREADS - 1) / THREADS)

enum { SIGMOID, TANH, HARD_SIGMOID, IDENTITY };
#define OWN 1 /* values of SLOPE, the update slope of vector-field rules; 0 for none */
#define FULL 2
__device__ __forceinline__ real activate(real v) {
    switch (ACTIVATION) {
#ifdef DOUBLE
        case SIGMOID: return 1 / (1 + exp(2 - 4 * v));
        case TANH: return tanh(v);
#else
        case SIGMOID: return reciprocal(1 + power_of_two(fmaf(v, -5.77078016f, 2.88539008f)));
        case TANH: return tanhf(v);
#endif
        case HARD_SIGMOID: return v < 0 ? (real)0 : (v > 1 ? (real)1 : v); /* keeps NaN */
        default: return v;
    }
}

#if SLOPE
/* σ'(v), given a = σ(v) */
__device__ __forceinline__ real slope(real v, real a) {
    switch (ACTIVATION) {
        case SIGMOID: return 4 * a * (1 - a);
        case TANH: return 1 - a * a;
        case HARD_SIGMOID: return v >= 0 && v <= 1;
        default: return 1;
    }
}
/* The factors σ' in the updates of the synapses before and after a neuron. `before` and `behind` are
   their drives on it. OWN: each at its own drive. Otherwise both at the whole drive, whose σ is a. */
struct Slopes { real before, behind; };
__device__ __forceinline__ Slopes slopes(real before, real behind, real a) {
#if SLOPE == OWN
    return {slope(before, activate(before)), slope(behind, activate(behind))};
#else
    const real both = slope(before + behind, a);
    return {both, both};
#endif
}
#endif

/* Read the weights of a slice of the last hidden layer, which has `width` neurons, from `first` on; and
   the bias. */
template <class M>
__device__ __forceinline__ void read_output_weights(const Problem &p, M &m, int e, int width, int first) {
    for (int k = threadIdx.x; k < O * SLICE; k += THREADS) {
        int o = k / SLICE, j = k % SLICE;
        if (first + j >= width) continue;
        m.wf[o][j] = p.wf[((i64)e * width + first + j) * O + o];
#if !TIED
        m.wb[o][j] = p.wb[((i64)e * O + o) * width + first + j];
#endif
    }
    if (threadIdx.x < O && p.bo) m.bo[threadIdx.x] = p.bo[(i64)e * O + threadIdx.x];
}
template <class M>
__device__ __forceinline__ void write_output_weights(const Problem &p, const M &m, int e, int width, int first) {
    for (int k = threadIdx.x; k < O * SLICE; k += THREADS) {
        int o = k / SLICE, j = k % SLICE;
        if (first + j >= width) continue;
        p.wf[((i64)e * width + first + j) * O + o] = m.wf[o][j];
#if !TIED
        p.wb[((i64)e * O + o) * width + first + j] = m.wb[o][j];
#endif
    }
    if (threadIdx.x < O && p.bo && first == 0) p.bo[(i64)e * O + threadIdx.x] = m.bo[threadIdx.x];
}

/* Write the outputs of the free phase, and the residual: each multiprocessor has that of its slice. */
template <class M>
__device__ __forceinline__ void record_outputs(const Problem &p, const M &m, int e, int now, int first_sample, int rank) {
    for (int k = threadIdx.x; rank == 0 && k < B * O; k += THREADS) {
        int b = first_sample + k / O;
        if (b < p.samples) p.o[((i64)e * p.samples + b) * O + k % O] = m.o[now][k / O][k % O];
    }
    int b = threadIdx.x;
    if (b < B && first_sample + b < p.samples)
        atomicMax((bits *)p.residual + (i64)e * p.samples + first_sample + b, m.residual[b]);
}
template <class M> __device__ __forceinline__ void count_answers(const Problem &p, M &m, int now, int rank) {
    int b = threadIdx.x, best = 0, label = 0;
    if (!p.wrong || rank != 0 || b >= B) return;
    real loss = 0;
    for (int o = 0; o < O; o++) {
        real d = m.o[now][b][o] - m.y[b][o];
        loss += d * d;
        if (m.o[now][b][o] > m.o[now][b][best]) best = o;
        if (m.y[b][o] > m.y[b][label]) label = o;
    }
    m.wrong[b] += best != label;
    m.loss[b] += 0.5 * loss;
}
template <class M> __device__ __forceinline__ void report_counts(const Problem &p, const M &m, int e, int rank) {
    if (!p.wrong || rank != 0 || threadIdx.x != 0) return;
    for (int b = 0; b < B; b++) {
        p.wrong[e] += m.wrong[b];
        p.loss[e] += m.loss[b];
    }
}
/* Σ over the minibatch of output o */
template <class M> __device__ __forceinline__ real sum_of_output(const M &m, int now, int o) {
    real sum = 0;
    for (int b = 0; b < B; b++) sum += m.o[now][b][o];
    return sum;
}

/* The change of output o, summed over the minibatch and the steps so far. With SLOPE, m.sum_o
   accumulates it; otherwise m.sum_o is the sum of the outputs at the steady state. */
template <class M> __device__ __forceinline__ real moved_output(M &m, int now, int o) {
#if SLOPE
    real sum = m.sum_o[o];
    for (int b = 0; b < B; b++) sum += m.changed[b][o];
    return m.sum_o[o] = sum;
#else
    return sum_of_output(m, now, o) - m.sum_o[o];
#endif
}

/* The total updates of the weights of WIDTH columns and four outputs, without the factor c. */
struct ALIGNED(WIDTH) Span { real v[WIDTH]; };
template <class M> struct Mover {
    M &m;
    real f[TURNS][4][WIDTH], b[TURNS][4][WIDTH];

    __device__ __forceinline__ Mover(M &m) : m(m), f{}, b{} {}
    __device__ __forceinline__ int at(int turn) const { return threadIdx.x + turn * THREADS; }
    __device__ __forceinline__ int column(int turn) const { return at(turn) % (SLICE / WIDTH) * WIDTH; }
    __device__ __forceinline__ int output(int turn) const { return at(turn) / (SLICE / WIDTH) * 4; }
    static __device__ __forceinline__ Span &span(real *place) { return *(Span *)place; }
    static __device__ __forceinline__ Span span(const real *place) { return *(const Span *)place; }

#define EACH_TURN _Pragma("unroll") for (int turn = 0; turn < TURNS; turn++) if (at(turn) < MOVERS)
#define EACH_WEIGHT                                   \
    _Pragma("unroll") for (int k = 0; k < 4; k++)     \
        _Pragma("unroll") for (int w = 0; w < WIDTH; w++)
    static constexpr int at_a_time = WIDTH == 1 ? 10 : 4; /* samples */

    /* If registers are scarce, the totals are kept in shared memory. */
    __device__ __forceinline__ void keep() const {
        EACH_TURN EACH_WEIGHT {
            m.moved[0][output(turn) + k][column(turn) + w] = f[turn][k][w];
            if (VECTOR_FIELD) m.moved[1][output(turn) + k][column(turn) + w] = b[turn][k][w];
        }
    }
    __device__ __forceinline__ void take() {
        EACH_TURN EACH_WEIGHT {
            f[turn][k][w] = m.moved[0][output(turn) + k][column(turn) + w];
            if (VECTOR_FIELD) b[turn][k][w] = m.moved[1][output(turn) + k][column(turn) + w];
        }
    }

    /* f = hᵀ o_now */
    __device__ __forceinline__ void correlate(const real (*h)[SLICE], int now) {
        EACH_TURN {
            EACH_WEIGHT f[turn][k][w] = 0;
#pragma unroll at_a_time
            for (int i = 0; i < B; i++) {
                Quad o = *(const Quad *)&m.o[now][i][output(turn)];
                Span h_i = span(&h[i][column(turn)]);
                EACH_WEIGHT f[turn][k][w] += h_i.v[w] * o.v[k];
            }
        }
    }
    /* f += h_tᵀ (o_{t+1} − o_t), b += o_tᵀ (h_{t+1} − h_t). With SLOPE the changes are multiplied by σ',
       and `next` is the change of h. */
    __device__ __forceinline__ void follow(const real (*h)[SLICE], const real (*next)[SLICE], int now) {
        EACH_TURN {
#pragma unroll at_a_time
            for (int i = 0; i < B; i++) {
                Quad o = *(const Quad *)&m.o[now][i][output(turn)];
                Quad d = m.change_of_output(now, i, output(turn));
                Span h_i = span(&h[i][column(turn)]), moved = span(&next[i][column(turn)]);
#if !SLOPE
#pragma unroll
                for (int w = 0; w < WIDTH; w++) moved.v[w] -= h_i.v[w];
#endif
                EACH_WEIGHT {
                    f[turn][k][w] += h_i.v[w] * d.v[k];
                    b[turn][k][w] += moved.v[w] * o.v[k];
                }
            }
        }
    }
    /* call before the phase */
    __device__ __forceinline__ void begin(const real (*h)[SLICE], int now) {
#if !VECTOR_FIELD
        correlate(h, now);
#endif
        EACH_TURN {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int o = output(turn) + k, j = column(turn);
                if (o >= O) continue;
                span(&m.wf0[o][j]) = span(&m.wf[o][j]);
#if VECTOR_FIELD
                span(&m.other[o][j]) = span(&m.wb[o][j]);
#else
#pragma unroll
                for (int w = 0; w < WIDTH; w++) m.other[o][j + w] = f[turn][k][w];
#endif
            }
        }
    }
    /* W = W(0) + inside · c · total for existing neurons, 0 elsewhere */
    __device__ __forceinline__ void write(real c_f, real c_b, real inside, int columns) {
        EACH_TURN {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int o = output(turn) + k, j = column(turn);
                if (o >= O) continue;
                Span wf = span(&m.wf0[o][j]), other = span(&m.other[o][j]);
#pragma unroll
                for (int w = 0; w < WIDTH; w++) {
                    bool there = j + w < columns;
#if VECTOR_FIELD
                    real forward = c_f * f[turn][k][w], backward = c_b * b[turn][k][w];
                    other.v[w] = there ? other.v[w] + inside * backward : (real)0;
                    wf.v[w] = there ? wf.v[w] + inside * (forward + (TIED ? backward : (real)0)) : (real)0;
#else
                    wf.v[w] = there ? wf.v[w] + inside * c_f * (f[turn][k][w] - other.v[w]) : (real)0;
#endif
                }
                span(&m.wf[o][j]) = wf;
#if VECTOR_FIELD
                span(&m.wb[o][j]) = other;
#endif
            }
        }
    }
};
