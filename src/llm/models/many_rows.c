/* out = x W^T + bias for many rows x (m, k) and a weight W (n, k) as it stands, or the gated half of it: silu of the
 * first half of W's outputs times the second. Float32 throughout.
 *
 * A lane is a row. Rows are copied to panels [k][LANES], and SIDE outputs of one panel are summed in registers, their
 * weights broadcast from where they lie. Every output is one chain of multiply-adds over k in ascending order, whatever
 * m, its lane, its panel and the number of threads: bits depend on the row and the weight alone.
 */
#include <stdlib.h>
#include "vectors.h"

enum { LANES = 16, SIDE = 6, GROUP = 96, ROOM = 40 << 10 };

typedef struct {
    Threads threads;
    const float *x, *w, *bias;
    float *out;
    long m, k, n;         /* n outputs, of 2 * n weights where they are gated */
    int gated, failed;
    long blocks, columns; /* a part of the work is one of the panels' blocks and one of the outputs' columns */
} Job;

/* a[SIDE][LANES] = x[k][LANES] times one weight each; meanwhile weights that come next are fetched from two places on. */
static inline void tile(const float *x, const float *const *w, long k, vec a[SIDE][2], const char *ahead,
                        const char *also, long step)
{
    const float *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3], *w4 = w[4], *w5 = w[5];
    vec s[SIDE][2] = {{{0}}};
#pragma GCC unroll 2
    for (long d = 0; d < k; d++, x += LANES) {
        if (d % 2 == 0) {
            __builtin_prefetch(ahead);
            __builtin_prefetch(also);
            ahead += step;
            also += step;
        }
        vec low = load(x), high = load(x + 8);
        IN_REGISTER(low);
        IN_REGISTER(high);
        s[0][0] += w0[d] * low; s[0][1] += w0[d] * high;
        s[1][0] += w1[d] * low; s[1][1] += w1[d] * high;
        s[2][0] += w2[d] * low; s[2][1] += w2[d] * high;
        s[3][0] += w3[d] * low; s[3][1] += w3[d] * high;
        s[4][0] += w4[d] * low; s[4][1] += w4[d] * high;
        s[5][0] += w5[d] * low; s[5][1] += w5[d] * high;
    }
    for (int i = 0; i < SIDE; i++) { a[i][0] = s[i][0]; a[i][1] = s[i][1]; }
}

/* sums[own][LANES] of the outputs from o on: SIDE of them, or half as many gated ones. Each of `count` panels fetches
 * its share of the next ones' weights. */
static void outputs(const Job *j, const float *x, long o, float *sums, long p, long count)
{
    const int own = j->gated ? SIDE / 2 : SIDE;
    const float *w[SIDE];
    vec a[SIDE][2];
    for (int i = 0; i < SIDE; i++) {
        long at = o + i % own < j->n ? o + i % own : j->n - 1;
        w[i] = j->w + (at + (i < own ? 0 : j->n)) * j->k;
    }
    const long step = 2 * SIDE / 2 * (long)sizeof *x / count, done = p * (j->k / 2) * step;
    const char *ahead = (const char *)(w[0] + own * j->k), *also = (const char *)(w[SIDE / 2] + own * j->k);
    tile(x, w, j->k, a, ahead + done, also + done, step);
    if (j->bias)
        for (int i = 0; i < SIDE; i++)
            for (int v = 0; v < 2; v++) a[i][v] += all(j->bias[(w[i] - j->w) / j->k]);
    for (int i = 0; i < own; i++)
        for (int v = 0; v < 2; v++)
            store(sums + i * LANES + 8 * v, j->gated ? gated(a[i][v], a[i + own][v]) : a[i][v]);
}

