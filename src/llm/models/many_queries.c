/* Attention of many query positions over the branches of a prefix tree. Float32; head_dim is a multiple of 4.
 *
 * A lane is one query head at one position. LANES of them stand side by side in vectors, so that every lane reads its
 * keys in ascending order, KEYS at a time from position 0 on, through a running softmax (Milakov & Gimelshein 2018;
 * Dao et al. 2022) of its own: bits depend on the lane's query, keys and values alone, whatever its neighbours and the
 * number of threads. A key a lane may not see weighs exactly 0.
 */
#include <stdlib.h>
#include "vectors.h"

enum { VECS = 3, LANES = 8 * VECS, TILES = STRIP / LANES, KEYS = 64, SIDE = 4 };

typedef struct {
    Threads threads;
    const float *q;     /* (rows, kv_heads * group, head_dim) */
    const float *keys, *values; /* pieces of head_dim; where both of a position lie, its path tells */
    float *out;         /* as q, without gaps */
    const long *rows, *positions; /* (queries) */
    const long *paths;  /* the pieces of the first head by position, one sequence after the other */
    const long *strips; /* (num_strips, 3): first lane, as query * group + head; up to STRIP lanes; start of their path */
    long num_strips, kv_heads, group, head_dim, q_stride;
    long head_step;     /* pieces from one head to the next */
    long window;        /* a query sees its last so many positions; 0 for all */
    long next;          /* the first strip nobody has taken */
    int failed;
} Job;

typedef struct {
    float peak[LANES], sum[LANES], last[LANES]; /* of the scores in bits; of the weights; the position it stands at */
    long from[LANES], to[LANES];                /* its place in q and out, in floats; -1 where the lane is idle */
} Tile;

static inline void add(vec *sums, float s, vec x, vec y, vec z)
{
    vec b = all(s);
    sums[0] += b * x;
    sums[1] += b * y;
    sums[2] += b * z;
}

/* s[n][LANES] = keys · q of n keys, and of what fills up the last SIDE, and one tile's queries q[dim][LANES]. */
static inline void score(const float *q, const float *const *keys, long n, long dim, float *s)
{
    for (long k = 0; k < n; k += SIDE, s += SIDE * LANES) {
        const float *k0 = keys[k], *k1 = keys[k + 1], *k2 = keys[k + 2], *k3 = keys[k + 3], *at = q;
        vec a[SIDE][VECS] = {{{0}}};
#pragma GCC unroll 2
        for (long d = 0; d < dim; d++, at += LANES) {
            vec x = load(at), y = load(at + 8), z = load(at + 16);
            IN_REGISTER(x);
            IN_REGISTER(y);
            IN_REGISTER(z);
            add(a[0], k0[d], x, y, z);
            add(a[1], k1[d], x, y, z);
            add(a[2], k2[d], x, y, z);
            add(a[3], k3[d], x, y, z);
        }
#pragma GCC unroll 4
        for (int i = 0; i < SIDE; i++)
#pragma GCC unroll 3
            for (int v = 0; v < VECS; v++) store(s + i * LANES + 8 * v, a[i][v]);
    }
}

/* o[dim][LANES] = o * shrink + values · w of n values and their weights w[n][LANES]. */
static inline void mix(const float *w, const float *const *values, long n, long dim, float *o, const vec *shrink)
{
    for (long d = 0; d < dim; d += SIDE, o += SIDE * LANES) {
        const float *at = w;
        vec a[SIDE][VECS];
#pragma GCC unroll 4
        for (int i = 0; i < SIDE; i++)
#pragma GCC unroll 3
            for (int v = 0; v < VECS; v++) a[i][v] = load(o + i * LANES + 8 * v) * shrink[v];
#pragma GCC unroll 2
        for (long k = 0; k < n; k++, at += LANES) {
            const float *value = values[k] + d;
            vec x = load(at), y = load(at + 8), z = load(at + 16);
            IN_REGISTER(x);
            IN_REGISTER(y);
            IN_REGISTER(z);
#pragma GCC unroll 4
            for (int i = 0; i < SIDE; i++) add(a[i], value[i], x, y, z);
        }
#pragma GCC unroll 4
        for (int i = 0; i < SIDE; i++)
#pragma GCC unroll 3
            for (int v = 0; v < VECS; v++) store(o + i * LANES + 8 * v, a[i][v]);
    }
}

/* Scores s[n][LANES] of the keys from position `from` on become weights beside the new peak; shrink[] is what the old
 * sums are worth beside it. */
static inline void weigh(const Job *j, Tile *t, long from, long n, float *s, vec *shrink)
{
    long first = (long)t->last[0], last = (long)t->last[LANES - 1];
    if (from + n - 1 > first || (j->window && from + j->window <= last))
        for (long k = 0; k < n; k++)
            for (int v = 0; v < LANES; v += 8) {
                vec own = load(t->last + v), x = load(s + k * LANES + v), position = all((float)(from + k));
                x = choose(position > own, all(-__builtin_inff()), x);
                if (j->window) x = choose(position + all((float)j->window) <= own, all(-__builtin_inff()), x);
                store(s + k * LANES + v, x);
            }
    vec peak[VECS], sum[VECS];
    for (int v = 0; v < VECS; v++) { peak[v] = load(t->peak + 8 * v); sum[v] = all(0); }
    for (long k = 0; k < n; k++)
        for (int v = 0; v < VECS; v++) peak[v] = larger(load(s + k * LANES + 8 * v), peak[v]);
    for (int v = 0; v < VECS; v++) {
        shrink[v] = power_of_two(load(t->peak + 8 * v) - peak[v]);
        store(t->peak + 8 * v, peak[v]);
    }
    for (long k = 0; k < n; k++)
        for (int v = 0; v < VECS; v++) {
            vec w = power_of_two(load(s + k * LANES + 8 * v) - peak[v]);
            store(s + k * LANES + 8 * v, w);
            sum[v] += w;
        }
    for (int v = 0; v < VECS; v++) store(t->sum + 8 * v, load(t->sum + 8 * v) * shrink[v] + sum[v]);
}

