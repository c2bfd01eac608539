/* Many minibatches of networks with two hidden layers. Each network stays on the chip.

   A network occupies a cluster of GRID × GRID multiprocessors. The weights between its hidden layers
   are split into blocks: multiprocessor (down, across) has the weights from segment `down` of the
   first layer to segment `across` of the second. A step:
     1. Multiply a block with its segments of h1 and h2: partial sums for the other layer.
     2. Send them to the multiprocessor that owns a slice of that segment. It adds them and applies σ.
     3. It sends the new states to all multiprocessors whose blocks need them.
   Half of the warps multiply forwards, the others backwards. They wait only for the messages that
   they need. While the weights do not move, the states form two independent chains (h1 at odd steps
   with h2 at even steps, and the reverse). One chain computes while the messages of the other travel.
   Meanwhile the warps that have nothing to add compute the outputs: they send partial sums to the
   owner of four outputs of a sample, which sends the outputs to all.
   A multiprocessor has the input weights and output weights of the slices that it owns, as with one
   hidden layer (input.cuh, output.cuh).

   Every state has a version, counted over all minibatches. Its messages use a barrier and one of two
   alternating buffers. A buffer is free when its turn comes again: a version needs messages from all
   multiprocessors that have read the version before the last.

   The blocks stay in registers. Each number is the sum of two float16, for the tensor cores:
   a b ≈ a₁b₁ + a₁b₂ + a₂b₁ with float32 sums. That is a precision of 23 bits; less for states below ¼,
   since the absolute error is up to 2⁻²⁵. With DOUBLE, for tests, plain loops do the same. */

#define SEGMENT (SLICE * GRID)
#define TILES (SEGMENT / 16) /* tiles of rows, one per warp of a direction; also steps of the sum */
#define WHOLE (H == SEGMENT * GRID && H2 == SEGMENT * GRID) /* no block is partly empty */
#define BN ((B + 7) / 8 * 8) /* B rounded up to a multiple of 8 */
/* The first eight samples and the others: their messages are independent. */
#define PORTIONS (BN > 8 ? 2 : 1)
#define BEGIN(portion) ((portion) ? 8 : 0)
#define END(portion) ((portion) + 1 == PORTIONS ? B : 8)
/* Per direction: the first warps add sums (if there are enough, two add those of the first portion and
   the others those of the second); the last warps compute outputs. */
#define FINISHERS (TILES < 8 ? TILES : 5)
#define ANSWERERS (TILES < 8 ? TILES : TILES - 5)
#define APART (TILES >= 8 && PORTIONS == 2)
#define ANSWERS (B * (OP / 4)) /* outputs in groups of four */
#define ANSWERS_OWNED ((ANSWERS + CLUSTER - 1) / CLUSTER)
#define WHOLLY (CONTINUAL && !RESCALED) /* the weights make their whole move within the phase */
/* keep the second float16 away from zero */
#define WEIGHT_SCALE 256
#define CHANGE_SCALE 1024

#ifndef DOUBLE
struct __align__(8) Words { u32 v[2]; };
struct __align__(16) Eight { u32 v[4]; };
/* Split four numbers into pairs of float16. */
__device__ __forceinline__ void split(const Quad &q, Words &high, Words &low) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float first = q.v[2 * i], second = q.v[2 * i + 1];
        high.v[i] = halves(first, second);
        low.v[i] = halves(first - first_half(high.v[i]), second - second_half(high.v[i]));
    }
}
/* a = CHANGE_SCALE (a − b), for two numbers per word */
__device__ __forceinline__ void subtract(u32 &high, u32 &low, u32 high_b, u32 low_b) {
    float first = CHANGE_SCALE * ((first_half(high) - first_half(high_b)) + (first_half(low) - first_half(low_b)));
    float second = CHANGE_SCALE * ((second_half(high) - second_half(high_b)) + (second_half(low) - second_half(low_b)));
    high = halves(first, second);
    low = halves(first - first_half(high), second - second_half(high));
}
#endif

/* The states of a segment of a layer, in blocks of 32 neurons. The length of rows is chosen so that
   eight numbers of eight samples, which tensor cores read together, are in different banks. */
struct __align__(16) Segment {
#ifdef DOUBLE
    struct Block { real v[BN][32]; } blocks[SEGMENT / 32];
    __device__ __forceinline__ const real &entry(u32 b, u32 column) const {
        return blocks[column / 32].v[b][column % 32];
    }
    __device__ __forceinline__ Quad quad(u32 b, u32 column) const { return *(const Quad *)&entry(b, column); }
    __device__ __forceinline__ void set(u32 b, u32 column, const Quad &q) {
        *(Quad *)&blocks[column / 32].v[b][column % 32] = q;
    }
    /* CHANGE_SCALE (a − b), computed by half of the threads; this is the k-th */
    __device__ __forceinline__ void difference(const Segment &a, const Segment &b, u32 k) {
        for (; k < SEGMENT * BN; k += THREADS / 2)
            ((real *)blocks)[k] = CHANGE_SCALE * (((const real *)a.blocks)[k] - ((const real *)b.blocks)[k]);
    }
#else
    struct Row { Eight high[4], low[4], between; };
    struct Block { Row v[BN]; } blocks[SEGMENT / 32];
    __device__ __forceinline__ Quad quad(u32 b, u32 column) const {
        const Row &row = blocks[column / 32].v[b];
        const u32 eight = column % 32 / 8, word = column % 8 / 2;
        Words h = *(const Words *)&row.high[eight].v[word], l = *(const Words *)&row.low[eight].v[word];
        return {first_half(h.v[0]) + first_half(l.v[0]), second_half(h.v[0]) + second_half(l.v[0]),
                first_half(h.v[1]) + first_half(l.v[1]), second_half(h.v[1]) + second_half(l.v[1])};
    }
    __device__ __forceinline__ void set(u32 b, u32 column, const Quad &q) {
        Row &row = blocks[column / 32].v[b];
        const u32 eight = column % 32 / 8, word = column % 8 / 2;
        Words h, l;
        split(q, h, l);
        *(Words *)&row.high[eight].v[word] = h;
        *(Words *)&row.low[eight].v[word] = l;
    }
    __device__ __forceinline__ void difference(const Segment &a, const Segment &b, u32 k) {
        for (; k < SEGMENT / 8 * BN; k += THREADS / 2) {
            const Row &of_a = ((const Row *)a.blocks)[k / 4], &of_b = ((const Row *)b.blocks)[k / 4];
            Eight high = of_a.high[k % 4], low = of_a.low[k % 4];
#pragma unroll
            for (int i = 0; i < 4; i++) subtract(high.v[i], low.v[i], of_b.high[k % 4].v[i], of_b.low[k % 4].v[i]);
            ((Row *)blocks)[k / 4].high[k % 4] = high;
            ((Row *)blocks)[k / 4].low[k % 4] = low;
        }
    }
#endif
};
#define ROW_BYTES ((u32)sizeof(Segment::Block) / BN)
#define COLUMN(step) ((step) / 2 * (u32)sizeof(Segment::Block) + (step) % 2 * 32) /* bytes, 16 columns per step */
#define LOW 64 /* bytes from the high halves to the low halves */

