#define _GNU_SOURCE /* sysconf */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parse.h"

const char *machine_compiler(void)
{
#if defined __clang__
    return "clang " __clang_version__;
#elif defined __GNUC__
    return "gcc " __VERSION__;
#else
    return "an unknown compiler";
#endif
}

static const char *const known_features[] = {
    "avx",         "avx2",        "fma",         "f16c",       "avx512f",  "avx512bw",      "avx512dq", "avx512vl",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx512vbmi", "avx_vnni", "avx_vnni_int8", "amx_tile", "amx_int8",
    "amx_bf16",    "asimd",       "asimddp",     "asimdhp",    "i8mm",     "bf16",          "sve",      "sve2",
};
enum { NUM_FEATURES = sizeof known_features / sizeof known_features[0] };

static void keep_known_features(machine *m, char *flags)
{
    char *rest = NULL;
    for (const char *flag = strtok_r(flags, " \n", &rest); flag; flag = strtok_r(NULL, " \n", &rest)) {
        const size_t used = strlen(m->features);
        if (find_name(known_features, NUM_FEATURES, flag) >= 0 && used + strlen(flag) + 2 < sizeof m->features)
            (void)snprintf(m->features + used, sizeof m->features - used, "%s%s", used ? " " : "", flag);
    }
}

/* A line of /proc/cpuinfo: "name\t: value". */
static void read_line(machine *m, char *line)
{
    char *value = line;
    const char *name = next_piece(&value, ':');
    if (!value) return;
    value += strspn(value, " ");
    if (strncmp(name, "model name", 10) == 0 && !m->processor[0])
        (void)snprintf(m->processor, sizeof m->processor, "%.*s", (int)strcspn(value, "\n"), value);
    if ((strncmp(name, "flags", 5) == 0 || strncmp(name, "Features", 8) == 0) && !m->features[0])
        keep_known_features(m, value);
}

void machine_read(machine *m)
{
    *m = (machine){.threads = sysconf(_SC_NPROCESSORS_ONLN)};
    FILE *in = fopen("/proc/cpuinfo", "r");
    char *line = NULL;
    size_t size = 0;
    while (in && getline(&line, &size, in) > 0) read_line(m, line);
    free(line);
    if (in) (void)fclose(in);
    if (!m->processor[0]) strcpy(m->processor, "unknown processor");
}
