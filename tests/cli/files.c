/* Broken and hostile files: each gives one line and no crash. Run under the address sanitizer to see the rest. */
#define _GNU_SOURCE /* mkdtemp */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/mapfile.h"
#include "cli/qkv.h"
#include "cli/safetensors.h"

static char path[64];
static int failures;

static void check(int good, const char *what, const char *text)
{
    if (good) return;
    failures++;
    printf("FAILED: %s: %s\n", what, text);
}

static void write_file(const void *data, size_t bytes)
{
    (void)unlink(path); /* quicker than writing over it */
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(data, 1, bytes, out) != bytes || fclose(out) != 0) {
        perror(path);
        exit(1);
    }
}

/* A header of that text, and zeros behind it. */
static void write_tensors(const char *header, size_t data_bytes)
{
    static unsigned char file[8192];
    const uint64_t length = strlen(header);
    memset(file, 0, sizeof file);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)(length >> (8 * i));
    memcpy(file + 8, header, length);
    write_file(file, 8 + length + data_bytes);
}

/* Loads the file; the exit code, and whether a failure is one line that names the file. */
static int load(const char *what)
{
    static input in;
    char *source = NULL;
    fault f = {.code = DONE};
    const int code = qkv_load(&in, path, &source, &f);
    if (code) {
        check(strncmp(f.text, path, strlen(path)) == 0 && !strchr(f.text, '\n'), f.text, what);
    } else {
        input_free(&in);
        free(source);
    }
    return code;
}

#define Q "\"q\":{\"dtype\":\"F16\",\"shape\":[1,2,2,4],\"data_offsets\":[0,32]}"
#define K "\"k\":{\"dtype\":\"F16\",\"shape\":[1,3,1,4],\"data_offsets\":[32,56]}"
#define V "\"v\":{\"dtype\":\"F32\",\"shape\":[1,3,1,2],\"data_offsets\":[56,80]}"
#define CU(n, b, e) "\"cu_seqlens_" n "\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[" b "," e "]}"
enum { DATA = 80 };

static const char *const good_headers[] = {
    "{" Q "," K "," V "}",
    "{" V "," K "," Q "}        ",
    "{\"__metadata__\":{\"causal\":\"true\",\"softmax_scale\":\"0.5\",\"source\":\"x\"}," Q "," K "," V "}",
    "{\"__metadata__\":{\"layout\":\"bhsd\"}," Q ","
    "\"k\":{\"dtype\":\"BF16\",\"shape\":[1,1,3,4],\"data_offsets\":[32,56]},"
    "\"v\":{\"dtype\":\"F32\",\"shape\":[1,1,3,2],\"data_offsets\":[56,80]}}",
    "{\"other\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}," Q "," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,0,2,4],\"data_offsets\":[9,9]}," K "," V "}",
};

static const char *const bad_headers[] = {
    "",
    "{",
    "[]",
    "{}",
    "null",
    "{" Q "," K "}",
    "{" Q "," Q "," K "," V "}",
    "{" Q "," K "," V "}x",
    "{\"__metadata__\":7," Q "," K "," V "}",
    "{\"__metadata__\":{\"causal\":true}," Q "," K "," V "}",
    "{\"__metadata__\":{\"causal\":\"maybe\"}," Q "," K "," V "}",
    "{\"__metadata__\":{\"softmax_scale\":\"-1\"}," Q "," K "," V "}",
    "{\"__metadata__\":{\"softmax_scale\":\"nan\"}," Q "," K "," V "}",
    "{\"__metadata__\":{\"softmax_scale\":\"0.5 causal\"}," Q "," K "," V "}",
    "{\"__metadata__\":{\"layout\":\"sbhd\"}," Q "," K "," V "}",
    "{\"__metadata__\":{\"layout\":\"thd\"}," Q "," K "," V "}",
    "{\"q\":5," K "," V "}",
    "{\"q\":{}," K "," V "}",
    "{\"q\":{\"dtype\":\"F64\",\"shape\":[1,2,2,4],\"data_offsets\":[0,32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"I32\",\"shape\":[1,1,2,4],\"data_offsets\":[0,32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[2,2,4],\"data_offsets\":[0,32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2,2,5],\"data_offsets\":[0,32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2,2,\"4\"],\"data_offsets\":[0,32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2,-2,-4],\"data_offsets\":[0,32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2,2,4.0],\"data_offsets\":[0,32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,1,1,1,1,1,1,1,16],\"data_offsets\":[0,32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[4294967296,4294967296,1,16],\"data_offsets\":[0,32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[9223372036854775807,1,1,1],\"data_offsets\":[0,32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2,2,99999999999999999999],\"data_offsets\":[0,32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2,2,4],\"data_offsets\":[32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2,2,4],\"data_offsets\":[32,0]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2,2,4],\"data_offsets\":[-32,0]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2,2,4],\"data_offsets\":[49,81]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2,2,4],\"data_offsets\":[9223372036854775775,9223372036854775807]}," K "," V
    "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[2,1,2,4],\"data_offsets\":[0,32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2,4,2],\"data_offsets\":[0,32]}," K "," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2,2,0],\"data_offsets\":[0,0]},"
    "\"k\":{\"dtype\":\"F16\",\"shape\":[1,3,1,0],\"data_offsets\":[0,0]}," V "}",
    "{\"q\":{\"dtype\":\"F16\",\"shape\":[9999999999,0,2,4],\"data_offsets\":[0,0]}," K "," V "}",
    "{" Q "," K ",\"v\":{\"dtype\":\"F32\",\"shape\":[1,2,1,3],\"data_offsets\":[56,80]}}",
};