/* Partial sums for sixteen neurons, which one warp computes and sends. */
struct __align__(16) Sums {
    real v[BP][16];
    /* keeps groups of four neurons together, and avoids bank conflicts of the lanes that write */
    __device__ __forceinline__ real *at(u32 b, u32 neuron) { return &v[b][neuron ^ (b / 2 % 2 * 8)]; }
};
#define SUMS_ROW (16 * (u32)sizeof(real))

/* Without learning, x is not needed after the first products, so there is room for more samples. */
#if RELAXES
#define TOGETHER union
#else
#define TOGETHER struct
#endif

struct Shared {
    TOGETHER {
        union {
            __align__(16) real x[NX][BP]; /* transposed */
#if SLOPE
            struct { /* changes of a nudged step; after the phase x is read again */
                Segment change[2]; /* h1 for wn, h2 for wm, times σ' and CHANGE_SCALE */
                /* times σ' for the synapses before and after: of the slices owned; of the outputs */
                real before1[BP][SLICE], before2[BP][SLICE], behind2[BP][SLICE], changed[BP][OP];
            };
#endif
        };
        struct {
            Segment s1[2], s2[2];
            Sums arrived[2][2][GRID][SLICE / 16]; /* partial sums for the slices owned, by step, layer, source */
        };
        struct { /* at the steady state: the slices owned; weights; C-VF: wb, C-EP: h2_0ᵀ o_0 */
#if SLOPE
            real moved1[BP][SLICE]; /* instead of the states: the sum of before1 */
#else
            real steady1[BP][SLICE], steady2[BP][SLICE];
#endif
            real wf0[OP][SLICE], other[OP][SLICE];
            real moved[1 + VECTOR_FIELD][OP][SLICE];    /* the totals of a Mover */
            __align__(16) real spread[BP][BP];          /* inside · (c G + c_b) */
        };
    };
    union {
        real sums[HALF][BP][SLICE]; /* of the drive, per part of the pixels */
        Sums outgoing[2][2][GRID > 1 ? GRID - 1 : 1][SLICE / 16]; /* by step, layer, owner */
#if !SLOPE
        Segment change[2];          /* EP: of h1 and h2 in a nudged step, times CHANGE_SCALE */
#endif
    };
    real h1[2][BP][SLICE], h2[2][BP][SLICE];    /* the slices owned */
    Quad answers[2][ANSWERS_OWNED][CLUSTER];    /* partial sums for the outputs owned */
    real drive[BP][SLICE];                      /* in the nudged phase, including −(c G + c_b) h1_0 */
    real wf[OP][SLICE], wb[OP][SLICE];
    real o[2][BP][OP];
    real y[BP][OP];
    real bx[SLICE], bm[SLICE], bias_m[SLICE], bo[OP], bias[OP]; /* bias: at this step */
    real sum_m[SLICE], sum_o[OP]; /* over the minibatch, at the steady state; with SLOPE, of the changes so far */
    real pixel[256];
    struct { real beta, inside, wx, bx, wm, wn, bm, wf, wb, bo; } c; /* η/(β B) of each */
    u64 sums_ready[PORTIONS][2][2], states_ready[PORTIONS][2][2]; /* by layer and version */
    u64 answers_ready[2], outputs_ready[2];                      /* by version */
    bits residual[BP];
    u32 lit[(NX + 31) / 32 + 1];
    short active[NX];
    int actives;
    int at, until; /* this minibatch; the count of steps at the end of the phase */
    unsigned char label[BP];
    double wrong[BP], loss[BP];
#ifdef DOUBLE
    real strip[2 * TILES][16][SEGMENT];
#endif
    /* o_{t+1} − o_t, of four outputs of sample b */
    __device__ __forceinline__ Quad change_of_output(int now, int b, int first) const {
#if SLOPE
        return *(const Quad *)&changed[b][first];
#endif
        Quad d = *(const Quad *)&o[now ^ 1][b][first], was = *(const Quad *)&o[now][b][first];
#pragma unroll
        for (int k = 0; k < 4; k++) d.v[k] -= was.v[k];
        return d;
    }
#ifdef PROFILE
    i64 clocks[16], last;
#endif
};

/* A matrix in global memory with strides, from a first row and column on. */
struct View {
    real *at;
    int row_stride, column_stride, rows, columns;
    __device__ __forceinline__ bool has(int i, int j) const { return WHOLE || (i < rows && j < columns); }
    __device__ __forceinline__ real &operator()(int i, int j) const {
        return at[(i64)i * row_stride + (i64)j * column_stride];
    }
};

/* The states multiplied in the first and in the second term of an update. */
struct Terms { const Segment *first, *second; };

/* A lane's share of a tile, in the layout of mma.m16n8k16: row lane / 4 and the row 8 below, two
   neighbouring columns from 2 (lane % 4) on. */
struct Lane {
    u32 warp, lane, row, pair;
    __device__ __forceinline__ Lane() : warp(thread() / 32), lane(thread() % 32), row(lane / 4), pair(lane % 4 * 2) {}
};

/* Sixteen rows of a block or of its transpose. Rows are neurons of one layer, columns of the other. */
struct Strip {
    Shared &m;
#ifndef DOUBLE
    u32 high[TILES][4], low[TILES][4];
#endif

    __device__ __forceinline__ Strip(Shared &m) : m(m) {}

    __device__ __forceinline__ static real read(const View &w, int i, int j) {
        return w.has(i, j) ? w(i, j) : (real)0;
    }

#ifdef DOUBLE
    __device__ __forceinline__ void load(const View &w) {
        const u32 warp = thread() / 32, lane = thread() % 32;
        for (int i = 0; i < 16; i++)
            for (int j = lane; j < SEGMENT; j += 32) m.strip[warp][i][j] = read(w, i, j);
        __syncwarp();
    }
    /* sums[k][i]: of row `row` (+ 8 for i > 1) and sample 8 (n + k) + pair (+ 1 for odd i) */
    template <int EIGHTS> __device__ __forceinline__ void multiply(const Segment &s, int n, real (*sums)[4]) const {
        const Lane l;
        for (int k = 0; k < EIGHTS; k++)
            for (int i = 0; i < 4; i++) {
                sums[k][i] = 0;
                for (int j = 0; j < SEGMENT; j++)
                    sums[k][i] += m.strip[l.warp][l.row + i / 2 * 8][j] * s.entry(8 * (n + k) + l.pair + i % 2, j);
            }
    }
    __device__ __forceinline__ void add(int step, real (*d)[4], real factor) {
        const Lane l;
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 4; i++)
                m.strip[l.warp][l.row + i / 2 * 8][16 * step + 8 * half + l.pair + i % 2] += factor * d[half][i];
    }
    __device__ __forceinline__ real value(int step, int half, int i) const {
        const Lane l;
        return m.strip[l.warp][l.row + i / 2 * 8][16 * step + 8 * half + l.pair + i % 2];
    }
