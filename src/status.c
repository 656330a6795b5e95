#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *tlamp_status_string(tlamp_status status)
{
    switch (status) {
    case TLAMP_OK: return "OK";
    case TLAMP_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case TLAMP_UNSUPPORTED: return "UNSUPPORTED";
    case TLAMP_UNSUPPORTED_HARDWARE: return "UNSUPPORTED_HARDWARE";
    case TLAMP_WORKSPACE_TOO_SMALL: return "WORKSPACE_TOO_SMALL";
    case TLAMP_OUT_OF_MEMORY: return "OUT_OF_MEMORY";
    case TLAMP_DEVICE_ERROR: return "DEVICE_ERROR";
    default: return "unknown status";
    }
}

int32_t tlamp_version(void) { return TLAMP_VERSION; }
const char *tlamp_version_string(void) { return TLAMP_VERSION_STRING; }

tlamp_status tl_fail(tlamp_error *err, tlamp_status status, const char *field, const char *format, ...)
{
    if (!err || err->struct_size < sizeof err->struct_size + sizeof err->status) return status;
    tlamp_error e = {.struct_size = err->struct_size, .status = status};
    (void)snprintf(e.field, sizeof e.field, "%s", field);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(e.text, sizeof e.text, format, args);
    va_end(args);
    memcpy(err, &e, err->struct_size < sizeof e ? err->struct_size : sizeof e);
    return status;
}

void tl_init_struct(void *to, size_t struct_size, const void *defaults, size_t known)
{
    if (!to || struct_size < sizeof struct_size) return;
    memset(to, 0, struct_size);
    memcpy(to, defaults, struct_size < known ? struct_size : known);
    memcpy(to, &struct_size, sizeof struct_size);
}

tlamp_status tl_take_struct(void *to, size_t known, const void *from, const char *name, tlamp_error *err)
{
    size_t given;
    memcpy(&given, from, sizeof given);
    if (given < sizeof given)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "struct_size", "%s.struct_size is %zu: call tlamp_%s_init first",
                       name, given, name);
    for (size_t i = known; i < given; i++)
        if (((const unsigned char *)from)[i])
            return tl_fail(err, TLAMP_UNSUPPORTED, "struct_size",
                           "%s comes from a newer header and sets a field this library does not know", name);
    memcpy(to, from, given < known ? given : known);
    memcpy(to, &known, sizeof known);
    return TLAMP_OK;
}
