#define _GNU_SOURCE /* strtok_r */
#include "policy.h"

#include <stdio.h>
#include <string.h>

#include "parse.h"

bool policy_has_words(const policy_spec *spec) { return spec->layout != NO_LAYOUT || spec->words_file[0]; }

const char policy_help[] = "\n"
                           "POLICY is a base, then modifiers if any, e.g. \"band:0.5 smooth-k\". Bases:\n"
                           "  high                every tile in f32 arithmetic\n"
                           "  int8                every tile of scores from INT8 codes\n"
                           "  LAYOUT:COVERAGE     part INT8, part high: the layout says where, the\n"
                           "                      coverage (0 to 1) how much is INT8. Layouts: band,\n"
                           "                      global, row_rand, align_sparse, bigbird, sptrans,\n"
                           "                      sptrans_scaled; one (all INT8) and zero (none) take no\n"
                           "                      coverage\n"
                           "  words:FILE          the routing map in FILE, as `tilelamp mask --json`\n"
                           "                      prints it\n"
                           "  x3                  three INT8 products, near-f32 scores; implies\n"
                           "                      scales=token smooth-k, and hadamard where d is a power\n"
                           "                      of two\n"
                           "  lamp:int8,tau=0.1   INT8 first, risky sub-blocks again in high precision\n"
                           "                      (not in this version)\n"
                           "  lamp:fmt=e4m3/e4m11,mode=sim,delta=2^-8,tau=2^-1,bq=32,bk=16,nk=4\n"
                           "                      the same with simulated formats (delta=off: stage two\n"
                           "                      only, mode=hw: the formats' range too)\n"
                           "  lamp:low lamp:mid lamp:f32   all in the first format, the second, f32\n"
                           "  tolerance:0.03      not in this version: the cheapest that keeps the error\n"
                           "                      below 0.03; also ,eps=rigorous|stat6|expected and\n"
                           "                      ,kind=weights|output\n"
                           "Modifiers:\n"
                           "  tile=128x64         rows and keys of a routing tile\n"
                           "  g=N                 key tiles per routing bit (default: auto)\n"
                           "  retarget=SEED       shift single groups until the coverage by tiles is met\n"
                           "  scales=block        or token, f16: what an INT8 scale covers, and its type\n"
                           "  smooth-k            remove the mean of the keys before quantising\n"
                           "  hadamard            rotate q and k before quantising (d a power of two)\n"
                           "  quant=once          or fly: when keys are quantised\n"
                           "  pv=auto             or f32, bf16, int8: arithmetic of P V\n"
                           "  state=fp16          running maximum, sum and output in fp16, as the paper\n"
                           "                      has them\n"
                           "  gate=LAYOUT:COVER   lamp: only what the layout makes INT8 may be cheap\n"
                           "  round=stochastic    lamp: stochastic rounding of the simulated formats\n"
                           "  layout=compact      lamp: a tile with two or more risky sub-blocks is\n"
                           "                      computed high as a whole; or safe\n"
                           "  splits=N|auto       parts that the keys are split into, merged at the end\n";

static int not_understood(const char *what, const char *write, fault *f)
{
    return fault_set(f, BAD_INPUT, "policy: '%.80s' is not understood: write %s", what, write);
}

/* ------------------------------------------------------------------------------------------------ bases */

tlamp_layout_kind layout_of_name(const char *name)
{
    for (tlamp_layout_kind kind = 0; tlamp_layout_name(kind); kind++)
        if (strcmp(tlamp_layout_name(kind), name) == 0) return kind;
    return NO_LAYOUT;
}

bool layout_takes_coverage(tlamp_layout_kind layout)
{
    return layout != TLAMP_LAYOUT_ONE && layout != TLAMP_LAYOUT_ZERO;
}

static int take_layout(policy_spec *spec, const char *value, const char *base, fault *f)
{
    spec->policy.kind = TLAMP_POLICY_ROUTED;
    if (layout_takes_coverage(spec->layout)) {
        if (value && parse_real(value, false, &spec->coverage) && spec->coverage >= 0 && spec->coverage <= 1)
            return DONE;
        return not_understood(base, "LAYOUT:COVERAGE with a coverage from 0 to 1, e.g. band:0.5", f);
    }
    return value ? not_understood(base, "one and zero without a coverage", f) : DONE;
}