#else
    __device__ __forceinline__ void set(int step, int r, float first, float second) {
        high[step][r] = halves(first, second);
        low[step][r] = halves(first - first_half(high[step][r]), second - second_half(high[step][r]));
    }
    __device__ __forceinline__ void load(const View &w) {
        const Lane l;
#pragma unroll
        for (int step = 0; step < TILES; step++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                int i = l.row + r % 2 * 8, j = 16 * step + r / 2 * 8 + l.pair;
                set(step, r, WEIGHT_SCALE * read(w, i, j), WEIGHT_SCALE * read(w, i, j + 1));
            }
    }
    /* Tensor cores truncate when they add, so the large products have separate sums. */
    template <int EIGHTS> __device__ __forceinline__ void multiply(const Segment &s, int n, real (*sums)[4]) const {
        const u32 lane = thread() % 32;
        real second[EIGHTS][4] = {}, third[4] = {}; /* two if there is one group of eight, for more parallelism */
        const Place corner = row_of(&s, 8 * n + lane % 8, lane / 8 % 2 + lane / 16 * 4);
#define EACH_EIGHT _Pragma("unroll") for (int k = 0; k < EIGHTS; k++)
        EACH_EIGHT
#pragma unroll
        for (int i = 0; i < 4; i++) sums[k][i] = 0;
        u32 ahead[2][EIGHTS][4]; /* high and low halves of this step and the next */
        EACH_EIGHT load_matrices(ahead[0][k], corner + 8 * ROW_BYTES * k);
#pragma unroll
        for (int step = 0; step < TILES; step++) {
            __syncwarp(); /* keeps the compiler from loading more than the registers hold */
            u32(*b)[4] = ahead[step % 2];
            if (step + 1 < TILES)
                EACH_EIGHT load_matrices(ahead[(step + 1) % 2][k], corner + COLUMN(step + 1) + 8 * ROW_BYTES * k);
            EACH_EIGHT multiply_add(sums[k], high[step], b[k]);
            EACH_EIGHT multiply_add(second[k], high[step], b[k] + 2);
            EACH_EIGHT multiply_add(EIGHTS == 1 ? third : second[k], low[step], b[k]);
        }
        EACH_EIGHT
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (EIGHTS == 1) second[k][i] += third[i];
            sums[k][i] = (sums[k][i] + second[k][i]) * (1.0f / WEIGHT_SCALE);
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
    __device__ __forceinline__ real value(int step, int half, int i) const {
        u32 h = high[step][half * 2 + i / 2], l = low[step][half * 2 + i / 2];
        return (1.0f / WEIGHT_SCALE) *
               (i % 2 ? second_half(h) + second_half(l) : first_half(h) + first_half(l));
    }
    /* The address of the c-th eight of the first 32 numbers of a sample: high halves, or low (c > 3). */
    __device__ __forceinline__ static Place row_of(const Segment *s, u32 sample, u32 c) {
        return place_of(s) + ROW_BYTES * sample + 16 * c;
    }
    /* The same for sample k, counted through the terms. Beyond the last sample there are zeros or
       unused numbers. */
    template <int TERMS> __device__ __forceinline__ static Place row_of(const Terms &terms, u32 k, u32 c) {
        const bool beyond = k >= TERMS * B, second = TERMS > 1 && k >= B && !beyond;
        return row_of(second ? terms.second : terms.first, beyond ? B % BN : second ? k - B : k, c);
    }
#endif
#define EACH_ENTRY                                         \
    _Pragma("unroll") for (int half = 0; half < 2; half++) \
        _Pragma("unroll") for (int i = 0; i < 4; i++)

    /* W += c · (aᵀ b + a'ᵀ b'), with − for MINUS, or c aᵀ b for one term; a for rows, b for columns. HERE:
       in the strip, else in `weights`. CHANGED: a is CHANGE_SCALE (a.first − a.second). */
    template <int TERMS, bool MINUS, bool CHANGED, bool HERE>
    __device__ __forceinline__ void move(const Terms &a, const Terms &b, u32 first_row, real c, const View &weights) {
        const Lane l;
#ifndef DOUBLE
        const int eights = (TERMS * B + 7) / 8, pairs = (eights + 1) / 2;
        const u32 matrix = l.lane / 8, line = l.lane % 8;
        u32 a_high[pairs][4], a_low[pairs][4];
        Place b_at[pairs];
#pragma unroll
        for (int k = 0; k < pairs; k++) {
            const u32 row = 16 * k + matrix / 2 * 8 + line;
            b_at[k] = row_of<TERMS>(b, 16 * k + matrix % 2 * 8 + line, matrix / 2);
            Place a_at = row_of<TERMS>(a, row, matrix % 2) + COLUMN(first_row / 16);
            load_transposed(a_high[k], a_at);
            load_transposed(a_low[k], a_at + LOW);
            if (CHANGED) {
                u32 high[4], low[4];
                a_at = row_of<1>({a.second, 0}, row, matrix % 2) + COLUMN(first_row / 16);
                load_transposed(high, a_at);
                load_transposed(low, a_at + LOW);
#pragma unroll
                for (int r = 0; r < 4; r++) subtract(a_high[k][r], a_low[k][r], high[r], low[r]);
            }
            if (MINUS)
#pragma unroll
                for (int r = 0; r < 4; r++) { /* signs of the second term */
                    int first = 16 * k + r / 2 * 8 + l.pair;
                    u32 signs = (first >= B ? 0x8000u : 0) | (first + 1 >= B ? 0x80000000u : 0);
                    a_high[k][r] ^= signs;
                    a_low[k][r] ^= signs;
                }
        }
#endif
#pragma unroll
        for (int step = 0; step < TILES; step++) {
            real d[2][4] = {};
#ifdef DOUBLE
            EACH_ENTRY for (int k = 0; k < TERMS * B; k++) {
                u32 row = first_row + l.row + i / 2 * 8, column = 16 * step + 8 * half + l.pair + i % 2;
                real post = (k < B ? a.first : a.second)->entry(k % B, row);
                if (CHANGED) post = CHANGE_SCALE * (post - a.second->entry(k, row));
                real product = post * (k < B ? b.first : b.second)->entry(k % B, column);
                d[half][i] += MINUS && k >= B ? -product : product;
            }
#else
            real small[2][4] = {};
#pragma unroll
            for (int k = 0; k < pairs; k++) {
                u32 b_high[4], b_low[4];
                load_transposed(b_high, b_at[k] + COLUMN(step));
                load_transposed(b_low, b_at[k] + COLUMN(step) + LOW);
#pragma unroll
                for (int product = 0; product < 3; product++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const u32 *left = product == 2 ? a_low[k] : a_high[k];
                        const u32 *right = (product == 1 ? b_low : b_high) + 2 * half;
                        real *sum = product ? small[half] : d[half];
                        if (2 * k + 1 < eights) multiply_add(sum, left, right);
                        else multiply_add_half(sum, left, *right);
                    }
            }
            EACH_ENTRY d[half][i] += small[half][i];
#endif
            if (HERE) add(step, d, c);
            else EACH_ENTRY {
                int r = l.row + i / 2 * 8, k = 16 * step + 8 * half + l.pair + i % 2;
                if (weights.has(r, k)) weights(r, k) += c * d[half][i];
            }
        }
    }
    __device__ __forceinline__ void write(const View &weights) const {
        const Lane l;
#pragma unroll
        for (int step = 0; step < TILES; step++) EACH_ENTRY {
            int r = l.row + i / 2 * 8, k = 16 * step + 8 * half + l.pair + i % 2;
            if (weights.has(r, k)) weights(r, k) = value(step, half, i);
        }
    }
};

