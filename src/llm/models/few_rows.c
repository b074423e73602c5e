/* out = x W^T + bias for few rows x (m, k) and a weight W (n, k) that was packed once; float32 throughout.
 *
 * W is packed in panels of 16 outputs, each [k][16], zero-padded at the end. Rows are taken in blocks of up to 6, so
 * that a block's sums stay in registers, and copied to [k][rows of the block]. Every output is one chain of
 * multiply-adds over k in ascending order, whatever m, its row, its block and the number of threads: bits depend on
 * the row and the weight alone.
 */
#include <stdlib.h>
#include "vectors.h"

enum { BLOCK = 6, WIDTH = 16, CHUNK = 768, GROUP = 96, LINE = 64 };

typedef struct {
    Threads threads;
    const float *x, *packed, *bias;
    float *out;
    long m, k, n;
    int failed;
} Job;

/* sums[rows][16] += x[k][rows] * w[k][16]; meanwhile what comes next is fetched from `ahead` on. */
static inline __attribute__((always_inline)) void tile(const int rows, const float *x, const float *w, long k,
                                                       float *sums, const char *ahead)
{
    vec a[BLOCK][2];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) { a[r][0] = load(sums + r * WIDTH); a[r][1] = load(sums + r * WIDTH + 8); }
    for (long i = 0; i < k; i++, x += rows, w += WIDTH) {
        if ((i & 3) == 0) __builtin_prefetch(ahead += LINE);
        vec w0 = load(w), w1 = load(w + 8);
        IN_REGISTER(w0);
        IN_REGISTER(w1);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) { a[r][0] += x[r] * w0; a[r][1] += x[r] * w1; }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) { store(sums + r * WIDTH, a[r][0]); store(sums + r * WIDTH + 8, a[r][1]); }
}

static void any_tile(int rows, const float *x, const float *w, long k, float *sums, const char *ahead)
{
    switch (rows) {
    case 1: tile(1, x, w, k, sums, ahead); break;
    case 2: tile(2, x, w, k, sums, ahead); break;
    case 3: tile(3, x, w, k, sums, ahead); break;
    case 4: tile(4, x, w, k, sums, ahead); break;
    case 5: tile(5, x, w, k, sums, ahead); break;
    default: tile(6, x, w, k, sums, ahead);
    }
}

/* One thread's panels for a group of m rows; room holds m * k copied inputs and m * 16 sums. */
static void group(const Job *j, long row, long m, long first, long last, float *room)
{
    long k = j->k, n = j->n, blocks = (m + BLOCK - 1) / BLOCK;
    float *sums = room + m * k;
    for (long b = 0; b < blocks; b++) {
        long from = m * b / blocks, rows = m * (b + 1) / blocks - from;
        for (long r = 0; r < rows; r++)
            for (long i = 0; i < k; i++) room[from * k + i * rows + r] = j->x[(row + from + r) * k + i];
    }
    for (long p = first; p < last; p++) {
        const float *w = j->packed + p * k * WIDTH;
        memset(sums, 0, (size_t)(m * WIDTH) * sizeof *sums);
        for (long i = 0; i < k; i += CHUNK) {
            long size = k - i < CHUNK ? k - i : CHUNK;
            const char *ahead = (const char *)(w + (i + size) * WIDTH);
            for (long b = 0; b < blocks; b++) {
                long from = m * b / blocks, rows = m * (b + 1) / blocks - from;
                any_tile(rows, room + from * k + i * rows, w + i * WIDTH, size, sums + from * WIDTH, ahead);
                ahead += size / 4 * LINE;
            }
        }
        long width = n - p * WIDTH < WIDTH ? n - p * WIDTH : WIDTH;
        for (long r = 0; r < m; r++)
            for (long c = 0; c < width; c++)
                j->out[(row + r) * n + p * WIDTH + c] = sums[r * WIDTH + c] + (j->bias ? j->bias[p * WIDTH + c] : 0);
    }
}

static void work(void *argument)
{
    Job *j = argument;
    long first, last, most = j->m < GROUP ? j->m : GROUP;
    share(&j->threads, (j->n + WIDTH - 1) / WIDTH, &first, &last);
    float *room = malloc((size_t)(most * (j->k + WIDTH)) * sizeof *room);
    if (!room) { j->failed = 1; return; }
    for (long row = 0; row < j->m; row += GROUP)
        group(j, row, j->m - row < GROUP ? j->m - row : GROUP, first, last, room);
    free(room);
}

/* 0 if done, 1 if memory ran out. `parallel` runs a function in that many threads, as GOMP_parallel does. */
int multiply(const float *x, const float *packed, const float *bias, float *out, long m, long k, long n, int threads,
             Parallel parallel, int (*thread_number)(void))
{
    Job job = {{threads, thread_number}, x, packed, bias, out, m, k, n, 0};
    run(work, &job, parallel);
    return job.failed;
}

void pack(const float *w, float *packed, long k, long n)
{
    for (long p = 0; p * WIDTH < n; p++)
        for (long c = 0; c < WIDTH; c++)
            for (long i = 0; i < k; i++)
                packed[(p * k + i) * WIDTH + c] = p * WIDTH + c < n ? w[(p * WIDTH + c) * k + i] : 0;
}
