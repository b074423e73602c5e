/* Eight floats at a time, and work shared among threads: what the kernels beside this file have in common. */
#ifndef VECTORS_H
#define VECTORS_H
#include <string.h>

typedef float vec __attribute__((vector_size(32)));
typedef int ivec __attribute__((vector_size(32)));

#ifdef __x86_64__
#define IN_REGISTER(v) __asm__("" : "+x"(v)) /* or each multiply-add that reads v would load it again */
#else
#define IN_REGISTER(v)
#endif

static inline vec load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
static inline void store(float *p, vec v) { memcpy(p, &v, sizeof v); }
static inline vec all(float s) { return (vec){s, s, s, s, s, s, s, s}; }
static inline float total(vec v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }
static inline vec choose(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

/* e^x for x <= 0, no less than e^-87: by 2^n e^r with |r| <= ln(2) / 2 and the series of e^r. */
static inline vec power(vec x)
{
    const vec magic = all(12582912.0f);
    x = choose(x < all(-87.0f), all(-87.0f), x);
    vec n = x * all(1.44269504f) + magic;
    ivec exponent = ((ivec)n << 23) + (127 << 23);
    n -= magic;
    vec r = x - n * all(0.693359375f);
    r += n * all(2.12194440e-4f);
    vec p = all(1.0f / 5040);
    p = p * r + all(1.0f / 720);
    p = p * r + all(1.0f / 120);
    p = p * r + all(1.0f / 24);
    p = p * r + all(1.0f / 6);
    p = p * r + all(0.5f);
    p = p * r + all(1.0f);
    p = p * r + all(1.0f);
    return p * (vec)exponent;
}

/* The larger of each pair; b where a is not a number. */
static inline vec larger(vec a, vec b)
{
#ifdef __AVX__
    return __builtin_ia32_maxps256(a, b);
#else
    return choose(a > b, a, b);
#endif
}

/* 2^x for x <= 0, and exactly 0 below 2^-126: by 2^n 2^r with |r| <= 1/2 and a minimax polynomial (9e-8 relative). It
 * takes less than `power`, for callers who can fold log2(e) into a factor they have. */
static inline vec power_of_two(vec x)
{
    const vec magic = all(12582912.0f + 127);
    x = larger(all(-127.0f), x);
    vec n = x + magic;
    ivec exponent = (ivec)n << 23; /* n with its bias: it stands in the last bits of the sum */
    vec r = x - (n - magic);
    vec square = r * r;
    vec high = (all(1.32647261e-3f) * r + all(9.67151299e-3f)) * square + (all(5.55073358e-2f) * r + all(0.240222424f));
    vec p = high * square + (all(0.693147004f) * r + all(1.0f));
    return p * (vec)exponent;
}

/* silu(gate) * up. With e^-|gate|, which cannot overflow. */
static inline vec gated(vec gate, vec up)
{
    ivec negative = gate < all(0);
    vec e = power(choose(negative, gate, -gate));
    return gate * choose(negative, e, all(1)) / (all(1) + e) * up;
}

#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif

/* Eight rows of eight become eight columns. */
static inline void transpose(vec a[8])
{
    vec b[8], c[8];
    for (int i = 0; i < 8; i += 2) {
        b[i] = PICK(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[i + 1] = PICK(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int h = 0; h < 2; h++) {
            c[i + 2 * h] = PICK(b[i + h], b[i + 2 + h], 0, 1, 8, 9, 4, 5, 12, 13);
            c[i + 2 * h + 1] = PICK(b[i + h], b[i + 2 + h], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        a[i] = PICK(c[i], c[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        a[i + 4] = PICK(c[i], c[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned); /* as GOMP_parallel */

/* The threads a call may use, and which one is asking. */
typedef struct {
    int count;
    int (*number)(void);
} Threads;

/* This thread's share of `items`: [*first, *last). */
static inline void share(const Threads *t, long items, long *first, long *last)
{
    long me = t->number ? t->number() : 0;
    *first = items * me / t->count;
    *last = items * (me + 1) / t->count;
}

/* Run `work` on a job that begins with its Threads, in as many threads as that allows. */
static inline void run(void (*work)(void *), void *job, Parallel parallel)
{
    Threads *t = job;
    if (t->count > 1 && parallel && t->number) {
        parallel(work, job, (unsigned)t->count, 0);
    } else {
        t->count = 1;
        t->number = 0;
        work(job);
    }
}
#endif