/* The place of a thread in its network. Computed again at each use, since registers are scarce. */
struct Where {
    u32 rank, down, across;
    bool forward;
    u32 worker, first_row; /* number of the warp in its direction; first row in the segment that it drives */
    __device__ __forceinline__ Where() {
        u32 t = thread();
        rank = rank_in_cluster(), down = rank / GRID, across = rank % GRID;
        forward = t < 32 * TILES, worker = t % (32 * TILES), first_row = worker / 32 * 16;
    }
    __device__ __forceinline__ bool finishes() const { return worker < 32 * FINISHERS; }
    __device__ __forceinline__ bool answers() const { return worker >= 32 * (TILES - ANSWERERS); }
};

/* Where the sums of a warp go in step n: to their owner, through a local buffer if that is another. */
struct Route {
    u32 to;
    bool leaves;
    Sums &there, &here;
    __device__ __forceinline__ Route(Shared &m, int layer, int n, const Where &w = Where())
        : Route(m, layer, n, w, w.first_row / SLICE, w.first_row % SLICE / 16, layer ? w.down : w.across) {}
    __device__ __forceinline__ Route(Shared &m, int layer, int n, const Where &w, u32 owner, u32 part, u32 own)
        : to(layer ? owner * GRID + w.across : w.down * GRID + owner), leaves(owner != own),
          there(m.arrived[n & 1][layer][own][part]),
          here(leaves ? m.outgoing[n & 1][layer][(owner - own + GRID) % GRID - 1][part] : there) {}
};

/* The work of a thread in a step. */
struct Stepper {
    Shared &m;
    const Problem &p;
    Strip strip;
    int n1 = 0, n2 = 0; /* steps of h1 and the outputs; steps of h2, if layers move in turn */
    int again = 0;      /* number of extra versions (see `recall`) */

    __device__ __forceinline__ Stepper(Shared &m, const Problem &p) : m(m), p(p), strip(m) {}

    __device__ __forceinline__ static void wait(u64 *ready, int version) {
        receive(&ready[version & 1], version - 1 >> 1 & 1);
    }
    /* the latest versions of the states; of a layer */
    __device__ __forceinline__ int v1() const { return n1 + again; }
    __device__ __forceinline__ int v2() const { return (IN_TURN ? n2 : n1) + again; }
    __device__ __forceinline__ int version(int layer) const { return layer ? v2() : v1(); }
    /* wait for the latest states of a layer; of all layers and the outputs */
    __device__ __forceinline__ void wait_for_states(int layer) {
#pragma unroll
        for (int portion = 0; portion < PORTIONS; portion++) wait(m.states_ready[portion][layer], version(layer));
    }
    __device__ __forceinline__ void wait_for_all() {
        wait_for_states(0);
        wait_for_states(1);
        wait(m.outputs_ready, n1);
    }

    /* Send the states of the slice owned to all that need them; `state` returns four neurons of a sample.
       With `changes`, also send m.change. */
    template <class State> __device__ __forceinline__ void publish(int layer, int version, bool changes, State state) {
        const Where w;
        const u32 own = layer ? w.down : w.across, apart = APART && w.worker >= 64;
#pragma unroll 1
        for (u32 portion = apart; portion < (APART ? apart + 1 : PORTIONS); portion++) {
            const u32 workers = !APART ? 32 * FINISHERS : apart ? 32 * FINISHERS - 64 : 64, me = w.worker - 64 * apart;
            const u32 first = BEGIN(portion), rows = END(portion) - first;
            Segment &s = layer ? m.s2[version & 1] : m.s1[version & 1];
            u64 *ready = &m.states_ready[portion][layer][version & 1];
            for (u32 k = me; k < rows * (SLICE / 4); k += workers) {
                const u32 b = first + k / (SLICE / 4), j = k % (SLICE / 4) * 4;
                s.set(b, own * SLICE + j, state(portion, b, j));
            }
            show();
            meet_some(1 + 2 * w.forward + portion, workers);
            if (me == 0) expect(ready, (1 + changes) * (GRID - 1) * (SLICE / 32) * rows * ROW_BYTES / sizeof(real));
            for (u32 k = me; k < GRID * (SLICE / 32); k += workers) {
                const u32 to = k / (SLICE / 32);
                auto *from = &s.blocks[own * (SLICE / 32) + k % (SLICE / 32)].v[first];
                const u32 rank = layer ? to * GRID + w.across : w.down * GRID + to;
                if (to == own) continue;
                send_block(from, from, rows * ROW_BYTES, ready, rank);
#if SLOPE
                auto *change = &m.change[layer].blocks[own * (SLICE / 32) + k % (SLICE / 32)].v[first];
                if (changes) send_block(change, change, rows * ROW_BYTES, ready, rank);
#endif
            }
        }
    }

