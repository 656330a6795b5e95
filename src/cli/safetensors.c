#define _GNU_SOURCE /* pread */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"
#include "parse.h"

/* The same limit as the format's own reader. */
enum { MAX_HEADER = 100 * 1000 * 1000 };

static const char *const dtype_names[NUM_ST_DTYPES] = {"F32", "F16", "BF16", "I32"};
static const int dtype_bytes[NUM_ST_DTYPES] = {4, 2, 2, 4};

static int broken(const st_file *file, fault *f, const char *what)
{
    return fault_set(f, BAD_INPUT, "%s: %s: take a complete safetensors file", file->path, what);
}

static int broken_tensor(const st_file *file, fault *f, const char *name, const char *what)
{
    return fault_set(f, BAD_INPUT, "%s: tensor %s %s: take a complete safetensors file", file->path, name, what);
}

/* Reads exactly `bytes` bytes; false at the end of the file or on an error. */
static int read_exactly(int descriptor, void *to, size_t bytes, int64_t offset)
{
    for (char *at = to; bytes > 0;) {
        const ssize_t got = pread(descriptor, at, bytes, offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        at += got;
        bytes -= (size_t)got;
        offset += got;
    }
    return 1;
}

/* ------------------------------------------------------------------------------------------------ header */

static int check_metadata(const st_file *file, fault *f)
{
    const json_t *metadata = json_object_get(file->header, "__metadata__");
    if (!metadata) return DONE;
    if (!json_is_object(metadata)) return broken(file, f, "__metadata__ is no object of strings");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value) if (!json_is_string(value)) return broken(
        file, f, "__metadata__ is no object of strings");
    return DONE;
}

static int parse_header(st_file *file, const char *text, size_t bytes, fault *f)
{
    json_error_t error;
    file->header = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!file->header)
        return fault_set(f, BAD_INPUT, "%s: its header is no JSON (%.150s): take a complete safetensors file",
                         file->path, error.text);
    if (!json_is_object(file->header)) return broken(file, f, "its header is no JSON object");
    return check_metadata(file, f);
}

static int read_header(st_file *file, fault *f)
{
    struct stat status;
    if (fstat(file->descriptor, &status) != 0 || !S_ISREG(status.st_mode))
        return broken(file, f, "it is no regular file");
    unsigned char prefix[8];
    if (!read_exactly(file->descriptor, prefix, sizeof prefix, 0)) return broken(file, f, "it is shorter than 8 bytes");
    uint64_t bytes = 0;
    for (int i = 7; i >= 0; i--) bytes = bytes << 8 | prefix[i];
    if (bytes > MAX_HEADER || bytes > (uint64_t)status.st_size - sizeof prefix)
        return broken(file, f, "the header length in its first 8 bytes does not fit into it");
    file->data_start = (int64_t)(sizeof prefix + bytes);
    file->data_bytes = status.st_size - file->data_start;
    char *text = malloc((size_t)bytes + 1);
    if (!text) return fault_no_memory(f);
    const int code = read_exactly(file->descriptor, text, (size_t)bytes, sizeof prefix)
                         ? parse_header(file, text, (size_t)bytes, f)
                         : broken(file, f, "its header cannot be read");
    free(text);
    return code;
}

int st_open(st_file *file, const char *path, fault *f)
{
    *file = (st_file){.path = path, .descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file->descriptor < 0)
        return fault_set(f, BAD_INPUT, "%s: %s: give a safetensors file that can be read", path, strerror(errno));
    const int code = read_header(file, f);
    if (code) st_close(file);
    return code;
}

void st_close(st_file *file)
{
    json_decref(file->header);
    (void)close(file->descriptor);
}

const char *st_metadata(const st_file *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}

/* ------------------------------------------------------------------------------------------------ tensors */

/* Dimensions and their product. */
static int read_shape(const st_file *file, const char *name, const json_t *shape, st_tensor *tensor, fault *f)
{
    if (!json_is_array(shape)) return broken_tensor(file, f, name, "has no shape");
    if (json_array_size(shape) > ST_MAX_RANK) return broken_tensor(file, f, name, "has more than 8 dimensions");
    tensor->rank = (int)json_array_size(shape);
    tensor->elements = 1;
    for (int i = 0; i < tensor->rank; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        tensor->shape[i] = json_integer_value(size);
        if (!json_is_integer(size) || tensor->shape[i] < 0)
            return broken_tensor(file, f, name, "has a size that is no count");
        if (__builtin_mul_overflow(tensor->elements, tensor->shape[i], &tensor->elements))
            return broken_tensor(file, f, name, "has a shape too large for any file");
    }
    return DONE;
}

