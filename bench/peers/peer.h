/* The protocol of README.md for peers written in C. */
#ifndef TL_PEERS_PEER_H
#define TL_PEERS_PEER_H

#include <stddef.h>
#include <stdint.h>

typedef struct peer_shape {
    char directory[256], dtype[8];
    int64_t batch, heads_q, heads_k, lq, lk, d, dv;
    int causal, threads;
} peer_shape;

/* Functions return NULL, or the reason why not. */
typedef struct peer_program {
    const char *(*hello)(int threads, char version[160]);
    const char *(*open)(const peer_shape *shape, char kernel[100]);
    const char *(*run)(void);
    void (*output)(float *o); /* of the last run, dense [batch][token][head][dim] */
    void (*close)(void);
} peer_program;

/* Answers requests until stdin ends; what main returns. */
int peer_serve(const peer_program *program);

/* A tensor of the shape, "q", "k" or "v", as [batch][head][token][dim]; from malloc, NULL where it cannot be read. */
void *peer_read(const peer_shape *shape, const char *name);

/* Bytes of an element. */
size_t peer_element(const peer_shape *shape);

/* Of two orders: dense [batch][head][token][dim] to [batch][token][head][dim], elements of `size` bytes. */
void peer_swap_heads(void *to, const void *from, int64_t batch, int64_t heads, int64_t tokens, int64_t dim,
                     size_t size);

#endif