    /* 1. Drive a layer in its n-th step, with the half of the warps that has the weights for it. */
    template <int PORTION> __device__ __forceinline__ void drive(int layer, int n) {
        const int first = BEGIN(PORTION), last = END(PORTION), eights = (last - first + 7) / 8;
        const int at_once = eights > 3 ? 2 : eights; /* registers do not hold more */
        u64 *ready = &m.sums_ready[PORTION][layer][n & 1];
        wait(m.states_ready[PORTION][layer ^ 1], version(layer ^ 1));
        if (Where().worker == 0) expect(ready, (GRID - 1) * SLICE * (last - first));
        const Segment &s = layer ? m.s1[v1() & 1] : m.s2[v2() & 1];
#pragma unroll 1
        for (int eight = first / 8; eight < first / 8 + eights; eight += at_once) {
            real sums[at_once][4];
            strip.multiply<at_once>(s, eight, sums);
            const Route route(m, layer, n);
            const Lane l;
            real *rows[2] = {route.here.at(l.pair, l.row), route.here.at(l.pair, l.row + 8)};
#pragma unroll
            for (int k = 0; k < at_once; k++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (8 * (eight + k) + (int)l.pair + i % 2 < last) rows[i / 2][128 * (eight + k) + i % 2 * 16] = sums[k][i];
        }
        const Route route(m, layer, n);
        if (route.leaves) show();
        __syncwarp();
        if (thread() % 32 == 0) {
            if (route.leaves)
                send_block(&route.there.v[first], &route.here.v[first], (last - first) * SUMS_ROW, ready, route.to);
            else arrive(ready);
        }
    }
    __device__ __forceinline__ void drive(int layer, int n) {
        STAMP(0)
        drive<0>(layer, n);
        if (PORTIONS > 1) drive<PORTIONS - 1>(layer, n);
        STAMP(1)
    }

    /* 2. Compute the new states of the slice; 3. send them to all that need them. */
    __device__ __forceinline__ void finish(int layer, int n, bool nudged) {
        const Where w;
        real(*h)[BP][SLICE] = layer ? m.h2 : m.h1;
        const int columns = layer ? H2 - (w.across * SEGMENT + w.down * SLICE) : H - (w.down * SEGMENT + w.across * SLICE);
        const int version = this->version(layer) + 1;
        const bool apart = SLOPE && nudged; /* keep the drives from before and after a neuron apart */
        publish(layer, version, apart, [&](u32 portion, u32 b, u32 j) {
            Quad v = layer ? *(const Quad *)&m.bias_m[j] : *(const Quad *)&m.drive[b][j], other = {};
            if (layer) {
                wait(m.outputs_ready, n1);
#pragma unroll
                for (int first = 0; first < OP; first += 4) {
                    Quad o = *(const Quad *)&m.o[n1 & 1][b][first], w[4];
#pragma unroll
                    for (int k = 0; k < 4; k++) w[k] = *(const Quad *)(TIED ? &m.wf[first + k][j] : &m.wb[first + k][j]);
#pragma unroll
                    for (int k = 0; k < 4; k++)
#pragma unroll
                        for (int i = 0; i < 4; i++) (apart ? other : v).v[i] += o.v[k] * w[k].v[i];
                }
            }
#if CONTINUAL
            else if (nudged) {
#pragma unroll 4
                for (int c = 0; c < B; c++) {
#if SLOPE
                    Quad h = *(const Quad *)&m.moved1[c][j];
#else
                    Quad h = *(const Quad *)&m.h1[version & 1 ^ 1][c][j];
#endif
#pragma unroll
                    for (int i = 0; i < 4; i++) v.v[i] += m.spread[c][b] * h.v[i];
                }
            }
#endif
            STAMP(2)
            wait(m.sums_ready[portion][layer], n);
            STAMP(3)
#pragma unroll
            for (int source = 0; source < GRID; source++) {
                Quad sum = *(const Quad *)m.arrived[n & 1][layer][source][j / 16].at(b, j % 16);
#pragma unroll
                for (int i = 0; i < 4; i++) (apart && !layer ? other : v).v[i] += sum.v[i];
            }
#if SLOPE
            const Quad before = v;
#endif
#pragma unroll
            for (int i = 0; i < 4; i++)
                v.v[i] = WHOLE || (int)j + i < columns ? activate(apart ? v.v[i] + other.v[i] : v.v[i]) : (real)0;
#if SLOPE
            if (apart) keep_change(layer, b, j, v, *(const Quad *)&h[version & 1 ^ 1][b][j], before, other);
#endif
            *(Quad *)&h[version & 1][b][j] = v;
            return v;
        });
    }

#if SLOPE
    /* Store the change of four neurons of sample b from `was` to `now`; `before` and `behind` drive them. */
    __device__ __forceinline__ void keep_change(
        int layer, u32 b, u32 j, const Quad &now, const Quad &was, Quad before, Quad behind) {
        const Where w;
        Quad scaled;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const real change = now.v[i] - was.v[i];
            const Slopes k = slopes(before.v[i], behind.v[i], now.v[i]);
            before.v[i] = k.before * change;
            behind.v[i] = k.behind * change;
            scaled.v[i] = CHANGE_SCALE * (layer ? before.v[i] : behind.v[i]);
        }
        m.change[layer].set(b, (layer ? w.down : w.across) * SLICE + j, scaled);
        *(Quad *)&(layer ? m.before2 : m.before1)[b][j] = before;
        if (layer) *(Quad *)&m.behind2[b][j] = behind;
    }
#endif

