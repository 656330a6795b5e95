#include "mapfile.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 64 << 20 };

static int wrong(const char *path, fault *f, const char *what)
{
    return fault_set(f, BAD_INPUT, "%s: %s: write it with `tilelamp mask --json`", path, what);
}

/* ------------------------------------------------------------------------------------------------ reading */

/* jansson's integers are signed: a number from 2^63 to 2^64-1 becomes the negative number with the same bits. Copies one
 * number from *in to *out. */
static void copy_number(const char **in, char **out)
{
    size_t digits = 0;
    while (isdigit((unsigned char)(*in)[digits])) digits++;
    const char after = (*in)[digits];
    errno = 0;
    const unsigned long long value = strtoull(*in, NULL, 10);
    if (errno || value <= INT64_MAX || after == '.' || after == 'e' || after == 'E') {
        memcpy(*out, *in, digits);
        *out += digits;
    } else {
        *out += sprintf(*out, "-%llu", ~value + 1);
    }
    *in += digits;
}

/* A copy with signed numbers, from malloc; numbers in strings, negative ones and fractions stay. */
static char *with_signed_numbers(const char *in, size_t size)
{
    char *copy = malloc(size * 2 + 1), *out = copy;
    bool in_string = false, in_number = false;
    while (out && *in) {
        const bool digit = isdigit((unsigned char)*in);
        if (!in_string && !in_number && digit) {
            copy_number(&in, &out);
            in_number = true;
            continue;
        }
        in_number = !in_string && (digit || strchr("+-.eE", *in) != NULL);
        if (in_string && *in == '\\' && in[1])
            *out++ = *in++;
        else if (*in == '"')
            in_string = !in_string;
        *out++ = *in++;
    }
    if (out) *out = '\0';
    return copy;
}

/* The whole file as a string; NULL with a fault where it cannot be read. */
static char *read_text(const char *path, size_t *size, fault *f)
{
    FILE *in = fopen(path, "rb");
    if (!in) {
        (void)wrong(path, f, strerror(errno));
        return NULL;
    }
    char *text = NULL;
    size_t used = 0, room = 0;
    for (size_t got = 1; got > 0 && used < MAX_FILE; used += got) {
        if (room - used < 2) {
            room = room ? room * 2 : 4096;
            char *more = realloc(text, room);
            if (!more) break;
            text = more;
        }
        got = fread(text + used, 1, room - used - 1, in);
    }
    const int complete = text && feof(in) && !ferror(in);
    (void)fclose(in);
    if (!complete) {
        free(text);
        (void)wrong(path, f, "it cannot be read, or is larger than 64 MiB");
        return NULL;
    }
    text[used] = '\0';
    *size = used;
    return text;
}

/* Word w of a row, which is an integer or a list of them. */
static int read_word(const json_t *row, int32_t w, uint64_t *word)
{
    const json_t *value = json_is_array(row) ? json_array_get(row, (size_t)w) : w == 0 ? row : NULL;
    *word = (uint64_t)json_integer_value(value);
    return json_is_integer(value);
}

static int read_words(routing_map *map, const json_t *list, const char *path, fault *f)
{
    map->rows = (int64_t)json_array_size(list);
    map->words_per_row = (int32_t)((map->groups + 63) / 64);
    map->words = calloc((size_t)(map->rows * map->words_per_row) + 1, sizeof *map->words);
    if (!map->words) return fault_no_memory(f);
    for (int64_t row = 0; row < map->rows; row++)
        for (int32_t w = 0; w < map->words_per_row; w++)
            if (!read_word(json_array_get(list, (size_t)row), w, &map->words[row * map->words_per_row + w])) {
                free(map->words);
                map->words = NULL; /* the caller frees what is left, too */
                return wrong(path, f, "words must hold an integer per row, or a list where groups need several");
            }
    return DONE;
}

static int32_t small_integer(const json_t *object, const char *name)
{
    const json_int_t value = json_integer_value(json_object_get(object, name));
    return value > 0 && value <= INT32_MAX ? (int32_t)value : 0;
}

static int read_map(routing_map *map, const json_t *object, const char *path, fault *f)
{
    const json_t *list = json_object_get(object, "words");
    map->block_m = small_integer(object, "block_m");
    map->block_n = small_integer(object, "block_n");
    map->group = small_integer(object, "group");
    map->groups = small_integer(object, "t_mask");
    if (!json_is_array(list)) return wrong(path, f, "it has no list of words");
    if (!map->group || !map->groups) return wrong(path, f, "it lacks group or t_mask");
    if ((double)map->groups * (double)json_array_size(list) > 64 * (double)MAX_FILE)
        return wrong(path, f, "it says it has more groups than it can hold");
    return read_words(map, list, path, f);
}

int mapfile_read(routing_map *map, const char *path, fault *f)
{
    *map = (routing_map){.words = NULL};
    size_t size;
    char *text = read_text(path, &size, f);
    if (!text) return f->code;
    const bool whole = strlen(text) == size;
    char *copy = with_signed_numbers(text, size);
    free(text);
    if (!copy) return fault_no_memory(f);
    json_error_t error;
    json_t *object = whole ? json_loads(copy, JSON_REJECT_DUPLICATES, &error) : NULL;
    free(copy);
    if (!object) return wrong(path, f, whole ? error.text : "it holds a zero byte");
    const int code = read_map(map, object, path, f);
    json_decref(object);
    return code;
}

/* ------------------------------------------------------------------------------------------------ writing */

static void print_row(const uint64_t *words, int32_t count)
{
    if (count != 1) putchar('[');
    for (int32_t w = 0; w < count; w++) printf("%s%llu", w ? ", " : "", (unsigned long long)words[w]);
    if (count != 1) putchar(']');
}

int mapfile_print(const uint64_t *words, int64_t rows, int32_t words_per_row, json_t *rest, fault *f)
{
    char *text = json_dumps(rest, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(rest);
    if (!text) return fault_no_memory(f);
    printf("{\n  \"words\": [");
    for (int64_t row = 0; row < rows; row++) {
        if (row) printf(", ");
        print_row(words + row * words_per_row, words_per_row);
    }
    printf("],%s\n", text + 1); /* without its opening brace */
    free(text);
    if (fflush(stdout) != 0 || ferror(stdout))
        return fault_set(f, BAD_INPUT, "the output cannot be written: choose another place");
    return DONE;
}
