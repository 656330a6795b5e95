#include "parse.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* strtoll and friends skip blanks and accept "+1"; a strict reader does not. */
static bool starts_number(const char *text)
{
    if (*text == '-') text++;
    return isdigit((unsigned char)*text);
}

bool parse_integer(const char *text, int64_t low, int64_t high, int64_t *value)
{
    if (!starts_number(text)) return false;
    char *end;
    errno = 0;
    const long long x = strtoll(text, &end, 10);
    if (errno || *end || x < low || x > high) return false;
    *value = x;
    return true;
}

bool parse_int32(const char *text, int32_t low, int32_t high, int32_t *value)
{
    int64_t x;
    if (!parse_integer(text, low, high, &x)) return false;
    *value = (int32_t)x;
    return true;
}

bool parse_uint32(const char *text, uint32_t *value)
{
    int64_t x;
    if (!parse_integer(text, 0, UINT32_MAX, &x)) return false;
    *value = (uint32_t)x;
    return true;
}

bool parse_uint64(const char *text, uint64_t *value)
{
    if (!isdigit((unsigned char)*text)) return false;
    char *end;
    errno = 0;
    const unsigned long long x = strtoull(text, &end, 10);
    if (errno || *end) return false;
    *value = x;
    return true;
}

/* "2^-8" */
static bool parse_power_of_two(const char *text, double *value)
{
    int32_t exponent;
    if (strncmp(text, "2^", 2) != 0 || !parse_int32(text + 2, -1000, 1000, &exponent)) return false;
    *value = ldexp(1.0, exponent);
    return true;
}

bool parse_real(const char *text, bool infinite, double *value)
{
    if (strcmp(text, "inf") == 0 || strcmp(text, "-inf") == 0) {
        *value = text[0] == '-' ? -(double)INFINITY : (double)INFINITY;
        return infinite;
    }
    if (parse_power_of_two(text, value)) return true;
    if (!starts_number(text) && !(text[0] == '.' && isdigit((unsigned char)text[1]))) return false;
    if (strpbrk(text, "xXpP")) return false; /* hexadecimal */
    char *end;
    const double x = strtod(text, &end);
    if (*end || !isfinite(x)) return false;
    *value = x;
    return true;
}

bool parse_splits(const char *text, int32_t *splits)
{
    *splits = SPLITS_AUTO;
    return strcmp(text, "auto") == 0 || parse_int32(text, 1, 1 << 20, splits);
}

int32_t num_splits_of(int32_t splits) { return splits == SPLITS_AUTO || !splits ? TLAMP_SPLITS_AUTO : splits; }

static const char *const dtype_names[] = {"f32", "f16", "bf16"};

bool parse_dtype(const char *text, tlamp_dtype *dtype)
{
    const int found = find_name(dtype_names, 3, text);
    if (found >= 0) *dtype = found;
    return found >= 0;
}

const char *dtype_name(tlamp_dtype dtype) { return dtype_names[dtype]; }

size_t dtype_size(tlamp_dtype dtype) { return dtype == TLAMP_F32 ? 4 : 2; }

char *next_piece(char **rest, char separator)
{
    char *piece = *rest;
    if (!piece) return NULL;
    char *end = strchr(piece, separator);
    if (end) *end++ = '\0';
    *rest = end;
    return piece;
}

int find_name(const char *const *names, int count, const char *text)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], text) == 0) return i;
    return -1;
}
