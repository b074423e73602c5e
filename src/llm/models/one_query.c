/* Attention of one query position of each row over its own keys and values, which lie in tiles of `tile` positions.
 *
 * A row's sums run over its own positions in ascending order, whatever the other rows and the number of threads: bits
 * depend on the row alone. Float32; head_dim is a multiple of 8.
 */
#include <stdlib.h>
#include "vectors.h"

typedef struct {
    Threads threads;
    const float *q, *k, *v;  /* q (rows, kv_heads * group, head_dim); k, v (rows, kv_heads, head_dim), the new position's */
    float *keys, *values;    /* (tiles, kv_heads, tile, head_dim) */
    float *out;              /* as q */
    const long *table;       /* (rows, width): each row's tiles in order of position */
    const long *first, *last; /* (rows): the positions it sees; the last one is the new one */
    long rows, kv_heads, group, head_dim, tile, width;
    long q_stride, k_stride, v_stride; /* floats from row to row */
    int failed;
} Job;

/* Where a row's key or value of one head at a position begins; those of the positions after it in its tile follow. */
static inline long place(const Job *j, long row, long head, long position, long dim)
{
    long tile = j->table[row * j->width + position / j->tile];
    return ((tile * j->kv_heads + head) * j->tile + position % j->tile) * dim;
}

/* How many of `left` positions from this one on lie in its tile. */
static inline long in_tile(const Job *j, long position, long left)
{
    long rest = j->tile - position % j->tile;
    return rest < left ? rest : left;
}

/* One row and key/value head; room holds the scores of one query head. */
static inline __attribute__((always_inline)) void attend_head(const Job *j, long row, long head, const long dim, float *room)
{
    long from = j->first[row], n = j->last[row] - from + 1, padded = (n + 7) / 8 * 8;
    long to = place(j, row, head, j->last[row], dim);
    memcpy(j->keys + to, j->k + row * j->k_stride + head * dim, (size_t)dim * sizeof(float));
    memcpy(j->values + to, j->v + row * j->v_stride + head * dim, (size_t)dim * sizeof(float));
    float scale = 1.0f / __builtin_sqrtf((float)dim);
    for (long g = 0; g < j->group; g++) {
        const float *q = j->q + row * j->q_stride + (head * j->group + g) * dim;
        float *out = j->out + ((row * j->kv_heads + head) * j->group + g) * dim, peak = -3.4e38f;
        for (long i = 0, stop = 0; i < n;) {
            const float *key = j->keys + place(j, row, head, from + i, dim);
            for (stop += in_tile(j, from + i, n - i); i < stop; i++, key += dim) {
                vec a = all(0), b = all(0);
                for (long d = 0; d + 8 < dim; d += 16) { a += load(q + d) * load(key + d); b += load(q + d + 8) * load(key + d + 8); }
                if (dim % 16) a += load(q + dim - 8) * load(key + dim - 8);
                room[i] = total(a + b) * scale;
                peak = room[i] > peak ? room[i] : peak;
            }
        }
        for (long i = n; i < padded; i++) room[i] = -3.4e38f;
        vec mass = all(0);
        for (long i = 0; i < padded; i += 8) {
            vec w = power(load(room + i) - all(peak));
            store(room + i, w);
            if (i + 8 <= n) mass += w;
        }
        float sum = total(mass);
        for (long i = n / 8 * 8; i < n; i++) sum += room[i];
        for (long d = 0; d < dim; d += 64) {
            vec a[8] = {all(0), all(0), all(0), all(0), all(0), all(0), all(0), all(0)};
            const long parts = dim - d < 64 ? (dim - d) / 8 : 8;
            for (long i = 0, stop = 0; i < n;) {
                const float *value = j->values + place(j, row, head, from + i, dim) + d;
                for (stop += in_tile(j, from + i, n - i); i < stop; i++, value += dim) {
                    vec w = all(room[i]);
                    if (parts == 8) {
#pragma GCC unroll 8
                        for (int p = 0; p < 8; p++) a[p] += w * load(value + 8 * p);
                    } else {
                        for (int p = 0; p < parts; p++) a[p] += w * load(value + 8 * p);
                    }
                }
            }
            for (int p = 0; p < parts; p++) store(out + d + 8 * p, a[p] / all(sum));
        }
    }
}

static void work(void *argument)
{
    Job *j = argument;
    long first, last, longest = 0;
    share(&j->threads, j->rows * j->kv_heads, &first, &last);
    for (long r = 0; r < j->rows; r++)
        longest = j->last[r] - j->first[r] + 1 > longest ? j->last[r] - j->first[r] + 1 : longest;
    float *room = malloc((size_t)(longest + 8) * sizeof *room);
    if (!room) { j->failed = 1; return; }
    for (long i = first; i < last; i++) {
        if (j->head_dim == 64) attend_head(j, i / j->kv_heads, i % j->kv_heads, 64, room);
        else if (j->head_dim == 128) attend_head(j, i / j->kv_heads, i % j->kv_heads, 128, room);
        else attend_head(j, i / j->kv_heads, i % j->kv_heads, j->head_dim, room);
    }
    free(room);
}

/* 0 if done, 1 if memory ran out. `parallel` runs a function in that many threads, as GOMP_parallel does. */
int attend(const float *q, const float *k, const float *v, float *keys, float *values, float *out, const long *table,
           const long *first, const long *last, long rows, long kv_heads, long group, long head_dim, long tile, long width,
           long q_stride, long k_stride, long v_stride, int threads, Parallel parallel, int (*thread_number)(void))
{
    Job job = {{threads, thread_number}, q, k, v, keys, values, out, table, first, last, rows, kv_heads, group, head_dim, tile, width,
               q_stride, k_stride, v_stride, 0};
    run(work, &job, parallel);
    return job.failed;
}
