/* The element-wise steps of a decoder layer and the sums of its softmax, one row at a time: a row's bits depend on the
 * row alone. Float32. */
#include "vectors.h"

typedef struct {
    Threads threads;
    const float *x, *y, *z; /* inputs; their use differs */
    float *out;
    long rows, size, heads, x_stride; /* floats from row to row of x */
    float eps;
} Job;

/* out = x / sqrt(mean(x^2) + eps) * y, rows of `size`. */
static void norm_rows(void *argument)
{
    const Job *j = argument;
    long first, last, size = j->size, whole = size / 8 * 8;
    share(&j->threads, j->rows, &first, &last);
    for (long r = first; r < last; r++) {
        const float *x = j->x + r * j->x_stride;
        float *out = j->out + r * size;
        vec a = all(0), b = all(0), c = all(0), d = all(0);
        long i = 0;
        for (; i + 32 <= size; i += 32) {
            vec s = load(x + i), t = load(x + i + 8), u = load(x + i + 16), v = load(x + i + 24);
            a += s * s; b += t * t; c += u * u; d += v * v;
        }
        for (; i < whole; i += 8) a += load(x + i) * load(x + i);
        float sum = total((a + b) + (c + d));
        for (; i < size; i++) sum += x[i] * x[i];
        float scale = 1.0f / __builtin_sqrtf(sum / (float)size + j->eps);
        for (i = 0; i < whole; i += 8) store(out + i, load(x + i) * all(scale) * load(j->y + i));
        for (; i < size; i++) out[i] = x[i] * scale * j->y[i];
    }
}

/* Rows of x hold `size` gates, then as many ups. */
static void gate_rows(void *argument)
{
    const Job *j = argument;
    long first, last, size = j->size, whole = size / 8 * 8;
    share(&j->threads, j->rows, &first, &last);
    for (long r = first; r < last; r++) {
        const float *gate = j->x + r * j->x_stride, *up = gate + size;
        float *out = j->out + r * size;
        for (long i = 0; i < whole; i += 8) store(out + i, gated(load(gate + i), load(up + i)));
        if (whole < size) {
            float ends[3][8] = {{0}};
            size_t bytes = (size_t)(size - whole) * sizeof(float);
            memcpy(ends[0], gate + whole, bytes);
            memcpy(ends[1], up + whole, bytes);
            store(ends[2], gated(load(ends[0]), load(ends[1])));
            memcpy(out + whole, ends[2], bytes);
        }
    }
}

/* Rows of x hold `heads` of 2 * size floats; pair (i, i + size) turns by the angle whose cosine and sine are y and z. */
static void turn_rows(void *argument)
{
    const Job *j = argument;
    long first, last, size = j->size, whole = size / 8 * 8;
    share(&j->threads, j->rows, &first, &last);
    for (long r = first; r < last; r++) {
        const float *cosine = j->y + r * size, *sine = j->z + r * size;
        for (long h = 0; h < j->heads; h++) {
            const float *x = j->x + r * j->x_stride + h * 2 * size;
            float *out = j->out + (r * j->heads + h) * 2 * size;
            for (long i = 0; i < whole; i += 8) {
                vec a = load(x + i), b = load(x + size + i), c = load(cosine + i), s = load(sine + i);
                store(out + i, a * c - b * s);
                store(out + size + i, b * c + a * s);
            }
            for (long i = whole; i < size; i++) {
                out[i] = x[i] * cosine[i] - x[size + i] * sine[i];
                out[size + i] = x[size + i] * cosine[i] + x[i] * sine[i];
            }
        }
    }
}

/* out[r] = the largest of a row, out[rows + r] = its sum of e^(x - largest); not a number where a value is not. */
static void sum_rows(void *argument)
{
    const Job *j = argument;
    long first, last, size = j->size, whole = size / 8 * 8;
    share(&j->threads, j->rows, &first, &last);
    for (long r = first; r < last; r++) {
        const float *x = j->x + r * j->x_stride;
        float peak = x[0];
        vec high = all(peak), a = all(0), b = all(0);
        for (long i = 0; i < whole; i += 8) high = larger(load(x + i), high);
        for (int i = 0; i < 8; i++) peak = high[i] > peak ? high[i] : peak;
        for (long i = whole; i < size; i++) peak = x[i] > peak ? x[i] : peak;
        long i = 0;
        for (; i + 16 <= size; i += 16) {
            a += power(load(x + i) - all(peak));
            b += power(load(x + i + 8) - all(peak));
        }
        for (; i < whole; i += 8) a += power(load(x + i) - all(peak));
        float sum = total(a + b);
        for (; i < size; i++) sum += power(all(x[i] - peak))[0];
        j->out[r] = sum == sum ? peak : sum;
        j->out[j->rows + r] = sum;
    }
}

void norm(const float *x, const float *weight, float *out, long rows, long size, float eps, int threads,
          Parallel parallel, int (*thread_number)(void))
{
    Job job = {{threads, thread_number}, x, weight, 0, out, rows, size, 1, size, eps};
    run(norm_rows, &job, parallel);
}

void gate(const float *x, float *out, long rows, long size, int threads, Parallel parallel, int (*thread_number)(void))
{
    Job job = {{threads, thread_number}, x, 0, 0, out, rows, size, 1, 2 * size, 0};
    run(gate_rows, &job, parallel);
}

void turn(const float *x, const float *cosine, const float *sine, float *out, long rows, long heads, long size,
          long x_stride, int threads, Parallel parallel, int (*thread_number)(void))
{
    Job job = {{threads, thread_number}, x, cosine, sine, out, rows, size, heads, x_stride, 0};
    run(turn_rows, &job, parallel);
}

/* out (2, rows): each row's largest, then its sum of e^(x - largest). */
void sum_up(const float *x, float *out, long rows, long size, int threads, Parallel parallel, int (*thread_number)(void))
{
    Job job = {{threads, thread_number}, x, 0, 0, out, rows, size, 1, size, 0};
    run(sum_rows, &job, parallel);
}
