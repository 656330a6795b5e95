/* oneDNN's graph API: Q K^T, scale, an explicit additive mask where causal, softmax, P V; one fused partition. */
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_graph.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer.h"

enum { Q, K, RAW, SCALE, SCALED, MASK, MASKED, WEIGHTS, V, O, TENSORS };

static dnnl_engine_t engine;
static dnnl_stream_t stream;
static dnnl_graph_compiled_partition_t compiled;
static dnnl_graph_logical_tensor_t logical[TENSORS];
static dnnl_memory_t memories[TENSORS]; /* oneDNN's own, so that its run time knows them */
static void *data[TENSORS];
static dnnl_graph_tensor_t inputs[TENSORS], result;
static size_t num_inputs;
static peer_shape shape;

static const char *hello(int threads, char version[160])
{
    const dnnl_version_t *v = dnnl_version();
    (void)threads; /* its threads follow the processors that the process may use */
    (void)snprintf(version, 160, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success) return "it has no CPU engine here";
    return dnnl_stream_create(&stream, engine, dnnl_stream_in_order) == dnnl_success ? NULL : "it has no stream here";
}

static void close_shape(void)
{
    for (int i = 0; i < TENSORS; i++) {
        if (inputs[i]) (void)dnnl_graph_tensor_destroy(inputs[i]);
        if (memories[i]) (void)dnnl_memory_destroy(memories[i]);
        inputs[i] = NULL;
        memories[i] = NULL;
        data[i] = NULL;
    }
    if (result) (void)dnnl_graph_tensor_destroy(result);
    if (compiled) (void)dnnl_graph_compiled_partition_destroy(compiled);
    result = NULL;
    compiled = NULL;
    num_inputs = 0;
}

static dnnl_data_type_t type_of(const char *dtype)
{
    return strcmp(dtype, "f32") == 0 ? dnnl_f32 : strcmp(dtype, "bf16") == 0 ? dnnl_bf16 : dnnl_f16;
}

/* Heads of a group stand in a dimension of their own, along which K and V are broadcast. between: the type of scores. */
static int describe(dnnl_data_type_t between)
{
    const dnnl_data_type_t type = type_of(shape.dtype);
    const int64_t b = shape.batch, hk = shape.heads_k, g = shape.heads_q / shape.heads_k, lq = shape.lq, lk = shape.lk;
    const struct {
        dnnl_data_type_t type;
        int64_t dims[5];
    } tensors[TENSORS] = {
        [Q] = {type, {b, hk, g, lq, shape.d}},    [K] = {type, {b, hk, 1, lk, shape.d}},
        [RAW] = {between, {b, hk, g, lq, lk}},    [SCALE] = {type, {1, 1, 1, 1, 1}},
        [SCALED] = {between, {b, hk, g, lq, lk}}, [MASK] = {type, {1, 1, 1, lq, lk}},
        [MASKED] = {between, {b, hk, g, lq, lk}}, [WEIGHTS] = {type, {b, hk, g, lq, lk}},
        [V] = {type, {b, hk, 1, lk, shape.dv}},   [O] = {type, {b, hk, g, lq, shape.dv}},
    };
    int good = 1;
    for (int i = 0; i < TENSORS; i++) {
        dnnl_dims_t dims = {0};
        int ndims = 0; /* without groups the usual four dimensions */
        for (int c = 0; c < 5; c++)
            if (c != 2 || g > 1) dims[ndims++] = tensors[i].dims[c];
        good = good && dnnl_graph_logical_tensor_init_with_dims(&logical[i], (size_t)i, tensors[i].type, ndims, dims,
                                                                dnnl_graph_layout_type_strided,
                                                                dnnl_graph_tensor_property_variable) == dnnl_success;
    }
    return good;
}