    /* send partial sums of the n-th outputs, from h2 */
    __device__ __forceinline__ void send_answers(int n) {
        const Where w;
        const u32 me = w.worker - 32 * (TILES - ANSWERERS), part = me % 4;
        wait_for_states(1);
        for (u32 first = 0; first < B; first += 8 * ANSWERERS) {
            const u32 sample = first + me / 4, b = sample < B ? sample : 0;
            real v[OP] = {};
#pragma unroll
            for (int c = 0; c < SLICE; c += 16) {
                Quad h = m.s2[v2() & 1].quad(b, w.down * SLICE + c + 4 * part);
#pragma unroll
                for (int o = 0; o < O; o++) {
                    Quad w = *(const Quad *)&m.wf[o][c + 4 * part];
#pragma unroll
                    for (int i = 0; i < 4; i++) v[o] += h.v[i] * w.v[i];
                }
            }
#pragma unroll
            for (int o = 0; o < O; o++) {
                v[o] += __shfl_xor_sync(~0u, v[o], 1);
                v[o] += __shfl_xor_sync(~0u, v[o], 2);
            }
#pragma unroll
            for (int k = 0; k < OP / 4; k++) { /* four outputs per lane */
                u32 at = b * (OP / 4) + k;
                if (part == k % 4 && sample < B)
                    send_quad(&m.answers[n & 1][at / CLUSTER][w.rank], &m.answers_ready[n & 1], at % CLUSTER,
                              {v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]});
            }
        }
    }
    /* compute the outputs owned and send them to every multiprocessor */
    __device__ __forceinline__ void answer(int n, bool nudged) {
        const Where w;
        const u32 me = w.worker - 32 * (TILES - ANSWERERS), now = n & 1 ^ 1;
        const u32 owned = w.rank < ANSWERS ? (ANSWERS - 1 - w.rank) / CLUSTER + 1 : 0;
        if (me && me >= owned * CLUSTER) return; /* threads without outputs must not wait */
        wait(m.outputs_ready, n - 1);
        if (me == 0) {
            expect(&m.outputs_ready[n & 1], (SLOPE && nudged ? 2 : 1) * B * OP);
            if (owned) expect(&m.answers_ready[n & 1], owned * CLUSTER * 4);
        }
        for (u32 k = me; k < owned * CLUSTER; k += 32 * ANSWERERS) {
            wait(m.answers_ready, n);
            const u32 slot = k / CLUSTER, to = k % CLUSTER, at = slot * CLUSTER + w.rank;
            const u32 b = at / (OP / 4), o = at % (OP / 4) * 4;
            Quad v = *(const Quad *)&m.bias[o];
#pragma unroll
            for (int source = 0; source < CLUSTER; source++)
#pragma unroll
                for (int i = 0; i < 4; i++) v.v[i] += m.answers[n & 1][slot][source].v[i];
#if SLOPE
            Quad changed;
#endif
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const real was = m.o[now][b][o + i], a = activate(v.v[i]);
                const real nudge = nudged ? m.c.beta * (m.y[b][o + i] - was) : (real)0;
#if SLOPE
                changed.v[i] = o + i < O ? slope(v.v[i], a) * (a + nudge - was) : (real)0;
#endif
                v.v[i] = o + i < O ? a + nudge : (real)0;
            }
            send_quad((Quad *)&m.o[n & 1][b][o], &m.outputs_ready[n & 1], to, v);
#if SLOPE
            if (nudged) send_quad((Quad *)&m.changed[b][o], &m.outputs_ready[n & 1], to, changed);
#endif
        }
    }

    /* Take one step of the layers that move. The output moves with layer 1. */
    __device__ __forceinline__ void step(bool moves1, bool moves2, bool nudged) {
        const Where w;
        const bool moves = w.forward ? moves2 : moves1, answers = moves1 && w.answers();
        const int n = 1 + (IN_TURN && w.forward ? n2 : n1);
        if (answers && w.forward && !nudged) send_answers(n1 + 1); /* h2 has arrived, h1 perhaps not */
        if (moves) drive(w.forward, n);
        if (nudged) __syncthreads(); /* the output weights have moved */
        if (moves && w.finishes()) finish(w.forward, n, nudged);
        STAMP(4)
        if (answers && w.forward && nudged) send_answers(n1 + 1);
        if (answers && !w.forward) answer(n1 + 1, nudged);
        n1 += moves1;
        n2 += moves2;
    }

    /* The same for all layers while no weights move. Each half of the warps drives its layer twice, once
       per chain, and then finishes both layers while the other half drives. */
    __device__ __forceinline__ void step_freely(bool nudged) {
        const Where w;
        const int n = n1 + 1;
        drive(w.forward, n);
        if ((n & 1) == w.forward) {
            if (w.finishes())
#pragma unroll 1
                for (int k = 0; k < 2; k++) finish(w.forward ^ k, n, nudged);
            STAMP(4)
            if (w.answers()) {
                send_answers(n);
                answer(n, nudged);
            }
        }
        n1++;
    }

    /* The weights of the strip in global memory. */
    __device__ __forceinline__ View weights(int e) const {
        const Where w;
        real *at = w.forward || TIED ? p.wm : p.wn;
        renew(at);
        const int rows = w.down * SEGMENT, columns = w.across * SEGMENT; /* of [H, H2] */
        at += (i64)e * H * H2;
        if (w.forward) return {at + (i64)rows * H2 + columns + w.first_row, 1, H2, H2 - columns - w.first_row, H - rows};
        if (TIED) return {at + (i64)(rows + w.first_row) * H2 + columns, H2, 1, H - rows - w.first_row, H2 - columns};
        return {at + (i64)columns * H + rows + w.first_row, 1, H, H - rows - w.first_row, H2 - columns}; /* of [H2, H] */
    }

#if !SLOPE
    /* Send the steady states again, as the next version of all states. */
    __device__ __forceinline__ void recall() {
        meet(); /* all have read the version before the last */
        const Where w;
        const int layer = w.forward, version = this->version(layer) + 1;
        if (w.finishes())
            publish(layer, version, false,
                    [&](u32, u32 b, u32 j) { return *(const Quad *)&(layer ? m.steady2 : m.steady1)[b][j]; });
        again++;
        wait_for_all();
    }
#endif
};

/* The task of a multiprocessor. Also computed again at each use. */
struct Task {
    int t, rank, e, first_sample; /* first_sample is nonzero only without learning */
    int first1, columns1, first2, columns2; /* first neurons of the slices owned; number of neurons from there on */
    __device__ __forceinline__ Task(const Problem &p) {
        const Where w;
        const int cluster = block_number() / CLUSTER;
        t = thread(), rank = w.rank, e = cluster % p.members, first_sample = cluster / p.members * B;
        first1 = w.down * SEGMENT + w.across * SLICE, columns1 = H - first1;
        first2 = w.across * SEGMENT + w.down * SLICE, columns2 = H2 - first2;
    }
    __device__ __forceinline__ real *wx(const Problem &p) const { return p.wx + (i64)e * NX * H; }
};

__device__ __forceinline__ void begin(const Problem &p, Shared &m) {
    const Task k(p);
    for (int i = k.t; i < (int)(sizeof(Shared) / sizeof(real)); i += THREADS) ((real *)&m)[i] = 0;
    __syncthreads();
    if (p.images)
        for (int i = k.t; i < 256; i += THREADS) m.pixel[i] = p.pixel[i];
    read_output_weights(p, m, k.e, H2, k.first2);
    for (int j = k.t; j < SLICE; j += THREADS) {
        if (p.bx && j < k.columns1) m.bx[j] = p.bx[(i64)k.e * H + k.first1 + j];
        if (p.bm && j < k.columns2) m.bm[j] = p.bm[(i64)k.e * H2 + k.first2 + j];
    }
    if (k.t < 2) {
        for (int layer = 0; layer < 2; layer++) {
            for (int portion = 0; portion < PORTIONS; portion++) {
                prepare(&m.sums_ready[portion][layer][k.t], 1 + SLICE / 16);
                prepare(&m.states_ready[portion][layer][k.t]);
            }
        }
        prepare(&m.answers_ready[k.t]);
        prepare(&m.outputs_ready[k.t]);
    }
    __syncthreads();
    meet(); /* before others write to this memory, it must be cleared */
    if (p.images) fetch_bytes(p, m, k.e, 0);
}

