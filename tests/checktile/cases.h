/* The cases that checktile runs: problem and policy strings that `tilelamp run` accepts. */
#ifndef TL_CHECKTILE_CASES_H
#define TL_CHECKTILE_CASES_H

#include <stddef.h>
#include <stdint.h>

typedef struct tile_case {
    char *problem, *policy;
} tile_case;

typedef struct case_list {
    tile_case *cases;
    size_t count, room;
} case_list;

/* Handpicked cases, then `random` random ones (of the seed), then as many as it takes for every two values of different axes
 * to meet in some case. max_work: most products of a case, about; larger ones get fewer sequences and heads, then smaller
 * dimensions. */
void cases_sweep(case_list *list, size_t random, uint64_t seed, double max_work);

/* `count` random cases. */
void cases_random(case_list *list, size_t count, uint64_t seed, double max_work);

void cases_free(case_list *list);

#endif