static int add_op(dnnl_graph_graph_t graph, dnnl_graph_op_kind_t kind, int a, int b, int to)
{
    dnnl_graph_op_t op;
    const int64_t last = -1;
    const uint8_t yes = 1;
    int good = dnnl_graph_op_create(&op, (size_t)to, kind, "op") == dnnl_success;
    if (!good) return 0;
    good = dnnl_graph_op_add_input(op, &logical[a]) == dnnl_success;
    if (b >= 0) good = good && dnnl_graph_op_add_input(op, &logical[b]) == dnnl_success;
    good = good && dnnl_graph_op_add_output(op, &logical[to]) == dnnl_success;
    if (kind == dnnl_graph_op_softmax)
        good = good && dnnl_graph_op_set_attr_s64(op, dnnl_graph_op_attr_axis, &last, 1) == dnnl_success;
    if (to == RAW)
        good = good && dnnl_graph_op_set_attr_bool(op, dnnl_graph_op_attr_transpose_b, &yes, 1) == dnnl_success;
    good = good && dnnl_graph_add_op(graph, op) == dnnl_success;
    (void)dnnl_graph_op_destroy(op);
    return good;
}

static const char not_accepted[] = "its graph is not accepted";

/* The compiled partition, and its inputs in its own order. */
static const char *compile(dnnl_graph_graph_t graph)
{
    const dnnl_graph_logical_tensor_t *in[TENSORS], *out[1] = {&logical[O]};
    dnnl_graph_logical_tensor_t ports[TENSORS];
    dnnl_graph_partition_t partition;
    size_t count = 0;
    int good = add_op(graph, dnnl_graph_op_matmul, Q, K, RAW) &&
               add_op(graph, dnnl_graph_op_multiply, RAW, SCALE, SCALED) &&
               (!shape.causal || add_op(graph, dnnl_graph_op_add, SCALED, MASK, MASKED)) &&
               add_op(graph, dnnl_graph_op_softmax, shape.causal ? MASKED : SCALED, -1, WEIGHTS) &&
               add_op(graph, dnnl_graph_op_matmul, WEIGHTS, V, O);
    if (!good || dnnl_graph_graph_finalize(graph) != dnnl_success ||
        dnnl_graph_graph_filter(graph, dnnl_graph_partition_policy_fusion) != dnnl_success ||
        dnnl_graph_graph_get_partition_num(graph, &count) != dnnl_success)
        return not_accepted;
    if (count != 1) return "it does not fuse this attention";
    good = dnnl_graph_graph_get_partitions(graph, 1, &partition) == dnnl_success;
    good = good && dnnl_graph_partition_get_input_ports_num(partition, &num_inputs) == dnnl_success;
    good = good && num_inputs <= TENSORS &&
           dnnl_graph_partition_get_input_ports(partition, num_inputs, ports) == dnnl_success;
    if (!good) return "its partition cannot be read";
    for (size_t i = 0; i < num_inputs; i++) {
        in[i] = &logical[ports[i].id];
        if (dnnl_graph_tensor_create(&inputs[i], in[i], engine, data[ports[i].id]) != dnnl_success)
            return "its tensors cannot be made";
    }
    if (dnnl_graph_tensor_create(&result, &logical[O], engine, data[O]) != dnnl_success)
        return "its tensors cannot be made";
    if (dnnl_graph_compiled_partition_create(&compiled, partition) != dnnl_success ||
        dnnl_graph_partition_compile(partition, compiled, num_inputs, in, 1, out, engine) != dnnl_success)
        return "it does not compile this attention for this machine";
    (void)dnnl_graph_partition_destroy(partition);
    return NULL;
}

static void *allocate(int i)
{
    dnnl_memory_desc_t desc;
    size_t size = 0;
    if (dnnl_graph_logical_tensor_get_mem_size(&logical[i], &size) != dnnl_success) return NULL;
    const dnnl_dims_t dims = {(int64_t)size};
    if (dnnl_memory_desc_create_with_tag(&desc, 1, dims, dnnl_u8, dnnl_a) != dnnl_success) return NULL;
    const int good = dnnl_memory_create(&memories[i], desc, engine, DNNL_MEMORY_ALLOCATE) == dnnl_success &&
                     dnnl_memory_get_data_handle(memories[i], &data[i]) == dnnl_success;
    (void)dnnl_memory_desc_destroy(desc);
    return good ? data[i] : NULL;
}