__device__ __forceinline__ void begin_minibatch(const Problem &p, Shared &m, Stepper &s) {
    const Task k(p);
    read_minibatch(p, m, k.e, m.at, k.first_sample);
    STAMP(7)
    if (p.images && m.at + 1 < p.minibatches) fetch_bytes(p, m, k.e, m.at + 1);
    if (k.t == 0) m.until = s.n1 + p.free_steps;
    if (k.t == 0 && p.nudged_steps) {
        const int e = k.e;
        const real beta = p.beta[(i64)m.at * p.members + e];
        m.c = {beta, (real)p.inside, p.rate_wx[e] / beta, p.rate_bx[e] / beta, p.rate_wm[e] / beta, p.rate_wn[e] / beta,
               p.rate_bm[e] / beta, p.rate_wf[e] / beta, p.rate_wb[e] / beta, p.rate_bo[e] / beta};
    }
    __syncthreads();
#if CONTINUAL
    if (p.nudged_steps) spread(m, m.c.inside * m.c.wx, m.c.inside * m.c.bx);
#endif
    STAMP(8)
    input_drive(k.wx(p), m, k.first1);
    STAMP(9)
    s.strip.load(s.weights(k.e));
    for (int i = k.t; i < BP * SLICE; i += THREADS)
        m.drive[i / SLICE][i % SLICE] = m.sums[0][i / SLICE][i % SLICE] + m.bx[i % SLICE];
    for (int i = k.t; i < 2 * BP * SLICE; i += THREADS) (&m.h1[0][0][0])[i] = (&m.h2[0][0][0])[i] = 0;
    for (int i = k.t; i < (int)(sizeof(Segment) / 4); i += THREADS)
        ((u32 *)&m.s1[s.v1() & 1])[i] = ((u32 *)&m.s2[s.v2() & 1])[i] = 0;
    for (int i = k.t; i < 2 * BP * OP; i += THREADS) (&m.o[0][0][0])[i] = 0;
    if (k.t < BP) m.residual[k.t] = 0;
    if (k.t < O) m.bias[k.t] = m.bo[k.t];
    for (int j = k.t; j < SLICE; j += THREADS) m.bias_m[j] = m.bm[j];
    show();
    if (RELAXES) meet(); /* messages overwrite x: wait until all have read it */
    else __syncthreads();
}

/* Write the results of the free phase. */
__device__ __forceinline__ void record(const Problem &p, Shared &m, const Stepper &s) {
    const Task k(p);
    if (m.at == p.minibatches - 1) {
        for (int i = k.t; i < B * SLICE; i += THREADS) {
            int b = i / SLICE, j = i % SLICE;
            i64 sample = (i64)k.e * p.samples + k.first_sample + b;
            if (k.first_sample + b >= p.samples) continue;
            if (j < k.columns1) p.h[sample * H + k.first1 + j] = m.h1[s.v1() & 1][b][j];
            if (j < k.columns2) p.h2[sample * H2 + k.first2 + j] = m.h2[s.v2() & 1][b][j];
        }
        /* the latest change of any neuron */
        for (int i = k.t; i < B * SLICE; i += THREADS) {
            real moved = fmax(fabs((&m.h1[1][0][0])[i] - (&m.h1[0][0][0])[i]), fabs((&m.h2[1][0][0])[i] - (&m.h2[0][0][0])[i]));
            atomicMax(&m.residual[i / SLICE], BITS(moved));
        }
        for (int i = k.t; i < B * OP; i += THREADS)
            atomicMax(&m.residual[i / OP], BITS(fabs((&m.o[1][0][0])[i] - (&m.o[0][0][0])[i])));
        __syncthreads();
        record_outputs(p, m, k.e, s.n1 & 1, k.first_sample, k.rank);
    }
    count_answers(p, m, s.n1 & 1, k.rank);
}

__device__ __forceinline__ void begin_nudging(const Problem &p, Shared &m, const Stepper &s) {
    if (thread() == 0) m.until = s.n1 + p.nudged_steps;
    const int t = thread(), now1 = s.v1() & 1, now2 = s.v2() & 1;
#if SLOPE
    for (int k = t; k < BP * SLICE; k += THREADS) (&m.before1[0][0])[k] = (&m.moved1[0][0])[k] = 0;
    /* clear the rows without a sample, which take part in products, and where x was */
    const int words = (BN - B) * ROW_BYTES / 4;
    for (int k = t; k < 2 * (SEGMENT / 32) * words; k += THREADS)
        ((u32 *)&m.change[k / words / (SEGMENT / 32)].blocks[k / words % (SEGMENT / 32)].v[B])[k % words] = 0;
    for (int j = t; j < SLICE; j += THREADS) m.sum_m[j] = 0;
    if (t < O) m.sum_o[t] = 0;
#else
    for (int k = t; k < BP * SLICE; k += THREADS) {
        (&m.steady1[0][0])[k] = (&m.h1[now1][0][0])[k];
        (&m.steady2[0][0])[k] = (&m.h2[now2][0][0])[k];
    }
    for (int j = t; j < SLICE; j += THREADS) {
        real sum = 0;
        for (int b = 0; b < B; b++) sum += m.h2[now2][b][j];
        m.sum_m[j] = sum;
    }
    if (t < O) m.sum_o[t] = sum_of_output(m, s.n1 & 1, t);
#if CONTINUAL
    for (int k = t; k < B * SLICE; k += THREADS) {
        int b = k / SLICE, j = k % SLICE;
        real sum = 0;
        for (int i = 0; i < B; i++) sum += m.spread[i][b] * m.h1[now1][i][j];
        m.drive[b][j] -= sum;
    }
#endif
#endif
    Mover<Shared> mover(m);
    mover.begin(m.h2[now2], s.n1 & 1);
    mover.keep();
    __syncthreads();
}

/* The change of neuron j of the second layer, summed over the minibatch and the steps so far. With SLOPE
   it accumulates, as in moved_output. */
__device__ __forceinline__ real moved_second(Shared &m, int now, int j) {
#if SLOPE
    real sum = m.sum_m[j];
    for (int b = 0; b < B; b++) sum += m.before2[b][j];
    return m.sum_m[j] = sum;
#else
    real sum = -m.sum_m[j];
    for (int b = 0; b < B; b++) sum += m.h2[now][b][j];
    return sum;
#endif
}

