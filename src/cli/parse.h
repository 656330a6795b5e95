/* Strict readers for small pieces of text: the whole text must be the thing asked for, or the answer is false. */
#ifndef TL_CLI_PARSE_H
#define TL_CLI_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tilelamp/tilelamp.h"

bool parse_integer(const char *text, int64_t low, int64_t high, int64_t *value);
bool parse_int32(const char *text, int32_t low, int32_t high, int32_t *value);
bool parse_uint32(const char *text, uint32_t *value);
bool parse_uint64(const char *text, uint64_t *value);

/* "0.1", "1e-3", "2^-8"; finite, unless infinite is true: then also "inf" and "-inf". Never NaN. */
bool parse_real(const char *text, bool infinite, double *value);

/* "auto", or 1 to 2^20; 0 elsewhere stands for what was not given. num_splits of a problem. */
enum { SPLITS_AUTO = -1 };
bool parse_splits(const char *text, int32_t *splits);
int32_t num_splits_of(int32_t splits);

/* "f32", "f16", "bf16", and their names. */
bool parse_dtype(const char *text, tlamp_dtype *dtype);
const char *dtype_name(tlamp_dtype dtype);
size_t dtype_size(tlamp_dtype dtype);

/* "on,off": cuts the text at every separator, in place; NULL after the last piece. Pieces may be empty. */
char *next_piece(char **rest, char separator);

/* Index of text in names, -1 where it is none of them. */
int find_name(const char *const *names, int count, const char *text);

#endif