static int take_words(policy_spec *spec, const char *value, const char *base, fault *f)
{
    if (!value || !*value) return not_understood(base, "words:FILE", f);
    spec->policy.kind = TLAMP_POLICY_ROUTED;
    (void)snprintf(spec->words_file, sizeof spec->words_file, "%s", value);
    return DONE;
}

/* "int8", or a baseline of the simulated formats. */
static bool take_lamp_word(tlamp_policy *policy, const char *word)
{
    static const char *const runs[] = {"", "low", "mid", "f32"}; /* as tlamp_lamp_run counts them */
    if (strcmp(word, "int8") == 0) {
        policy->lamp_format = TLAMP_LAMP_INT8;
        policy->lamp_b_q = 16;
        return true;
    }
    const int run = find_name(runs, 4, word);
    policy->lamp_run = run;
    policy->lamp_format = TLAMP_LAMP_E4M3;
    return run > TLAMP_LAMP_RUN_LAMP;
}

/* "delta=2^-8" and so on. */
static bool take_lamp_option(tlamp_policy *policy, const char *name, const char *value)
{
    double x;
    if (!value) return take_lamp_word(policy, name);
    if (strcmp(name, "fmt") == 0) {
        policy->lamp_format = TLAMP_LAMP_E4M3;
        return strcmp(value, "e4m3/e4m11") == 0;
    }
    if (strcmp(name, "mode") == 0) {
        policy->lamp_mode = strcmp(value, "hw") == 0 ? TLAMP_LAMP_HW : TLAMP_LAMP_SIM;
        return policy->lamp_mode == TLAMP_LAMP_HW || strcmp(value, "sim") == 0;
    }
    if (strcmp(name, "delta") == 0) {
        if (strcmp(value, "off") == 0)
            x = -1;
        else if (!parse_real(value, false, &x) || x < 0 || x > 1e30)
            return false;
        policy->delta = (float)x;
        return true;
    }
    if (strcmp(name, "tau") == 0) {
        if (!parse_real(value, false, &x) || x < 0 || x > 1e30) return false;
        policy->tau = (float)x;
        return true;
    }
    if (strcmp(name, "bq") == 0) return parse_int32(value, 1, 1 << 16, &policy->lamp_b_q);
    if (strcmp(name, "bk") == 0) return parse_int32(value, 1, 1 << 16, &policy->lamp_b_k);
    return strcmp(name, "nk") == 0 && parse_int32(value, 1, 1 << 16, &policy->lamp_n_k);
}

static int take_lamp(policy_spec *spec, char *value, const char *base, fault *f)
{
    spec->policy.kind = TLAMP_POLICY_LAMP;
    if (!value)
        return not_understood(base, "lamp:int8,tau=0.1, lamp:fmt=e4m3/e4m11, lamp:low, lamp:mid or lamp:f32", f);
    for (char *option; (option = next_piece(&value, ','));) {
        char *argument = option;
        const char *name = next_piece(&argument, '=');
        if (!take_lamp_option(&spec->policy, name, argument))
            return not_understood(base, "options that `tilelamp run --help` lists", f);
    }
    return DONE;
}

static void imply_fine_scales(policy_spec *spec)
{
    spec->policy.scales = TLAMP_SCALES_TOKEN;
    spec->policy.smooth_k = 1;
    spec->hadamard_if_possible = true;
}

static bool take_tolerance_option(tlamp_policy *policy, const char *name, const char *value)
{
    static const char *const providers[] = {"rigorous", "stat6", "expected"};
    static const char *const kinds[] = {"weights", "output"};
    if (!value) return false;
    if (strcmp(name, "eps") == 0) return (policy->provider = find_name(providers, 3, value)) >= 0;
    return strcmp(name, "kind") == 0 && (policy->tolerance_kind = find_name(kinds, 2, value)) >= 0;
}

static int take_tolerance(policy_spec *spec, char *value, const char *base, fault *f)
{
    static const char usage[] = "tolerance:0.03[,eps=rigorous|stat6|expected][,kind=weights|output]";
    tlamp_policy *policy = &spec->policy;
    policy->kind = TLAMP_POLICY_TOLERANCE;
    policy->lamp_b_q = 16;
    imply_fine_scales(spec);
    double tolerance;
    const char *first = next_piece(&value, ',');
    if (!first || !parse_real(first, false, &tolerance) || tolerance < 0 || tolerance > 1e30)
        return not_understood(base, usage, f);
    policy->tolerance = (float)tolerance;
    for (char *option; (option = next_piece(&value, ','));) {
        char *argument = option;
        const char *name = next_piece(&argument, '=');
        if (!take_tolerance_option(policy, name, argument)) return not_understood(base, usage, f);
    }
    return DONE;
}

