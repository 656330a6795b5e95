/* Memory of a device, for tests of TLAMP_MEMORY_DEVICE. In a build without offload there is none. */
#ifndef TL_TEST_DEVICE_H
#define TL_TEST_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The device that `text` names: gpu is 0, gpu:N is N, host is -1. false: none of these. */
bool device_parse(const char *text, int32_t *device);

/* A copy of `bytes` bytes on the device with canaries around them; NULL where from is NULL. Ends the program where that
 * fails. */
void *device_copy(int32_t device, const void *from, size_t bytes);

/* Brings them back and frees the copy. false: something wrote outside the bytes. there NULL: nothing to do. */
bool device_take(int32_t device, void *there, void *to, size_t bytes);

/* Memory of the device, aligned to 64, full of anything, with canaries around it. */
typedef struct {
    void *data, *base;
    size_t bytes;
} device_memory;
device_memory device_new(int32_t device, size_t bytes);

/* Frees it. false: something wrote beside it. */
bool device_delete(int32_t device, device_memory memory);

#endif
