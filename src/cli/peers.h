/* Other libraries that compute the same attention, for comparison in the same run. Each is a program of its own, so that their
 * threads, allocators and crashes stay apart from ours and from each other's; bench/peers/README.md has the protocol. */
#ifndef TL_CLI_PEERS_H
#define TL_CLI_PEERS_H

#include "measure.h"

enum { PEERS_MAX = 24 };

typedef struct peer {
    char name[48], version[160];
    char reason[300]; /* why it is not there; "" while it is */
    int child;        /* 0: none */
    FILE *to, *from;
    double until; /* when its answers are wanted at the latest (samples_now); +Inf: after two minutes each */
} peer;

typedef struct peers {
    int count;
    peer list[PEERS_MAX];
    char directory[200]; /* of the tensors that they read and write */
    int threads;
    const char *isa;
    double until;
} peers;

/* What became of one peer on one shape. */
typedef struct peer_result {
    bool ran;
    char kernel[100];
    char reason[300];                   /* why it did not */
    double max_abs_error, rel_l2_error; /* against the exact result, in the rows that are checked */
    samples times;
    int repeats;
} peer_result;

/* Starts every peer of a list: lines "NAME COMMAND ...", # begins a comment. A peer that does not start is no fault: its
 * reason says why. isa: the instruction set that they are held to, as far as they can be; NULL: the machine's. until: when
 * everything should be done (samples_now), or +Inf. stop is due in any case. */
int peers_start(peers *p, const char *list, int threads, const char *isa, double until, fault *f);
void peers_stop(peers *p);

/* Hands a subject, whose exact result is known, to every peer and checks what it computes. results: one for each peer. */
int peers_open(peers *p, const subject *s, peer_result *results, fault *f);
/* Times every peer that runs the subject once. */
void peers_round(peers *p, peer_result *results);
void peers_close(peers *p);

#endif
