/* The numbers of the kernels: float32, or float64 with DOUBLE. */

typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
#ifdef DOUBLE
typedef double real;
typedef u64 bits; /* non-negative numbers are ordered as their bits are */
#define BITS(v) ((bits)__double_as_longlong(v))
#else
typedef float real;
typedef u32 bits;
#define BITS(v) __float_as_uint(v)
#endif
#define ALIGNED(n) __align__((n) * sizeof(real) > 16 ? 16 : (n) * sizeof(real)) /* for n at once */
struct ALIGNED(4) Quad { real v[4]; };