static void check_headers(void)
{
    for (size_t i = 0; i < sizeof good_headers / sizeof good_headers[0]; i++) {
        write_tensors(good_headers[i], DATA);
        check(load(good_headers[i]) == DONE, "is refused", good_headers[i]);
    }
    for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
        write_tensors(bad_headers[i], DATA);
        check(load(bad_headers[i]) == BAD_INPUT, "is accepted", bad_headers[i]);
    }
}

/* Packed sequences: zeros for cu_seqlens are two empty prefix sums, which do not end at 2 and 3 rows. */
static void check_packed(void)
{
    static const char packed[] = "{\"__metadata__\":{\"layout\":\"thd\"},"
                                 "\"q\":{\"dtype\":\"F16\",\"shape\":[0,2,4],\"data_offsets\":[0,0]},"
                                 "\"k\":{\"dtype\":\"F16\",\"shape\":[%d,1,4],\"data_offsets\":[0,%d]},"
                                 "\"v\":{\"dtype\":\"F16\",\"shape\":[%d,1,4],\"data_offsets\":[0,%d]}," CU(
                                     "q", "0", "8") "," CU("k", "8", "16") "}";
    char header[1000];
    (void)snprintf(header, sizeof header, packed, 0, 0, 0, 0);
    write_tensors(header, DATA);
    check(load(header) == DONE, "is refused", header);
    (void)snprintf(header, sizeof header, packed, 3, 24, 3, 24);
    write_tensors(header, DATA);
    check(load(header) == BAD_INPUT, "is accepted", header);
}

/* The first bytes of a good file, and header lengths that lie. */
static void check_truncated(void)
{
    write_tensors(good_headers[0], DATA);
    char bytes[1000];
    FILE *in = fopen(path, "rb");
    const size_t size = in ? fread(bytes, 1, sizeof bytes, in) : 0;
    if (in) (void)fclose(in);
    for (size_t n = 0; n < size; n++) {
        write_file(bytes, n);
        check(load("truncated") == BAD_INPUT, "is accepted", "a truncated file");
    }
    for (int i = 0; i < 8; i++) {
        char changed[sizeof bytes];
        memcpy(changed, bytes, size);
        changed[i] = (char)0x7f;
        write_file(changed, size);
        check(load("header length") == BAD_INPUT, "is accepted", "a file whose header length lies");
    }
}

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

static void mutate(char *text)
{
    static const char letters[] = "0123456789-.e\"{}[]:,FBI\\ \x01\xff";
    for (uint32_t n = 1 + random_below(3); n > 0; n--) {
        char *at = text + random_below((uint32_t)strlen(text));
        if (random_below(2))
            *at = letters[random_below(sizeof letters - 1)];
        else if (at[1])
            memmove(at, at + 1, strlen(at));
    }
}

static void check_mutated(int rounds)
{
    char header[1000];
    for (int round = 0; round < rounds; round++) {
        const uint32_t which = random_below(sizeof good_headers / sizeof good_headers[0]);
        (void)snprintf(header, sizeof header, "%s", good_headers[which]);
        mutate(header);
        write_tensors(header, DATA);
        const int code = load(header);
        check(code == DONE || code == BAD_INPUT, "has another exit code", header);
    }
}

/* ------------------------------------------------------------------------------------------------ maps */

static int load_map(const char *text, routing_map *map)
{
    fault f = {.code = DONE};
    write_file(text, strlen(text));
    const int code = mapfile_read(map, path, &f);
    if (code) check(strncmp(f.text, path, strlen(path)) == 0 && !strchr(f.text, '\n'), f.text, text);
    return code;
}

static void check_maps(int rounds)
{
    static const char good[] = "{\"words\": [[18446744073709551615, 9223372036854775808], [1, 0]], \"x\": "
                               "\"18446744073709551615\", \"group\": 1, \"t_mask\": 128, \"block_m\": 64}";
    routing_map map;
    check(load_map(good, &map) == DONE, "is refused", good);
    check(map.rows == 2 && map.words_per_row == 2 && map.words[0] == UINT64_MAX && map.words[1] == (uint64_t)1 << 63 &&
              map.words[2] == 1 && map.block_m == 64,
          "is misread", good);
    free(map.words);
    static const char *const bad[] = {
        "",
        "[]",
        "{\"words\": 3, \"group\": 1, \"t_mask\": 1}",
        "{\"words\": [1.5], \"group\": 1, \"t_mask\": 1}",
        "{\"words\": [18446744073709551616], \"group\": 1, \"t_mask\": 1}",
        "{\"words\": [1], \"group\": 1, \"t_mask\": 65}",
        "{\"words\": [1], \"group\": 1, \"t_mask\": 2147483647}",
        "{\"words\": [1], \"group\": 0, \"t_mask\": 1}",
        "{\"words\": [1], \"group\": 1}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        check(load_map(bad[i], &map) == BAD_INPUT, "is accepted", bad[i]);
    for (int round = 0; round < rounds; round++) {
        char text[sizeof good];
        memcpy(text, good, sizeof good);
        mutate(text);
        if (load_map(text, &map) == DONE) free(map.words);
    }
}

int main(void)
{
    char directory[] = "/tmp/tilelamp-files-XXXXXX";
    if (!mkdtemp(directory)) {
        perror(directory);
        return 1;
    }
    (void)snprintf(path, sizeof path, "%s/f", directory);
    check_headers();
    check_packed();
    check_truncated();
    check_mutated(5000);
    check_maps(5000);
    (void)unlink(path);
    (void)rmdir(directory);
    if (!failures) printf("files: all passed\n");
    return failures != 0;
}
