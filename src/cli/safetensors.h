/* Files of tensors: an 8-byte little-endian header length, a JSON header, then the data. */
#ifndef TL_CLI_SAFETENSORS_H
#define TL_CLI_SAFETENSORS_H

#include <jansson.h>
#include <stdint.h>

#include "fault.h"

typedef enum { ST_F32, ST_F16, ST_BF16, ST_I32, NUM_ST_DTYPES } st_dtype;
enum { ST_MAX_RANK = 8 };

typedef struct st_tensor {
    st_dtype dtype;
    int rank;
    int64_t shape[ST_MAX_RANK];
    int64_t elements;
    void *data; /* from malloc, when st_read has read it */
} st_tensor;

typedef struct st_file {
    const char *path;
    int descriptor;
    int64_t data_start, data_bytes;
    json_t *header;
} st_file;

/* Reads and checks the header. A file that is broken in any way gives BAD_INPUT and one line that names it. */
int st_open(st_file *file, const char *path, fault *f);
void st_close(st_file *file);

/* The value of a key of __metadata__; NULL where there is none. Lives as long as the file is open. */
const char *st_metadata(const st_file *file, const char *key);

/* Checks and reads one tensor; *found is 0 where the file has none of that name, which is no failure. */
int st_read(const st_file *file, const char *name, st_tensor *tensor, int *found, fault *f);

/* Writes a file in one piece: a temporary file beside it, renamed when it is complete. metadata: a JSON object of strings,
 * or NULL. */
typedef struct st_output {
    const char *name;
    st_dtype dtype;
    int rank;
    int64_t shape[ST_MAX_RANK];
    const void *data;
} st_output;
int st_write(const char *path, const st_output *tensors, int count, json_t *metadata, fault *f);

#endif