/* The bytes of the tensor inside the file. */
static int read_offsets(const st_file *file, const char *name, const json_t *offsets, const st_tensor *tensor,
                        int64_t *begin, fault *f)
{
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return broken_tensor(file, f, name, "has no pair of data_offsets");
    *begin = json_integer_value(first);
    const int64_t end = json_integer_value(last);
    if (*begin < 0 || end < *begin || end > file->data_bytes)
        return broken_tensor(file, f, name, "lies outside the file");
    int64_t bytes;
    if (__builtin_mul_overflow(tensor->elements, (int64_t)dtype_bytes[tensor->dtype], &bytes) || bytes != end - *begin)
        return broken_tensor(file, f, name, "has a shape that differs from its bytes");
    return DONE;
}

static int describe(const st_file *file, const char *name, const json_t *entry, st_tensor *tensor, int64_t *begin,
                    fault *f)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const int found = dtype ? find_name(dtype_names, NUM_ST_DTYPES, dtype) : -1;
    if (found < 0)
        return fault_set(f, BAD_INPUT, "%s: tensor %s has dtype '%.20s': F32, F16, BF16 and I32 are read: convert it",
                         file->path, name, dtype ? dtype : "");
    tensor->dtype = (st_dtype)found;
    const int code = read_shape(file, name, json_object_get(entry, "shape"), tensor, f);
    if (code) return code;
    return read_offsets(file, name, json_object_get(entry, "data_offsets"), tensor, begin, f);
}

int st_read(const st_file *file, const char *name, st_tensor *tensor, int *found, fault *f)
{
    *tensor = (st_tensor){.data = NULL};
    const json_t *entry = json_object_get(file->header, name);
    *found = entry != NULL;
    if (!entry) return DONE;
    int64_t begin = 0;
    const int code = describe(file, name, entry, tensor, &begin, f);
    if (code) return code;
    const size_t bytes = (size_t)tensor->elements * (size_t)dtype_bytes[tensor->dtype];
    tensor->data = malloc(bytes + 1);
    if (!tensor->data) return fault_no_memory(f);
    if (read_exactly(file->descriptor, tensor->data, bytes, file->data_start + begin)) return DONE;
    free(tensor->data);
    tensor->data = NULL;
    return broken_tensor(file, f, name, "cannot be read");
}

/* ------------------------------------------------------------------------------------------------ writing */

static size_t output_bytes(const st_output *tensor)
{
    size_t bytes = (size_t)dtype_bytes[tensor->dtype];
    for (int i = 0; i < tensor->rank; i++) bytes *= (size_t)tensor->shape[i];
    return bytes;
}

/* The JSON header, padded with blanks so that the data begin at a multiple of 8; NULL where memory is out. */
static char *make_header(const st_output *tensors, int count, json_t *metadata)
{
    json_t *header = json_object();
    if (metadata) (void)json_object_set(header, "__metadata__", metadata);
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        json_t *shape = json_array();
        for (int r = 0; r < tensors[i].rank; r++) (void)json_array_append_new(shape, json_integer(tensors[i].shape[r]));
        const size_t end = at + output_bytes(&tensors[i]);
        (void)json_object_set_new(header, tensors[i].name,
                                  json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_names[tensors[i].dtype], "shape",
                                            shape, "data_offsets", (json_int_t)at, (json_int_t)end));
        at = end;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (!text) return NULL;
    const size_t length = strlen(text), padded = (length + 7) & ~(size_t)7;
    char *out = malloc(padded + 1);
    if (out) (void)snprintf(out, padded + 1, "%-*s", (int)padded, text);
    free(text);
    return out;
}

static void write_all(FILE *out, const char *header, const st_output *tensors, int count)
{
    const uint64_t length = strlen(header);
    for (int i = 0; i < 8; i++) (void)putc((int)(length >> (8 * i) & 255), out);
    (void)fputs(header, out);
    for (int i = 0; i < count; i++) (void)fwrite(tensors[i].data, 1, output_bytes(&tensors[i]), out);
}

int st_write(const char *path, const st_output *tensors, int count, json_t *metadata, fault *f)
{
    char *header = make_header(tensors, count, metadata);
    if (!header) return fault_no_memory(f);
    file_writer writer;
    int code = file_begin(&writer, path, f);
    if (!code) {
        write_all(writer.stream, header, tensors, count);
        code = file_end(&writer, f);
    }
    free(header);
    return code;
}