static void begin_tile(const Job *j, Tile *t, long first, long last, long head, float *q, float *o)
{
    const long dim = j->head_dim;
    const float scale = 1.44269504f / __builtin_sqrtf((float)dim);
    for (long l = 0; l < LANES; l++) {
        int idle = first + l >= last;
        long lane = idle ? last - 1 : first + l, query = lane / j->group, place = head * j->group + lane % j->group;
        t->from[l] = j->rows[query] * j->q_stride + place * dim;
        t->to[l] = idle ? -1 : (j->rows[query] * j->kv_heads * j->group + place) * dim;
        t->last[l] = (float)j->positions[query];
        t->peak[l] = -1e30f;
        t->sum[l] = 0;
    }
    for (long l = 0; l < LANES; l += 8) {
        long d = 0;
        for (; d + 8 <= dim; d += 8) {
            vec a[8];
            for (int i = 0; i < 8; i++) a[i] = load(j->q + t->from[l + i] + d) * all(scale);
            transpose(a);
            for (int i = 0; i < 8; i++) store(q + (d + i) * LANES + l, a[i]);
        }
        for (; d < dim; d++)
            for (long i = l; i < l + 8; i++) q[d * LANES + i] = j->q[t->from[i] + d] * scale;
    }
    memset(o, 0, (size_t)(dim * LANES) * sizeof *o);
}

static void end_tile(const Job *j, const Tile *t, const float *o)
{
    for (long l = 0; l < LANES; l += 8) {
        const vec share = all(1) / load(t->sum + l);
        long d = 0;
        for (; d + 8 <= j->head_dim; d += 8) {
            vec a[8];
            for (int i = 0; i < 8; i++) a[i] = load(o + (d + i) * LANES + l) * share;
            transpose(a);
            for (int i = 0; i < 8; i++)
                if (t->to[l + i] >= 0) store(j->out + t->to[l + i] + d, a[i]);
        }
        for (; d < j->head_dim; d++)
            for (long i = 0; i < 8; i++)
                if (t->to[l + i] >= 0) j->out[t->to[l + i] + d] = o[d * LANES + l + i] * share[i];
    }
}

/* Up to TILES tiles of one key/value head, which read each block of keys together. */
static void run_strip(const Job *j, const long *strip, long head, float *room)
{
    const long dim = j->head_dim, lanes = strip[1], *path = j->paths + strip[2], size = dim * LANES;
    const long first = j->positions[strip[0] / j->group], end = j->positions[(strip[0] + lanes - 1) / j->group] + 1;
    const long start = j->window && first + 1 > j->window ? (first + 1 - j->window) / KEYS * KEYS : 0;
    float *q = room, *o = q + TILES * size, *s = o + TILES * size;
    const float *keys[KEYS], *values[KEYS];
    Tile tiles[TILES];
    for (long i = 0; i * LANES < lanes; i++)
        begin_tile(j, tiles + i, strip[0] + i * LANES, strip[0] + lanes, head, q + i * size, o + i * size);
    for (long from = start; from < end; from += KEYS) {
        for (long k = 0; k < KEYS; k++) {
            long at = from + k < end ? from + k : end - 1;
            keys[k] = j->keys + (path[at] + head * j->head_step) * dim;
            values[k] = j->values + (path[at] + head * j->head_step) * dim;
        }
        for (long i = 0; i * LANES < lanes; i++) {
            long n = (long)tiles[i].last[LANES - 1] + 1 - from; /* keys that any of its lanes may see */
            vec shrink[VECS];
            if (n <= 0) continue;
            n = n < KEYS ? n : KEYS;
            score(q + i * size, keys, n, dim, s);
            weigh(j, tiles + i, from, n, s, shrink);
            mix(s, values, n, dim, o + i * size, shrink);
        }
    }
    for (long i = 0; i * LANES < lanes; i++) end_tile(j, tiles + i, o + i * size);
}

static void work(void *argument)
{
    Job *j = argument;
    float *room = aligned_alloc(64, (size_t)((2 * TILES * j->head_dim + KEYS) * LANES + 15) / 16 * 64);
    if (!room) { j->failed = 1; return; }
    for (;;) {
        long i = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (i >= j->num_strips * j->kv_heads) break;
        const long *strip = j->strips + 3 * (i % j->num_strips);
        run_strip(j, strip, i / j->num_strips, room);
    }
    free(room);
}

/* 0 if done, 1 if memory ran out. `parallel` runs a function in that many threads, as GOMP_parallel does. */
int attend_branches(const float *q, const float *keys, const float *values, float *out, const long *rows,
                    const long *positions, const long *paths, const long *strips, long num_strips, long kv_heads,
                    long group, long head_dim, long q_stride, long head_step, long window, int threads,
                    Parallel parallel, int (*thread_number)(void))
{
    Job job = {{threads, thread_number}, q, keys, values, out, rows, positions, paths, strips, num_strips, kv_heads,
               group, head_dim, q_stride, head_step, window, 0, 0};
    run(work, &job, parallel);
    return job.failed;
}
