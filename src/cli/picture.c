#include "picture.h"

#include <cairo-svg.h>
#include <stdio.h>

#include "file.h"

/* ------------------------------------------------------------------------------------------------ cells */

static int64_t at_least(int64_t x, int64_t low) { return x < low ? low : x; }

static int64_t at_most(int64_t x, int64_t high) { return x > high ? high : x; }

/* Is there a legal (row, key) pair in the group? Both ends of a row's keys move forwards from one row to the next, so the
 * first row of the tile has the first legal key and the last row the last one. */
static int is_legal(const picture *p, int64_t row, int64_t group)
{
    const tlamp_geometry *g = &p->geometry;
    const int64_t width = (int64_t)g->group * g->block_n, all = g->seqlen_q + g->seqlen_k;
    const int64_t first = row * g->block_m, last = at_most(first + g->block_m, g->seqlen_q) - 1;
    const int64_t shift = g->mask == TLAMP_MASK_CAUSAL_TOP_LEFT ? 0 : g->seqlen_k - g->seqlen_q;
    int64_t begin = 0, end = g->seqlen_k;
    if (g->window_left >= 0) begin = at_least(first + shift - at_most(g->window_left, all), 0);
    if (g->window_right >= 0) end = at_most(end, last + shift + at_most(g->window_right, all) + 1);
    if (g->mask) end = at_most(end, last + shift + 1);
    return at_least(begin, group * width) < at_most(end, (group + 1) * width);
}

cell picture_cell(const picture *p, int64_t row, int64_t group)
{
    if (!is_legal(p, row, group)) return CELL_ILLEGAL;
    return p->words[row * p->words_per_row + group / 64] >> (group % 64) & 1 ? CELL_INT8 : CELL_HIGH;
}

int64_t picture_run(const picture *p, int64_t row, int64_t group)
{
    const cell kind = picture_cell(p, row, group);
    int64_t end = group + 1;
    while (end < p->groups && picture_cell(p, row, end) == kind) end++;
    return end - group;
}

/* ------------------------------------------------------------------------------------------------ drawing */

/* The page in points: a title, the map with its axes, a legend. */
static const double margin = 24, head = 40, legend = 56, longest = 640;

typedef struct page {
    double cell_width, cell_height, width, height;
} page;

static page lay_out(const picture *p)
{
    const double columns = p->groups > 0 ? (double)p->groups : 1, rows = p->rows > 0 ? (double)p->rows : 1;
    page g = {.cell_width = longest / columns, .cell_height = longest / rows};
    /* a group is drawn in proportion to its rows and keys, unless that would make a thread of the map */
    const double tall = (double)p->geometry.block_m / ((double)p->geometry.group * p->geometry.block_n);
    if (g.cell_width * tall * rows <= longest && g.cell_width * tall * rows >= 120)
        g.cell_height = g.cell_width * tall;
    else if (g.cell_height / tall * columns <= longest && g.cell_height / tall * columns >= 120)
        g.cell_width = g.cell_height / tall;
    g.width = g.cell_width * columns + 2 * margin;
    g.height = g.cell_height * rows + 2 * margin + head + legend;
    if (g.width < 420) g.width = 420;
    return g;
}

static void set_colour(cairo_t *c, cell kind)
{
    if (kind == CELL_ILLEGAL) cairo_set_source_rgb(c, 0.925, 0.933, 0.945);
    if (kind == CELL_HIGH) cairo_set_source_rgb(c, 0.149, 0.337, 0.592);
    if (kind == CELL_INT8) cairo_set_source_rgb(c, 0.965, 0.702, 0.286);
}

static void draw_text(cairo_t *c, double x, double y, double size, const char *text)
{
    cairo_set_source_rgb(c, 0.15, 0.17, 0.2);
    cairo_set_font_size(c, size);
    cairo_move_to(c, x, y);
    cairo_show_text(c, text);
}

static void draw_cells(cairo_t *c, const picture *p, const page *g)
{
    const double gap = g->cell_width > 6 && g->cell_height > 6 ? 0.5 : 0;
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t group = 0, run; group < p->groups; group += run) {
            run = gap > 0 ? 1 : picture_run(p, row, group);
            set_colour(c, picture_cell(p, row, group));
            cairo_rectangle(c, margin + (double)group * g->cell_width + gap,
                            margin + head + (double)row * g->cell_height + gap, (double)run * g->cell_width - 2 * gap,
                            g->cell_height - 2 * gap);
            cairo_fill(c);
        }
}

static void draw_legend(cairo_t *c, const picture *p, double y)
{
    static const char *const names[] = {"not computed", "high precision", "INT8"};
    double x = margin;
    for (cell kind = CELL_ILLEGAL; kind <= CELL_INT8; kind++) {
        set_colour(c, kind);
        cairo_rectangle(c, x, y, 12, 12);
        cairo_fill(c);
        draw_text(c, x + 18, y + 11, 12, names[kind]);
        x += 128;
    }
    char text[160];
    (void)snprintf(text, sizeof text, "down: rows of %d queries; across: groups of %lld keys", p->geometry.block_m,
                   (long long)p->geometry.group * p->geometry.block_n);
    draw_text(c, margin, y + 34, 12, text);
}

static void draw(cairo_surface_t *surface, const picture *p, const page *g)
{
    cairo_t *c = cairo_create(surface);
    cairo_select_font_face(c, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_source_rgb(c, 1, 1, 1);
    cairo_paint(c);
    draw_text(c, margin, margin + 14, 16, p->title);
    cairo_set_antialias(c, CAIRO_ANTIALIAS_NONE);
    draw_cells(c, p, g);
    cairo_set_antialias(c, CAIRO_ANTIALIAS_DEFAULT);
    draw_legend(c, p, g->height - margin - legend + 20);
    cairo_destroy(c);
}

/* ------------------------------------------------------------------------------------------------ files */

static cairo_status_t write_bytes(void *stream, const unsigned char *data, unsigned int length)
{
    return fwrite(data, 1, length, stream) == length ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static int finish(file_writer *writer, cairo_surface_t *surface, cairo_status_t status, fault *f)
{
    if (!status) status = cairo_surface_status(surface);
    cairo_surface_destroy(surface);
    if (!status || status == CAIRO_STATUS_WRITE_ERROR) return file_end(writer, f); /* which knows why */
    file_cancel(writer);
    return fault_set(f, BAD_INPUT, "%s: cannot be drawn (%s): take a smaller map", writer->path,
                     cairo_status_to_string(status));
}

int picture_write_svg(const picture *p, const char *path, fault *f)
{
    file_writer writer;
    const int code = file_begin(&writer, path, f);
    if (code) return code;
    const page g = lay_out(p);
    cairo_surface_t *surface = cairo_svg_surface_create_for_stream(write_bytes, writer.stream, g.width, g.height);
    draw(surface, p, &g);
    cairo_surface_finish(surface);
    return finish(&writer, surface, CAIRO_STATUS_SUCCESS, f);
}

int picture_write_png(const picture *p, const char *path, fault *f)
{
    static const double pixels_per_point = 2;
    file_writer writer;
    const int code = file_begin(&writer, path, f);
    if (code) return code;
    const page g = lay_out(p);
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)(g.width * pixels_per_point),
                                                          (int)(g.height * pixels_per_point));
    cairo_surface_set_device_scale(surface, pixels_per_point, pixels_per_point);
    draw(surface, p, &g);
    return finish(&writer, surface, cairo_surface_write_to_png_stream(surface, write_bytes, writer.stream), f);
}