static int take_base(policy_spec *spec, const char *base, fault *f)
{
    char copy[POLICY_MAX_TEXT];
    (void)snprintf(copy, sizeof copy, "%s", base);
    char *value = copy;
    const char *name = next_piece(&value, ':');
    spec->layout = layout_of_name(name);
    if (spec->layout != NO_LAYOUT) return take_layout(spec, value, base, f);
    if (strcmp(name, "words") == 0) return take_words(spec, value, base, f);
    if (strcmp(name, "lamp") == 0) return take_lamp(spec, value, base, f);
    if (strcmp(name, "tolerance") == 0) return take_tolerance(spec, value, base, f);
    if (strcmp(name, "adaptive") == 0)
        return fault_set(f, UNAVAILABLE, "policy: '%.80s': adaptive maps are not in this version: use a layout", base);
    if (strcmp(base, "high") == 0) return DONE;
    if (strcmp(base, "int8") == 0 || strcmp(base, "x3") == 0) {
        spec->policy.kind = base[0] == 'x' ? TLAMP_POLICY_X3 : TLAMP_POLICY_INT8;
        if (base[0] == 'x') imply_fine_scales(spec);
        return DONE;
    }
    return fault_set(f, BAD_INPUT, "policy: '%.80s' is no known policy: see `tilelamp run --help`", base);
}

/* ------------------------------------------------------------------------------------------------ modifiers */

static bool take_tile(policy_spec *spec, char *value)
{
    const char *rows = next_piece(&value, 'x');
    spec->has_tile = true;
    return value && parse_int32(rows, 1, 1 << 20, &spec->policy.block_m) &&
           parse_int32(value, 1, 1 << 20, &spec->policy.block_n);
}

static bool take_group(policy_spec *spec, char *value)
{
    return strcmp(value, "auto") == 0 || parse_int32(value, 1, INT32_MAX, &spec->group);
}

static bool take_retarget(policy_spec *spec, char *value)
{
    spec->retarget = spec->has_seed = true;
    return parse_uint32(value, &spec->seed);
}

static bool take_scales(policy_spec *spec, char *value)
{
    static const char *const names[] = {"block", "token", "f16"};
    return (spec->policy.scales = find_name(names, 3, value)) >= 0;
}

static bool take_quant(policy_spec *spec, char *value)
{
    static const char *const names[] = {"once", "fly"};
    return (spec->policy.quantise = find_name(names, 2, value)) >= 0;
}

static const char *const pv_names[] = {"auto", "f32", "bf16", "int8"}; /* as tlamp_pv counts them */

static bool take_pv(policy_spec *spec, char *value) { return (spec->policy.pv = find_name(pv_names, 4, value)) >= 0; }

const char *policy_pv_name(tlamp_pv pv) { return pv >= 0 && pv < 4 ? pv_names[pv] : ""; }

static bool take_state(policy_spec *spec, char *value)
{
    spec->policy.state = strcmp(value, "fp16") == 0 ? TLAMP_STATE_F16 : TLAMP_STATE_F32;
    return spec->policy.state == TLAMP_STATE_F16 || strcmp(value, "f32") == 0;
}

static bool take_gate(policy_spec *spec, char *value)
{
    const char *name = next_piece(&value, ':');
    spec->layout = layout_of_name(name);
    if (spec->layout == NO_LAYOUT || spec->policy.kind != TLAMP_POLICY_LAMP) return false;
    if (!layout_takes_coverage(spec->layout)) return !value;
    return value && parse_real(value, false, &spec->coverage) && spec->coverage >= 0 && spec->coverage <= 1;
}

static bool take_round(policy_spec *spec, char *value)
{
    spec->policy.lamp_stochastic = 1;
    return spec->policy.kind == TLAMP_POLICY_LAMP && strcmp(value, "stochastic") == 0;
}

