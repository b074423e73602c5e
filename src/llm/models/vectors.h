/* Eight floats at a time, and work shared among threads: what the kernels beside this file have in common. */
#ifndef VECTORS_H
#define VECTORS_H
#include <string.h>

typedef float vec __attribute__((vector_size(32)));
typedef int ivec __attribute__((vector_size(32)));

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