/* Move the weights after a nudged step. */
__device__ __forceinline__ void follow(const Problem &p, Shared &m, Stepper &s, bool last) {
    const int now1 = s.v1() & 1, now2 = s.v2() & 1, now = s.n1 & 1, before1 = now1 ^ 1, before2 = now2 ^ 1;
    /* if a step applies only part of the update, the whole is known at the end or kept elsewhere */
    const bool moves = VECTOR_FIELD || (CONTINUAL && (WHOLLY || !last));
#if !VECTOR_FIELD
    if (moves) {
        const u32 layer = thread() / (THREADS / 2), first = thread() % (THREADS / 2);
        m.change[layer].difference(layer ? m.s2[now2] : m.s1[now1], layer ? m.s2[before2] : m.s1[before1], first);
    }
    __syncthreads();
#endif
    STAMP(12)
    if (moves) {
        const Where w;
        const real c = (w.forward ? m.c.wm : m.c.wn) / CHANGE_SCALE;
#if VECTOR_FIELD
        const Segment *was1 = &m.s1[before1], *was2 = &m.s2[before2];
#if SLOPE
        const Terms posts = {&m.change[w.forward], 0};
#else
        const Terms posts = w.forward ? Terms{&m.s2[now2], was2} : Terms{&m.s1[now1], was1};
#endif
        const Terms pres = {w.forward ? was1 : was2, 0};
        if (CONTINUAL) s.strip.move<1, false, !SLOPE, true>(posts, pres, w.first_row, m.c.inside * c, {});
        if (!WHOLLY) s.strip.move<1, false, !SLOPE, false>(posts, pres, w.first_row, c, s.weights(Task(p).e));
#else
        const Terms posts = {&m.change[w.forward], w.forward ? &m.s2[before2] : &m.s1[before1]};
        const Terms pres = {w.forward ? &m.s1[now1] : &m.s2[now2], &m.change[!w.forward]};
        s.strip.move<2, false, false, true>(posts, pres, w.first_row, m.c.inside * c, {});
#endif
    }
    STAMP(13)
    __syncthreads(); /* messages overwrite `change`: wait until all have read it */
    const Task k(p);
    Mover<Shared> mover(m);
#if VECTOR_FIELD
    mover.take();
#if SLOPE
    mover.follow(m.h2[before2], m.behind2, now ^ 1);
#else
    mover.follow(m.h2[before2], m.h2[now2], now ^ 1);
#endif
    mover.keep();
#else
    if (CONTINUAL || last) mover.correlate(m.h2[now2], now);
    if (last) mover.keep();
#endif
#if CONTINUAL
    mover.write(m.c.wf, m.c.wb, m.c.inside, k.columns2);
#endif
#if CONTINUAL || SLOPE
    if (k.t >= THREADS - 32 && k.t - (THREADS - 32) < O) {
        int o = k.t - (THREADS - 32);
        m.bias[o] = m.bo[o] + m.c.inside * m.c.bo * moved_output(m, now, o);
    }
    for (int j = (k.t + THREADS / 2) % THREADS; j < SLICE; j += THREADS) /* other warps than the mover's */
        m.bias_m[j] = m.bm[j] + m.c.inside * m.c.bm * moved_second(m, now2, j);
#endif
#if SLOPE
    for (int i = k.t; i < BP * SLICE; i += THREADS) (&m.moved1[0][0])[i] += (&m.before1[0][0])[i];
#endif
}

__device__ __forceinline__ void update(const Problem &p, Shared &m, Stepper &s) {
    const Task k(p);
    Mover<Shared> mover(m);
    mover.take();
    const int now1 = s.v1() & 1, now2 = s.v2() & 1, now = s.n1 & 1;
#if WHOLLY
    if (const Where w; w.forward ? m.c.wm != 0 : !TIED && m.c.wn != 0) s.strip.write(s.weights(k.e));
#elif !VECTOR_FIELD
    s.recall();
    if (const Where w; w.forward)
        s.strip.move<2, true, false, false>({&m.s2[now2], &m.s2[now2 ^ 1]}, {&m.s1[now1], &m.s1[now1 ^ 1]}, w.first_row,
                                     m.c.wm, s.weights(k.e));
#endif
    mover.write(m.c.wf, m.c.wb, 1, k.columns2);
#if SLOPE
    read_pixels(p, m, k.e, m.at, k.first_sample);
    __syncthreads();
    const real(*last)[SLICE] = m.moved1, (*first)[SLICE] = 0;
#else
    const real(*last)[SLICE] = m.h1[now1], (*first)[SLICE] = m.steady1;
#endif
    for (int j = k.t; j < SLICE; j += THREADS) {
        real sum = 0;
        for (int b = 0; b < B; b++) sum += first ? last[b][j] - first[b][j] : last[b][j];
        m.bx[j] += m.c.bx * sum;
        m.bm[j] += m.c.bm * (SLOPE ? m.sum_m[j] : moved_second(m, now2, j));
    }
    if (k.t < O) m.bo[k.t] += m.c.bo * (SLOPE ? m.sum_o[k.t] : moved_output(m, now, k.t));
    move_input_weights(k.wx(p), m, last, first, k.first1, m.c.wx);
}

__device__ __forceinline__ void next_minibatch(Shared &m) {
    __syncthreads();
    if (thread() == 0) m.at++;
    __syncthreads();
}

__device__ __forceinline__ void end(const Problem &p, Shared &m) {
    const Task k(p);
#ifdef PROFILE
    if (p.clocks && block_number() == 0 && k.t < 16) p.clocks[k.t] = m.clocks[k.t];
#endif
    if (p.nudged_steps) {
        write_output_weights(p, m, k.e, H2, k.first2);
        for (int j = k.t; j < SLICE; j += THREADS) {
            if (p.bx && j < k.columns1) p.bx[(i64)k.e * H + k.first1 + j] = m.bx[j];
            if (p.bm && j < k.columns2) p.bm[(i64)k.e * H2 + k.first2 + j] = m.bm[j];
        }
    }
    report_counts(p, m, k.e, k.rank);
    meet(); /* stay while others may still write to this memory */
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    run(const Problem p) {
    Shared &m = *(Shared *)shared_memory();
    begin(p, m);
    Stepper s(m, p);
    while (m.at < p.minibatches) {
        STAMP(14)
        begin_minibatch(p, m, s);
        STAMP(10)
#if IN_TURN
        for (int step = 0; step < p.free_steps; step++)
            s.step(step % 2 == 0, step % 2 == 1, false);
#else
        while (s.n1 != m.until) s.step_freely(false);
#endif
        s.wait_for_all();
        __syncthreads();
        STAMP(5)
        record(p, m, s);
        if (!p.nudged_steps) {
            next_minibatch(m);
            continue;
        }
        begin_nudging(p, m, s);
        STAMP(11)
        while (s.n1 != m.until) {
#if CONTINUAL || VECTOR_FIELD || IN_TURN
            s.step(true, true, true);
#else
            s.step_freely(true);
            if (s.n1 != m.until) continue; /* EP compares the last states with the first */
#endif
            s.wait_for_all();
            STAMP(6)
            follow(p, m, s, s.n1 == m.until);
        }
        __syncthreads();
        update(p, m, s);
        next_minibatch(m);
    }
    end(p, m);
}

extern "C" __device__ const int shared_bytes = sizeof(Shared);
