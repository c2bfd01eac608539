/* The common part of the kernels: numbers (float32, or float64 with DOUBLE), sizes, the problem.

   Sizes are compile-time constants: NX inputs, H neurons in the first hidden layer, O outputs, B
   samples. CLUSTER multiprocessors hold a network; each has SLICE neurons of each hidden layer, and
   THREADS threads. */

typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
#ifdef DOUBLE
typedef double real;
typedef u64 bits; /* non-negative numbers have the order of their bits */
#define BITS(v) ((bits)__double_as_longlong(v))
#else
typedef float real;
typedef u32 bits;
#define BITS(v) __float_as_uint(v)
#endif
#define ALIGNED(n) __align__((n) * sizeof(real) > 16 ? 16 : (n) * sizeof(real)) /* to load n at once */
struct ALIGNED(4) Quad { real v[4]; };

#define BP ((B + 3) / 4 * 4) /* B rounded up to a multiple of 4 */
#define OP ((O + 3) / 4 * 4)

struct Problem {
    /* Weights and biases, or NULL. From the input: [E, NX, H] [E, H]. Between hidden layers,
       forward, backward, bias: [E, H, H2] [E, H2, H] [E, H2]. To the output: [E, H, O] [E, O, H]
       [E, O]. */
    real *wx, *bx, *wm, *wn, *bm, *wf, *wb, *bo;
    const real *rate_wx, *rate_bx, *rate_wm, *rate_wn, *rate_bm; /* [E]: η/B, 0 if frozen */
    const real *rate_wf, *rate_wb, *rate_bo;
    const real *beta;                                            /* [M, E], signed */
    const unsigned char *images, *labels; /* [n, NX] [n]; NULL: x and y */
    const i64 *index;                     /* [M, E, B] */
    const real *pixel;                    /* [256]: what a byte transmits */
    const real *x, *y;                    /* [(E,) n, NX] [(E,) n, O] */
    /* results of the free phase: [E, n, H] [E, n, H2] [E, n, O] [E, n]; residual is initially 0 */
    real *h, *h2, *o, *residual;
    double *wrong, *loss;                 /* [E], or NULL */
    i64 *clocks;                          /* [16], with PROFILE: cycles of the first multiprocessor */
    double inside;
    int members, samples; /* samples: n of x, y, h, o, residual */
    int minibatches, free_steps, nudged_steps, shared_x, shared_y;
};


#ifdef PROFILE /* cycles between two stamps of the first thread */
#define STAMP(i)                                            \
    if (threadIdx.x == 0) {                                 \
        i64 clock = clock64();                              \
        if (m.last) m.clocks[i] += clock - m.last;          \
        m.last = clock;                                     \
    }
#else
#define STAMP(i)
#endif