static bool take_compact(policy_spec *spec, char *value)
{
    static const char *const names[] = {"safe", "compact"};
    spec->policy.lamp_compact = find_name(names, 2, value);
    return spec->policy.kind == TLAMP_POLICY_LAMP && spec->policy.lamp_compact >= 0;
}

static bool take_splits(policy_spec *spec, char *value) { return parse_splits(value, &spec->splits); }

/* "name=value" */
static const struct modifier {
    const char *name;
    bool (*take)(policy_spec *spec, char *value);
    const char *form;
} modifiers[] = {
    {"tile", take_tile, "tile=ROWSxKEYS, e.g. tile=128x64"},
    {"g", take_group, "g=auto or g=N"},
    {"retarget", take_retarget, "retarget=SEED, a whole number below 2^32"},
    {"scales", take_scales, "scales=block, token or f16"},
    {"quant", take_quant, "quant=once or quant=fly"},
    {"pv", take_pv, "pv=auto, f32, bf16 or int8"},
    {"state", take_state, "state=fp16"},
    {"splits", take_splits, "splits=N, 1 to 1048576, or splits=auto"},
    {"gate", take_gate, "gate=LAYOUT:COVERAGE after lamp:..."},
    {"round", take_round, "round=stochastic after lamp:..."},
    {"layout", take_compact, "layout=safe or layout=compact after lamp:..."},
};
enum { NUM_MODIFIERS = sizeof modifiers / sizeof modifiers[0] };

static int take_modifier(policy_spec *spec, uint32_t *given, const char *text, fault *f)
{
    char copy[POLICY_MAX_TEXT];
    (void)snprintf(copy, sizeof copy, "%s", text);
    char *value = copy;
    const char *name = next_piece(&value, '=');
    if (!value && (strcmp(name, "smooth-k") == 0 || strcmp(name, "hadamard") == 0)) {
        *(name[0] == 's' ? &spec->policy.smooth_k : &spec->policy.hadamard) = 1;
        return DONE;
    }
    for (int i = 0; value && i < NUM_MODIFIERS; i++) {
        if (strcmp(modifiers[i].name, name) != 0) continue;
        if (*given & (uint32_t)1 << i)
            return fault_set(f, BAD_INPUT, "policy: %s= is given twice: leave one of them out", name);
        *given |= (uint32_t)1 << i;
        return modifiers[i].take(spec, value) ? DONE : not_understood(text, modifiers[i].form, f);
    }
    return fault_set(f, BAD_INPUT, "policy: '%.80s' is no known modifier: see `tilelamp run --help`", text);
}

/* g= and retarget= belong to maps that are built here. */
static int check_modifiers(const policy_spec *spec, fault *f)
{
    if (spec->layout != NO_LAYOUT || (!spec->group && !spec->retarget)) return DONE;
    return fault_set(f, BAD_INPUT, "policy: g= and retarget= need a layout, e.g. band:0.5 g=2: leave them out");
}

int policy_parse(policy_spec *spec, const char *text, fault *f)
{
    *spec = (policy_spec){.layout = NO_LAYOUT};
    tlamp_policy_init(&spec->policy, sizeof spec->policy);
    char copy[POLICY_MAX_TEXT];
    if (strlen(text) >= sizeof copy)
        return fault_set(f, BAD_INPUT, "policy: more than %d characters: shorten it", POLICY_MAX_TEXT - 1);
    strcpy(copy, text);
    uint32_t given = 0;
    int code = DONE;
    char *rest = NULL;
    for (const char *piece = strtok_r(copy, " \t\n", &rest); piece && !code; piece = strtok_r(NULL, " \t\n", &rest)) {
        const bool first = !spec->text[0];
        if (!first) strcat(spec->text, " ");
        strcat(spec->text, piece); /* no longer than the text it comes from */
        code = first ? take_base(spec, piece, f) : take_modifier(spec, &given, piece, f);
    }
    if (code) return code;
    if (!spec->text[0]) return fault_set(f, BAD_INPUT, "policy: it is empty: write, say, high, int8 or band:0.5");
    return check_modifiers(spec, f);
}

int policy_of_layout(policy_spec *spec, tlamp_layout_kind layout, double coverage, fault *f)
{
    char text[80];
    (void)snprintf(text, sizeof text, "%s:%.9g", tlamp_layout_name(layout), coverage);
    return policy_parse(spec, layout_takes_coverage(layout) ? text : tlamp_layout_name(layout), f);
}
