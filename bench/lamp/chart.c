#include "chart.h"

#include <cairo-svg.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/file.h"

/* ------------------------------------------------------------------------------------------------ pens */

typedef struct colour {
    double r, g, b;
} colour;

static const colour ink = {0.15, 0.17, 0.20}, soft = {0.42, 0.45, 0.50}, grid_grey = {0.89, 0.90, 0.92};
#define BLUE                                                                                                           \
    {                                                                                                                  \
        0.15, 0.34, 0.60                                                                                               \
    }
#define LIGHT_BLUE                                                                                                     \
    {                                                                                                                  \
        0.45, 0.66, 0.86                                                                                               \
    }
#define DARK_BLUE                                                                                                      \
    {                                                                                                                  \
        0.07, 0.17, 0.33                                                                                               \
    }
#define ORANGE                                                                                                         \
    {                                                                                                                  \
        0.85, 0.51, 0.17                                                                                               \
    }
#define GREEN                                                                                                          \
    {                                                                                                                  \
        0.24, 0.60, 0.44                                                                                               \
    }
#define PALE                                                                                                           \
    {                                                                                                                  \
        0.86, 0.89, 0.93                                                                                               \
    }

static void use(cairo_t *c, colour k) { cairo_set_source_rgb(c, k.r, k.g, k.b); }

/* at: where the text stands on x: 0 begins there, .5 is centred, 1 ends there */
static void put_text(cairo_t *c, double x, double y, double size, colour k, double at, const char *text)
{
    cairo_text_extents_t extents;
    cairo_set_font_size(c, size);
    cairo_text_extents(c, text, &extents);
    use(c, k);
    cairo_move_to(c, x - at * extents.x_advance, y);
    cairo_show_text(c, text);
}

static void put_line(cairo_t *c, double x0, double y0, double x1, double y1, double width, colour k, bool dashed)
{
    static const double dashes[] = {4, 3};
    use(c, k);
    cairo_set_line_width(c, width);
    cairo_set_dash(c, dashes, dashed ? 2 : 0, 0);
    cairo_move_to(c, x0, y0);
    cairo_line_to(c, x1, y1);
    cairo_stroke(c);
    cairo_set_dash(c, dashes, 0, 0);
}

static void put_dot(cairo_t *c, double x, double y, colour k)
{
    static const double radius = 3.2, full = 6.283185307179586;
    use(c, k);
    cairo_arc(c, x, y, radius, 0, full);
    cairo_fill(c);
}

static void put_box(cairo_t *c, double x, double y, double width, double height, colour k)
{
    use(c, k);
    cairo_rectangle(c, x, y, width, height);
    cairo_fill(c);
}

/* ------------------------------------------------------------------------------------------------ pages */

/* Panels in two columns, under a title and above a legend. */
static const double margin = 20, head = 58, foot = 40;
static const double panel_width = 400, panel_height = 262;         /* with its labels */
static const double left = 52, right = 14, above = 26, below = 44; /* around the plot in a panel */

typedef struct plot {
    double x, y, width, height;
} plot;

static plot plot_of(int index)
{
    return (plot){margin + (index % 2) * panel_width + left, head + (double)(index / 2) * panel_height + above,
                  panel_width - left - right, panel_height - above - below};
}

typedef struct key {
    const char *text;
    colour colour;
} key;

static void put_legend(cairo_t *c, double y, const key *keys, int count)
{
    double x = margin + left;
    for (int i = 0; i < count; i++) {
        cairo_text_extents_t extents;
        put_box(c, x, y - 9, 11, 11, keys[i].colour);
        put_text(c, x + 17, y, 12, ink, 0, keys[i].text);
        cairo_text_extents(c, keys[i].text, &extents);
        x += 17 + extents.x_advance + 22;
    }
}

typedef struct page {
    const char *title, *subtitle;
    const key *keys;
    int num_keys, num_panels;
    const sweep *sweeps;
    void (*draw_panel)(cairo_t *c, const struct page *p, int index);
} page;