static uint16_t half_of(float x) /* numbers that both half types hold */
{
    union {
        float f;
        uint32_t i;
    } bits = {.f = x};
    if (strcmp(shape.dtype, "bf16") == 0) return (uint16_t)((bits.i + 0x7fff + ((bits.i >> 16) & 1)) >> 16);
    _Float16 half = (_Float16)x;
    uint16_t to;
    memcpy(&to, &half, sizeof to);
    return to;
}

static void put(void *to, int64_t index, float x)
{
    if (peer_element(&shape) == 4)
        ((float *)to)[index] = x;
    else
        ((uint16_t *)to)[index] = half_of(x);
}

static const char *fill(int i, const char *name, int64_t count)
{
    void *from = peer_read(&shape, name);
    if (!from || !allocate(i)) return "out of memory";
    memcpy(data[i], from, (size_t)count * peer_element(&shape));
    free(from);
    return NULL;
}

static const char *fill_all(void)
{
    const peer_shape *s = &shape;
    const char *reason = fill(Q, "q", s->batch * s->heads_q * s->lq * s->d);
    if (!reason) reason = fill(K, "k", s->batch * s->heads_k * s->lk * s->d);
    if (!reason) reason = fill(V, "v", s->batch * s->heads_k * s->lk * s->dv);
    if (!reason && (!allocate(SCALE) || !allocate(O) || (s->causal && !allocate(MASK)))) reason = "out of memory";
    if (reason) return reason;
    put(data[SCALE], 0, 1 / sqrtf((float)s->d));
    for (int64_t i = 0; s->causal && i < s->lq; i++)
        for (int64_t j = 0; j < s->lk; j++) put(data[MASK], i * s->lk + j, j <= i ? 0 : -INFINITY);
    return NULL;
}

static const char *open_graph(dnnl_data_type_t between)
{
    dnnl_graph_graph_t graph;
    if (!describe(between)) return "its tensors cannot be described";
    const char *reason = fill_all();
    if (reason) return reason;
    if (dnnl_graph_graph_create(&graph, dnnl_cpu) != dnnl_success) return "its graph cannot be made";
    reason = compile(graph);
    (void)dnnl_graph_graph_destroy(graph);
    return reason;
}

/* Scores in f32, as its documentation has them; older versions want one type for everything. */
static const char *open_shape(const peer_shape *s, char kernel[100])
{
    const dnnl_data_type_t types[] = {dnnl_f32, type_of(s->dtype)};
    const char *reason = not_accepted;
    int i = 0;
    for (; i < 2 && reason == not_accepted; i++) {
        close_shape();
        shape = *s;
        reason = open_graph(types[i]);
    }
    (void)snprintf(kernel, 100, "graph SDPA, one partition%s%s", s->causal ? ", explicit mask" : "",
                   i == 1 ? "" : ", scores of the inputs' type");
    return reason;
}

static const char *run(void)
{
    if (dnnl_graph_compiled_partition_execute(compiled, stream, num_inputs, (const_dnnl_graph_tensor_t *)inputs, 1,
                                              (const_dnnl_graph_tensor_t[]){result}) != dnnl_success ||
        dnnl_stream_wait(stream) != dnnl_success)
        return "it failed";
    return NULL;
}

static float value_of(int64_t index)
{
    if (peer_element(&shape) == 4) return ((const float *)data[O])[index];
    const uint16_t half = ((const uint16_t *)data[O])[index];
    union {
        uint32_t i;
        float f;
    } bits = {.i = (uint32_t)half << 16};
    if (strcmp(shape.dtype, "bf16") == 0) return bits.f;
    _Float16 x;
    memcpy(&x, &half, sizeof x);
    return (float)x;
}

static void output(float *to)
{
    const int64_t count = shape.batch * shape.heads_q * shape.lq * shape.dv;
    float *o = malloc(sizeof *o * (size_t)(count + 1));
    if (!o) return;
    for (int64_t i = 0; i < count; i++) o[i] = value_of(i);
    peer_swap_heads(to, o, shape.batch, shape.heads_q, shape.lq, shape.dv, sizeof *o);
    free(o);
}

int main(void)
{
    const peer_program program = {hello, open_shape, run, output, close_shape};
    return peer_serve(&program);
}