/* Panel p of x from [LANES][k] to [k][LANES]; what lies beyond the last row is 0. */
static void take(const Job *j, long p, float *to)
{
    for (long side = 0; side < LANES; side += 8, to += 8) {
        const long first = p * LANES + side, rows = j->m - first < 8 ? j->m - first : 8;
        long d = 0;
        for (; rows == 8 && d + 8 <= j->k; d += 8) {
            vec a[8];
            for (int r = 0; r < 8; r++) a[r] = load(j->x + (first + r) * j->k + d);
            transpose(a);
            for (int r = 0; r < 8; r++) store(to + (d + r) * LANES, a[r]);
        }
        for (; d < j->k; d++)
            for (long r = 0; r < 8; r++) to[d * LANES + r] = r < rows ? j->x[(first + r) * j->k + d] : 0;
    }
}

/* Outputs o … o + size - 1 of panel p from sums[size][LANES] to their rows. */
static void give(const Job *j, long p, long o, long size, const float *sums)
{
    for (long side = 0; side < LANES; side += 8)
        for (long c = 0; c < size; c += 8) {
            const long first = p * LANES + side, rows = j->m - first < 8 ? j->m - first : 8;
            const size_t bytes = (size_t)(size - c < 8 ? size - c : 8) * sizeof(float);
            vec a[8];
            for (int i = 0; i < 8; i++) a[i] = load(sums + (c + i) * LANES + side);
            transpose(a);
            for (long r = 0; r < rows; r++) {
                float *to = j->out + (first + r) * j->n + o + c;
                if (bytes == sizeof *a) store(to, a[r]);
                else memcpy(to, a + r, bytes);
            }
        }
}

/* One part of the work: some panels, copied to room, and some outputs of theirs. */
static void run_part(const Job *j, long part, float *room)
{
    const long panels = (j->m + LANES - 1) / LANES, groups = (j->n + GROUP - 1) / GROUP;
    const long block = part / j->columns, column = part % j->columns, step = j->gated ? SIDE / 2 : SIDE;
    const long from = panels * block / j->blocks, count = panels * (block + 1) / j->blocks - from;
    float *sums = room + count * LANES * j->k;
    for (long p = 0; p < count; p++) take(j, from + p, room + p * LANES * j->k);
    for (long g = groups * column / j->columns; g < groups * (column + 1) / j->columns; g++) {
        const long o = g * GROUP, size = j->n - o < GROUP ? j->n - o : GROUP;
        for (long i = 0; i < size; i += step)
            for (long p = 0; p < count; p++)
                outputs(j, room + p * LANES * j->k, o + i, sums + (p * GROUP + i) * LANES, p, count);
        for (long p = 0; p < count; p++) give(j, from + p, o, size, sums + p * GROUP * LANES);
    }
}

static void work(void *argument)
{
    Job *j = argument;
    const long panels = (j->m + LANES - 1) / LANES, most = (panels + j->blocks - 1) / j->blocks;
    long first, last;
    share(&j->threads, j->blocks * j->columns, &first, &last);
    float *room = aligned_alloc(64, (size_t)(most * LANES * (j->k + GROUP)) * sizeof *room);
    if (!room) { j->failed = 1; return; }
    for (long part = first; part < last; part++) run_part(j, part, room);
    free(room);
}

/* 0 if done, 1 if memory ran out. `parallel` runs a function in that many threads, as GOMP_parallel does. */
int multiply_rows(const float *x, const float *w, const float *bias, float *out, long m, long k, long n, int gated,
                  int threads, Parallel parallel, int (*thread_number)(void))
{
    Job job = {{threads, thread_number}, x, w, bias, out, m, k, n, gated, 0, 1, 1};
    if (!m) return 0;
    const long panels = (m + LANES - 1) / LANES, most = ROOM > LANES * k ? ROOM / (LANES * k) * threads : threads;
    job.blocks = (panels + most - 1) / most * threads; /* as many for each thread */
    if (job.blocks > panels) job.blocks = panels;
    if (job.blocks < threads) job.columns = (threads + job.blocks - 1) / job.blocks;
    run(work, &job, parallel);
    return job.failed;
}
