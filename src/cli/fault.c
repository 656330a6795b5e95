#include "fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Whatever came from outside (file names, bytes of a file) stays on one line of the terminal. */
static void replace_control_characters(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127) *text = '?';
}

int fault_set(fault *f, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    replace_control_characters(f->text);
    f->code = code;
    return code;
}

int fault_from_library(fault *f, const tlamp_error *err)
{
    const int code = err->status == TLAMP_INVALID_ARGUMENT ? BAD_INPUT : UNAVAILABLE;
    const char *text = err->text[0] ? err->text : tlamp_status_string(err->status);
    if (!err->field[0] || strstr(text, err->field)) return fault_set(f, code, "%s", text);
    return fault_set(f, code, "%s: %s", err->field, text);
}

int fault_no_memory(fault *f) { return fault_set(f, UNAVAILABLE, "out of memory: take a smaller problem"); }

int fault_prefix(fault *f, const char *context)
{
    char text[sizeof f->text];
    (void)snprintf(text, sizeof text, "%s", f->text);
    return fault_set(f, f->code, "%s: %s", context, text);
}
