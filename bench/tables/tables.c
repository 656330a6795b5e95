#include "tables.h"

#include <stdio.h>
#include <string.h>

int tables_publish(const options *o, const grid *g, fault *f)
{
    if (!o->output) {
        grid_print(g);
        return DONE;
    }
    return json_array_append_new(o->output, grid_json(g)) ? fault_no_memory(f) : DONE;
}

int64_t tables_random_length(const options *o)
{
    if (o->length) return o->length;
    return o->quick ? RANDOM_LENGTH_QUICK : RANDOM_LENGTH;
}

int tables_open(experiment *e, const options *o, int source, int64_t length, int variant, fault *f)
{
    int code;
    if (source == RANDOM) {
        code = experiment_random(e, length, RANDOM_DIM, (uint64_t)variant, f);
    } else {
        code = experiment_file(e, o->files[source - 1], f);
        if (!code && o->quick) experiment_keep_head(e, 0);
    }
    if (!code) e->threads = o->threads;
    return code;
}

short_name tables_source_name(const options *o, int source)
{
    short_name name = {"random"};
    if (source == RANDOM) return name;
    const char *path = o->files[source - 1], *slash = strrchr(path, '/'), *start = slash ? slash + 1 : path;
    const char *dash = strrchr(start, '-');
    if (dash) start = dash + 1;
    const char *dot = strrchr(start, '.');
    const int length = dot ? (int)(dot - start) : (int)strlen(start);
    (void)snprintf(name.text, sizeof name.text, "%.*s", length, start);
    return name;
}

bool tables_is_drawn(const char *policy)
{
    return strncmp(policy, "row_rand", 8) == 0 || strncmp(policy, "bigbird", 7) == 0;
}

uint32_t tables_map_seed(const char *policy, int variant) { return tables_is_drawn(policy) ? (uint32_t)variant : 42; }
