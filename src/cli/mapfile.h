/* A routing map as JSON: what `tilelamp mask --json` prints and `--policy words:FILE` reads. */
#ifndef TL_CLI_MAPFILE_H
#define TL_CLI_MAPFILE_H

#include <jansson.h>
#include <stdint.h>

#include "fault.h"

typedef struct routing_map {
    int32_t block_m, block_n, group; /* block sizes: 0 where the file does not say */
    int64_t rows, groups;            /* T_m, T_mask */
    int32_t words_per_row;
    uint64_t *words; /* from malloc */
} routing_map;

int mapfile_read(routing_map *map, const char *path, fault *f);

/* Prints {"words": ..., and the fields of `rest`}. JSON's integers have no limit but jansson's are signed, so words are
 * printed here. */
int mapfile_print(const uint64_t *words, int64_t rows, int32_t words_per_row, json_t *rest, fault *f);

#endif
