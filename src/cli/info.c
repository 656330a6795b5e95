/* `tilelamp info`: what this library and this machine can do. */
#define _GNU_SOURCE /* argp */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "machine.h"

static error_t parse_info(int key, char *value, struct argp_state *state)
{
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = state->input; return 0;
    case ARGP_KEY_ARG: return cli_wrong(state->input, "'%.80s' is not needed: write just `tilelamp info`", value);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {NULL, 0, NULL, 0}};
static const struct argp info_argp = {
    NULL,
    parse_info,
    NULL,
    "Prints what this library and this machine can do: version, processor, kernels and which of them runs, devices.",
    children,
    NULL,
    NULL};

static int32_t read_kernels(tlamp_kernel_info kernels[MACHINE_MAX_KERNELS])
{
    kernels[0].struct_size = sizeof kernels[0];
    const int32_t count = tlamp_kernels(kernels, MACHINE_MAX_KERNELS);
    return count < MACHINE_MAX_KERNELS ? count : MACHINE_MAX_KERNELS;
}

static void print_text(const machine *m, const tlamp_kernel_info *kernels, int32_t count)
{
    printf("tilelamp  %s, built with %s\n", tlamp_version_string(), machine_compiler());
    printf("machine   %s, %ld threads\n", m->processor, m->threads);
    printf("features  %s\n", m->features[0] ? m->features : "none that matter here");
    printf("isa       %s\n", tlamp_isa());
    printf("kernels   best first; * is the first choice\n");
    bool chosen = false;
    for (int32_t i = 0; i < count; i++) {
        const bool first = kernels[i].available && !chosen;
        chosen = chosen || first;
        printf("        %c %-35s %-12s %s\n", first ? '*' : ' ', kernels[i].name, kernels[i].isa,
               kernels[i].available ? ""
               : kernels[i].slow    ? "slow here: only if TLAMP_MAX_ISA names it"
                                    : "not on this machine, or above TLAMP_MAX_ISA");
    }
    printf("devices   %d\n", tlamp_num_devices());
}

static json_t *describe(const machine *m, const tlamp_kernel_info *kernels, int32_t count)
{
    json_t *list = json_array(), *devices = json_array();
    for (int32_t i = 0; i < count; i++)
        (void)json_array_append_new(list,
                                    json_pack("{s:s, s:s, s:b, s:b}", "name", kernels[i].name, "isa", kernels[i].isa,
                                              "available", kernels[i].available != 0, "slow", kernels[i].slow != 0));
    for (int32_t i = 0; i < tlamp_num_devices(); i++) (void)json_array_append_new(devices, json_sprintf("gpu:%d", i));
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:s, s:o, s:o}", "version", tlamp_version_string(), "build",
                     machine_compiler(), "machine", m->processor, "features", m->features, "threads",
                     (json_int_t)m->threads, "isa", tlamp_isa(), "kernels", list, "devices", devices);
}

int command_info(int argc, char **argv, fault *f)
{
    common_options options = {.threads = 0};
    int code = cli_parse(&info_argp, argc, argv, &options);
    if (code) {
        *f = options.error;
        return code;
    }
    code = common_apply(&options, f);
    if (code) return code;
    machine m;
    machine_read(&m);
    tlamp_kernel_info kernels[MACHINE_MAX_KERNELS];
    const int32_t count = read_kernels(kernels);
    if (options.json) return print_json(describe(&m, kernels, count), f);
    print_text(&m, kernels, count);
    return DONE;
}