static cairo_status_t write_bytes(void *stream, const unsigned char *data, unsigned int length)
{
    return fwrite(data, 1, length, stream) == length ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static void draw_page(cairo_surface_t *surface, const page *p, double height)
{
    cairo_t *c = cairo_create(surface);
    cairo_select_font_face(c, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    use(c, (colour){1, 1, 1});
    cairo_paint(c);
    put_text(c, margin, margin + 12, 16, ink, 0, p->title);
    put_text(c, margin, margin + 31, 12, soft, 0, p->subtitle);
    for (int i = 0; i < p->num_panels; i++) p->draw_panel(c, p, i);
    put_legend(c, height - margin, p->keys, p->num_keys);
    cairo_destroy(c);
}

static int write_page(const char *directory, const char *name, const page *p, fault *f)
{
    char path[1024];
    file_writer writer;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", directory, name) >= sizeof path)
        return fault_set(f, BAD_INPUT, "%.60s...: the name is too long: take another folder", directory);
    int code = file_begin(&writer, path, f);
    if (code) return code;
    const double height = head + (double)((p->num_panels + 1) / 2) * panel_height + foot;
    cairo_surface_t *surface = cairo_svg_surface_create_for_stream(write_bytes, writer.stream,
                                                                   2 * margin + 2 * panel_width, height);
    draw_page(surface, p, height);
    cairo_surface_finish(surface);
    const cairo_status_t status = cairo_surface_status(surface);
    cairo_surface_destroy(surface);
    code = file_end(&writer, f);
    if (code || !status) return code;
    return fault_set(f, BAD_INPUT, "%s: cannot be drawn: %s", path, cairo_status_to_string(status));
}

/* ------------------------------------------------------------------------------------------------ axes */

static double x_at(const plot *q, double share) { return q->x + share * q->width; }

static void put_share_axis(cairo_t *c, const plot *q, const char *label)
{
    for (int i = 0; i <= 4; i++) {
        char text[16];
        const double x = x_at(q, 0.25 * i);
        (void)snprintf(text, sizeof text, "%d %%", 25 * i);
        put_line(c, x, q->y, x, q->y + q->height, 0.6, grid_grey, false);
        put_text(c, x, q->y + q->height + 15, 10, soft, 0.5, text);
    }
    put_text(c, q->x + q->width / 2, q->y + q->height + 31, 11, ink, 0.5, label);
}

/* Powers of ten. */
typedef struct decades {
    double lowest, highest; /* exponents */
} decades;

static decades decades_of(const sweep *s)
{
    decades d = {floor(log10(sweep_best(s))), ceil(log10(sweep_worst(s)))};
    if (!(d.lowest > -12)) d.lowest = -12;
    if (!(d.highest > d.lowest)) d.highest = d.lowest + 1;
    return d;
}

static double y_at(const plot *q, decades d, double error)
{
    const double place = (log10(error) - d.lowest) / (d.highest - d.lowest);
    return q->y + q->height * (1 - (place > 0 ? place : 0)); /* NaN is not drawn by cairo */
}

static void put_error_axis(cairo_t *c, const plot *q, decades d)
{
    for (double e = d.lowest; e <= d.highest; e++) {
        char text[16];
        const double y = y_at(q, d, pow(10, e));
        (void)snprintf(text, sizeof text, "1e%d", (int)e);
        put_line(c, q->x, y, q->x + q->width, y, 0.6, grid_grey, false);
        put_text(c, q->x - 6, y + 4, 10, soft, 1, text);
    }
}

static void put_panel_title(cairo_t *c, const plot *q, const char *title)
{
    put_text(c, q->x, q->y - 9, 12, ink, 0, title);
}

/* ------------------------------------------------------------------------------------------------ error and share */

static void put_baseline(cairo_t *c, const plot *q, decades d, double error, const char *name, bool at_right)
{
    const double y = y_at(q, d, error);
    put_line(c, q->x, y, q->x + q->width, y, 1, soft, true);
    put_text(c, at_right ? q->x + q->width - 4 : q->x + 4, y - 4, 10, soft, at_right ? 1 : 0, name);
}

/* From tau = 1 to 2^-5. */
static void put_curve(cairo_t *c, const plot *q, decades d, const trial trials[NUM_TAUS], colour k)
{
    for (int tau = 1; tau < NUM_TAUS; tau++)
        put_line(c, x_at(q, trial_recomputed(&trials[tau - 1])), y_at(q, d, trials[tau - 1].rel_mae),
                 x_at(q, trial_recomputed(&trials[tau])), y_at(q, d, trials[tau].rel_mae), 1.6, k, false);
    for (int tau = 0; tau < NUM_TAUS; tau++)
        put_dot(c, x_at(q, trial_recomputed(&trials[tau])), y_at(q, d, trials[tau].rel_mae), k);
}

static void begin_tradeoff(cairo_t *c, const plot *q, decades d, const sweep *s)
{
    put_panel_title(c, q, s->name);
    put_share_axis(c, q, "recomputed sub-blocks");
    put_error_axis(c, q, d);
    put_baseline(c, q, d, s->low.rel_mae, "all 8 bits", true);
    put_baseline(c, q, d, s->mid.rel_mae, "all 16 bits", false);
}

static const key delta_keys[NUM_DELTAS] = {{"delta = 2^-8", BLUE}, {"delta = 2^-4", ORANGE}, {"stage one off", GREEN}};
static const key rows_keys[NUM_ROWS] = {{"b_q = 16", LIGHT_BLUE}, {"b_q = 32", BLUE}, {"b_q = 128", DARK_BLUE}};

static void draw_deltas(cairo_t *c, const page *p, int index)
{
    const sweep *s = &p->sweeps[index];
    const plot q = plot_of(index);
    const decades d = decades_of(s);
    begin_tradeoff(c, &q, d, s);
    for (int i = 0; i < NUM_DELTAS; i++) put_curve(c, &q, d, s->lamp[i][HEADLINE_ROWS], delta_keys[i].colour);
}

static void draw_rows(cairo_t *c, const page *p, int index)
{
    const sweep *s = &p->sweeps[index];
    const plot q = plot_of(index);
    const decades d = decades_of(s);
    begin_tradeoff(c, &q, d, s);
    for (int i = 0; i < NUM_ROWS; i++) put_curve(c, &q, d, s->lamp[HEADLINE_DELTA][i], rows_keys[i].colour);
}

/* ------------------------------------------------------------------------------------------------ cascade */

static const key cascade_keys[] = {
    {"stage one; 2+ in a tile", BLUE}, {"stage two; 1 in a tile", ORANGE}, {"stays low; 0 in a tile", PALE}};

/* A bar from the bottom up; parts add up to 1. */
static void put_bar(cairo_t *c, const plot *q, double x, double width, const double parts[3])
{
    double y = q->y + q->height;
    for (int i = 0; i < 3; i++) {
        const double height = parts[i] * q->height;
        y -= height;
        put_box(c, x, y, width, height, cascade_keys[i].colour);
    }
}

static void put_percent_axis(cairo_t *c, const plot *q)
{
    for (int i = 0; i <= 4; i++) {
        char text[16];
        const double y = q->y + q->height * (1 - 0.25 * i);
        (void)snprintf(text, sizeof text, "%d %%", 25 * i);
        put_line(c, q->x, y, q->x + q->width, y, 0.6, grid_grey, false);
        put_text(c, q->x - 6, y + 4, 10, soft, 1, text);
    }
}

static void cascade_parts(const trial *t, bool tiles, double parts[3])
{
    parts[0] = tiles ? trial_tiles(t, 2) : trial_stage_one(t);
    parts[1] = tiles ? trial_tiles(t, 1) : trial_stage_two(t);
    parts[2] = 1 - parts[0] - parts[1];
}

static void draw_cascade(cairo_t *c, const page *p, int index)
{
    const sweep *s = &p->sweeps[index / 2];
    const bool tiles = index % 2;
    const plot q = plot_of(index);
    const double groups = NUM_DELTAS, bars = NUM_TAUS, gap = 16;
    const double group = q.width / groups, step = (group - gap) / bars;
    put_panel_title(c, &q, tiles ? "tiles, by recomputed sub-blocks: 0, 1, 2+" : s->name);
    put_percent_axis(c, &q);
    for (int delta = 0; delta < NUM_DELTAS; delta++) {
        const double x = q.x + gap / 2 + delta * group;
        for (int tau = 0; tau < NUM_TAUS; tau++) {
            double parts[3];
            char text[8];
            cascade_parts(&s->lamp[delta][HEADLINE_ROWS][tau], tiles, parts);
            put_bar(c, &q, x + tau * step, step - 2, parts);
            (void)snprintf(text, sizeof text, "%d", -tau);
            put_text(c, x + (tau + 0.5) * step - 1, q.y + q.height + 13, 9, soft, 0.5, text);
        }
        put_text(c, x + bars * step / 2, q.y + q.height + 28, 11, ink, 0.5, delta_keys[delta].text);
    }
}

/* ------------------------------------------------------------------------------------------------ all */

int chart_draw_all(const char *directory, const sweep *sweeps, int count, fault *f)
{
    const struct {
        const char *name;
        page page;
    } charts[] = {
        {"lamp-tradeoff.svg",
         {"Error against recomputation, by the margin of stage one",
          "relMAE of O; b_q = 32; along a line tau = 1, 2^-1, ... 2^-5 from left to right", delta_keys, NUM_DELTAS,
          count, sweeps, draw_deltas}},
        {"lamp-rows.svg",
         {"Error against recomputation, by the rows that decide together",
          "relMAE of O; delta = 2^-8; along a line tau = 1, 2^-1, ... 2^-5 from left to right", rows_keys, NUM_ROWS,
          count, sweeps, draw_rows}},
        {"lamp-cascade.svg",
         {"Who recomputes what",
          "b_q = 32. Left: sub-blocks, by stage. Right: tiles, by how many they recompute. Below the bars: log2 tau",
          cascade_keys, 3, 2 * count, sweeps, draw_cascade}},
    };
    int code = DONE;
    for (size_t i = 0; i < sizeof charts / sizeof charts[0] && !code; i++)
        code = write_page(directory, charts[i].name, &charts[i].page, f);
    return code;
}
