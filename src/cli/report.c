#define _GNU_SOURCE /* localtime_r */
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "file.h"
#include "machine.h"
#include "picture.h"
#include "result.h"

/* ------------------------------------------------------------------------------------------------ text */

static void put_text(FILE *out, const char *text)
{
    for (; text && *text; text++) {
        switch (*text) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        default: putc((unsigned char)*text < ' ' ? ' ' : *text, out); break;
        }
    }
}

static const char style[] =
    ":root{color-scheme:light "
    "dark;--page:#f6f7f9;--card:#fff;--text:#1c2129;--soft:#5c6673;--line:#dfe3e8;--none:#edeff2;"
    "--high:#2f66a9;--int8:#eda53a;--other:#7b8794;--bad:#c0392b}\n"
    "@media(prefers-color-scheme:dark){:root{--page:#14171b;--card:#1c2026;--text:#e4e8ee;--soft:#98a3b1;--line:#"
    "323941;"
    "--none:#262b32;--high:#6ea6ea;--int8:#f0b354;--other:#8d99a6;--bad:#ff7a6b}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,sans-serif}\n"
    "main{max-width:1120px;margin:0 auto;padding:32px 20px 64px}\n"
    "h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:40px 0 4px;overflow-wrap:anywhere}h3{font-size:15px;"
    "margin:24px 0 8px}\n"
    "p{margin:0 0 8px;max-width:104ch}.soft{color:var(--soft)}.card{background:var(--card);border:1px solid "
    "var(--line);"
    "border-radius:8px;padding:16px;margin:12px 0;overflow-x:auto}\n"
    "code,td.name{font-family:ui-monospace,monospace;font-size:13px;overflow-wrap:anywhere}\n"
    "table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}\n"
    "th{color:var(--soft);font-weight:600;text-align:right;vertical-align:bottom;border-bottom:1px solid var(--line)}\n"
    "td{text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}th,td{padding:5px 8px}\n"
    "tr:last-child td{border-bottom:0}th:first-child,td:first-child,th:last-child,td:last-child{text-align:left}\n"
    "td.share{background:linear-gradient(var(--int8),var(--int8)) 8px 100%/calc((100% - 16px)*var(--share)) 3px "
    "no-repeat}\n"
    "td.bad{color:var(--bad);font-weight:600}\n"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 18px;margin:0}dt{color:var(--soft)}dd{margin:0;"
    "overflow-wrap:anywhere}\n"
    ".maps{display:flex;flex-wrap:wrap;gap:18px}figure{margin:0}figcaption{font-size:12.5px;margin-top:4px}\n"
    ".map{border:1px solid var(--line);background:var(--none);display:block}.map .high{fill:var(--high)}.map "
    ".int8{fill:var(--int8)}\n"
    ".key{white-space:nowrap;margin-left:12px}.key::before{content:\"\";display:inline-block;width:11px;height:11px;"
    "border-radius:2px;margin-right:5px;vertical-align:-1px;background:var(--key)}\n"
    ".plot{width:100%;height:auto;display:block}.plot text{fill:var(--text);font-size:12px}.plot "
    ".axis{fill:var(--soft)}\n"
    ".plot .grid{stroke:var(--line);stroke-width:1}.plot .trace{fill:none;stroke-width:1.5;opacity:.55}\n"
    ".plot .dot{stroke:var(--card);stroke-width:1.5}\n";

/* ------------------------------------------------------------------------------------------------ plot */

/* Policies of one family share a colour and are joined by a line. Hues are readable on light and dark. */
enum { FAMILY_HIGH, FAMILY_INT8, FAMILY_WORDS, FAMILY_OTHER, FAMILY_LAYOUT };

static const char *const layout_colours[] = {"#d9822b", "#7b8794", "#3d9970", "#b4539d", "#8f7ae5",
                                             "#a0714f", "#4aa3b5", "#d0605e", "#7f9c3b"};
enum { NUM_LAYOUT_COLOURS = sizeof layout_colours / sizeof layout_colours[0] };

static int family_of(const measurement *m)
{
    const policy_spec *p = &m->policy;
    if (p->policy.kind == TLAMP_POLICY_HIGH) return FAMILY_HIGH;
    if (p->policy.kind == TLAMP_POLICY_INT8) return FAMILY_INT8;
    if (p->policy.kind != TLAMP_POLICY_ROUTED) return FAMILY_OTHER;
    return p->layout == NO_LAYOUT ? FAMILY_WORDS : FAMILY_LAYOUT + p->layout;
}

static const char *family_colour(int f)
{
    if (f == FAMILY_HIGH) return "var(--high)";
    if (f == FAMILY_INT8) return "var(--int8)";
    if (f < FAMILY_LAYOUT) return "var(--other)";
    return layout_colours[(f - FAMILY_LAYOUT) % NUM_LAYOUT_COLOURS];
}

/* Axes: x is speed, linear; y is log10 of the mean error. */
typedef struct plot {
    double x_low, x_high, y_low, y_high;
} plot;

static const double plot_width = 1040, plot_height = 440, plot_left = 74, plot_right = 170, plot_top = 16,
                    plot_bottom = 52;

static double x_at(const plot *p, double speed)
{
    return plot_left + (speed - p->x_low) / (p->x_high - p->x_low) * (plot_width - plot_left - plot_right);
}

static double y_at(const plot *p, double decades)
{
    return plot_height - plot_bottom -
           (decades - p->y_low) / (p->y_high - p->y_low) * (plot_height - plot_top - plot_bottom);
}

/* No error at all is drawn at the bottom. */
static double decades_of(const measurement *m) { return m->mean_abs_error > 0 ? log10(m->mean_abs_error) : -HUGE_VAL; }

static bool is_drawn(const measurement *m) { return isfinite(m->speedup) && isfinite(m->mean_abs_error); }

static plot find_axes(const comparison *c)
{
    plot p = {1, 1, HUGE_VAL, -HUGE_VAL};
    for (int i = 0; i < c->count; i++) {
        const measurement *m = &c->results[i];
        if (!is_drawn(m)) continue;
        p.x_low = fmin(p.x_low, m->speedup);
        p.x_high = fmax(p.x_high, m->speedup);
        if (!isfinite(decades_of(m))) continue;
        p.y_low = fmin(p.y_low, decades_of(m));
        p.y_high = fmax(p.y_high, decades_of(m));
    }
    if (!isfinite(p.y_low)) p.y_low = p.y_high = -8;
    const double margin = fmax(0.06 * (p.x_high - p.x_low), 0.05);
    p.x_low = fmax(p.x_low - margin, 0);
    p.x_high += margin;
    p.y_low = floor(p.y_low - 0.2);
    p.y_high = ceil(p.y_high + 0.1);
    return p;
}

/* 1, 2 or 5 times a power of ten, so that about six ticks fit. */
static double tick_step(double span)
{
    const double rough = span / 6, power = pow(10, floor(log10(rough)));
    const double times[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (times[i] * power >= rough) return times[i] * power;
    return 10 * power;
}

static void draw_axes(FILE *out, const plot *p)
{
    const double bottom = plot_height - plot_bottom, right = plot_width - plot_right;
    const double step = tick_step(p->x_high - p->x_low);
    for (double n = ceil(p->x_low / step); n * step <= p->x_high; n++) {
        const double x = x_at(p, n * step);
        fprintf(out, "<line class=grid x1=%.1f y1=%.1f x2=%.1f y2=%.1f />", x, plot_top, x, bottom);
        fprintf(out, "<text class=axis x=%.1f y=%.1f text-anchor=middle>%.4g&times;</text>\n", x, bottom + 18,
                n * step);
    }
    const double every = ceil((p->y_high - p->y_low) / 10);
    for (double decade = p->y_low; decade <= p->y_high; decade += every) {
        const double y = y_at(p, decade);
        fprintf(out, "<line class=grid x1=%.1f y1=%.1f x2=%.1f y2=%.1f />", plot_left, y, right, y);
        fprintf(out, "<text class=axis x=%.1f y=%.1f text-anchor=end>10<tspan dy=-5 font-size=9>%.0f</tspan></text>\n",
                plot_left - 8, y + 4, decade);
    }
    fprintf(
        out,
        "<text class=axis x=%.1f y=%.1f text-anchor=middle>speed, relative to high precision (faster &rarr;)</text>\n",
        (plot_left + right) / 2, plot_height - 8);
    fprintf(out,
            "<text class=axis transform=\"translate(16 %.1f) rotate(-90)\" text-anchor=middle>mean absolute error "
            "(&larr; more accurate)</text>\n",
            (plot_top + bottom) / 2);
}

static double dot_y(const plot *p, const measurement *m) { return y_at(p, fmax(decades_of(m), p->y_low)); }

static void draw_traces(FILE *out, const plot *p, const comparison *c)
{
    for (int i = 1; i < c->count; i++) {
        const measurement *a = &c->results[i - 1], *b = &c->results[i];
        if (family_of(a) != family_of(b) || family_of(a) < FAMILY_LAYOUT || !is_drawn(a) || !is_drawn(b)) continue;
        fprintf(out, "<line class=trace stroke=\"%s\" x1=%.1f y1=%.1f x2=%.1f y2=%.1f />\n",
                family_colour(family_of(a)), x_at(p, a->speedup), dot_y(p, a), x_at(p, b->speedup), dot_y(p, b));
    }
}

/* "50" for a coverage, the whole policy for others. */
static void make_label(const measurement *m, char label[POLICY_MAX_TEXT])
{
    if (family_of(m) >= FAMILY_LAYOUT && layout_takes_coverage(m->policy.layout))
        (void)snprintf(label, POLICY_MAX_TEXT, "%.3g", 100 * m->policy.coverage);
    else
        (void)snprintf(label, POLICY_MAX_TEXT, "%s", m->policy.text);
}

typedef struct box {
    double left, top, right, bottom;
} box;

static bool overlaps(const box *a, const box *b)
{
    return a->left < b->right && b->left < a->right && a->top < b->bottom && b->top < a->bottom;
}

/* What is taken already: every dot, and the labels placed so far. */
typedef struct taken {
    box boxes[2 * REPORT_MAX_DOTS];
    int count;
} taken;

static box box_around(double x, double y, double width, double height)
{
    return (box){x - width / 2, y - height / 2, x + width / 2, y + height / 2};
}

/* A free place right of the dot, left of it, above or below. False where all four are taken. */
static bool place_label(taken *t, double x, double y, double width, box *place)
{
    const box tries[] = {box_around(x + 9 + width / 2, y, width, 12), box_around(x - 9 - width / 2, y, width, 12),
                         box_around(x, y - 14, width, 12), box_around(x, y + 14, width, 12)};
    for (int k = 0; k < 4; k++) {
        bool is_free = true;
        for (int i = 0; is_free && i < t->count; i++) is_free = !overlaps(&tries[k], &t->boxes[i]);
        if (!is_free) continue;
        *place = t->boxes[t->count++] = tries[k];
        return true;
    }
    return false;
}

static void draw_dot(FILE *out, taken *t, const measurement *m, double x, double y)
{
    char label[POLICY_MAX_TEXT];
    make_label(m, label);
    fprintf(out, "<g><title>");
    put_text(out, m->policy.text);
    fprintf(out, ": mean error %.2e, %.3f ms, %.2f x high</title>", m->mean_abs_error, m->ms, m->speedup);
    fprintf(out, "<circle class=dot fill=\"%s\" cx=%.1f cy=%.1f r=6 />", family_colour(family_of(m)), x, y);
    box place;
    if (place_label(t, x, y, 6.8 * (double)strlen(label), &place)) {
        fprintf(out, "<text x=%.1f y=%.1f>", place.left, place.bottom - 2);
        put_text(out, label);
        fputs("</text>", out);
    }
    fputs("</g>\n", out);
}

static void draw_dots(FILE *out, const plot *p, const comparison *c)
{
    taken t = {.count = 0};
    const int count = c->count < REPORT_MAX_DOTS ? c->count : REPORT_MAX_DOTS;
    for (int i = 0; i < count; i++)
        if (is_drawn(&c->results[i]))
            t.boxes[t.count++] = box_around(x_at(p, c->results[i].speedup), dot_y(p, &c->results[i]), 10, 10);
    for (int i = 0; i < count; i++)
        if (is_drawn(&c->results[i]))
            draw_dot(out, &t, &c->results[i], x_at(p, c->results[i].speedup), dot_y(p, &c->results[i]));
}

static void draw_legend(FILE *out, const comparison *c)
{
    double y = plot_top + 12;
    for (int i = 0; i < c->count; i++) {
        const int family = family_of(&c->results[i]);
        bool first = true;
        for (int k = 0; k < i; k++) first = first && family_of(&c->results[k]) != family;
        if (!first) continue;
        const double x = plot_width - plot_right + 24;
        const char *name = family >= FAMILY_LAYOUT  ? tlamp_layout_name(family - FAMILY_LAYOUT)
                           : family == FAMILY_HIGH  ? "high"
                           : family == FAMILY_INT8  ? "int8"
                           : family == FAMILY_WORDS ? "words"
                                                    : "other";
        fprintf(out, "<circle fill=\"%s\" cx=%.1f cy=%.1f r=5 /><text x=%.1f y=%.1f>%s</text>\n", family_colour(family),
                x, y - 4, x + 12, y, name);
        y += 21;
    }
}

static void put_plot(FILE *out, const comparison *c)
{
    const plot p = find_axes(c);
    fprintf(
        out,
        "<div class=card><svg class=plot viewBox=\"0 0 %.0f %.0f\" role=img aria-label=\"Mean error over speed\">\n",
        plot_width, plot_height);
    draw_axes(out, &p);
    draw_traces(out, &p, c);
    draw_dots(out, &p, c);
    draw_legend(out, c);
    fputs("</svg><p class=soft>Right is faster, down is more accurate. Numbers at the dots are the coverage: the "
          "wanted share "
          "of INT8 in percent.</p></div>\n",
          out);
}

/* ------------------------------------------------------------------------------------------------ table */

static void put_share(FILE *out, double share)
{
    if (isnan(share))
        fputs("<td>&ndash;</td>", out);
    else
        fprintf(out, "<td class=share style=\"--share:%.3f\">%.1f</td>", share, 100 * share);
}

static void put_row(FILE *out, const measurement *m)
{
    const shares s = result_shares(m);
    char ratio[16];
    fputs("<tr><td class=name>", out);
    put_text(out, m->policy.text);
    fputs("</td>", out);
    put_share(out, s.group);
    put_share(out, s.tile);
    put_share(out, s.cell);
    fprintf(out, "<td>%.2e</td><td>%.2e</td><td>%.2e</td>", m->max_abs_error, m->mean_abs_error, m->max_lse_error);
    fprintf(out, "<td%s>%s</td>", m->failed ? " class=bad" : "", result_ratio(m, ratio));
    fprintf(out, "<td>%.3f</td><td>%.2f</td><td>%.2f</td><td class=name>", m->ms, m->gflops, m->speedup);
    put_text(out, m->kernel);
    fputs("</td></tr>\n", out);
    if (!m->failed) return;
    fputs("<tr><td colspan=12 class=bad>", out);
    put_text(out, m->complaint);
    fputs("</td></tr>\n", out);
}

static void put_table(FILE *out, const comparison *c)
{
    fputs("<div class=card><table><thead><tr><th>policy<th>INT8 groups, %<th>tiles, %<th>cells, %<th>max error<th>mean "
          "error<th>LSE error<th>error / bound<th>ms<th>GFLOP/s<th>&times; high<th>kernel</tr></thead><tbody>\n",
          out);
    for (int i = 0; i < c->count; i++) put_row(out, &c->results[i]);
    fputs("</tbody></table></div>\n", out);
}

/* ------------------------------------------------------------------------------------------------ maps */

static void put_cells(FILE *out, const picture *p, cell kind, const char *name)
{
    fprintf(out, "<path class=%s d=\"", name);
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t group = 0, run; group < p->groups; group += run) {
            run = picture_run(p, row, group);
            if (picture_cell(p, row, group) != kind) continue;
            fprintf(out, "M%lld %lldh%lldv1h-%lldz", (long long)group, (long long)row, (long long)run, (long long)run);
        }
    fputs("\"/>", out);
}

enum { MOST_CELLS = 1 << 16 };

static void put_map(FILE *out, const measurement *m)
{
    const routing *r = &m->routes;
    const picture p = {"", r->geometry, r->words, r->report.rows, r->report.groups, r->words_per_row};
    if (p.rows <= 0 || p.groups <= 0 || p.rows > MOST_CELLS / p.groups) return;
    const double tall = (double)p.geometry.seqlen_q / (double)p.geometry.seqlen_k;
    const double height = fmin(fmax(180 * tall, 24), 360);
    fprintf(out,
            "<figure><svg class=map width=180 height=%.0f viewBox=\"0 0 %lld %lld\" preserveAspectRatio=none "
            "shape-rendering=crispEdges>",
            height, (long long)p.groups, (long long)p.rows);
    put_cells(out, &p, CELL_HIGH, "high");
    put_cells(out, &p, CELL_INT8, "int8");
    fputs("</svg><figcaption>", out);
    put_text(out, m->policy.text);
    fprintf(out, "<br><span class=soft>%.1f %% of groups INT8</span></figcaption></figure>\n",
            100 * r->report.coverage_group);
}

static void put_maps(FILE *out, const comparison *c)
{
    bool any = false;
    for (int i = 0; i < c->count; i++) any = any || c->results[i].routes.words;
    if (!any) return;
    fputs("<h3>Routing maps</h3><p class=soft>Queries run downwards, keys to the right; of packed sequences, the first."
          " <span class=key style=\"--key:var(--high)\">high precision</span>"
          " <span class=key style=\"--key:var(--int8)\">INT8</span>"
          " <span class=key style=\"--key:var(--none)\">not computed</span></p><div class=\"card maps\">\n",
          out);
    for (int i = 0; i < c->count; i++)
        if (c->results[i].routes.words) put_map(out, &c->results[i]);
    fputs("</div>\n", out);
}

/* ------------------------------------------------------------------------------------------------ page */

static void put_fact(FILE *out, const char *name, const char *value)
{
    fprintf(out, "<dt>%s</dt><dd>", name);
    put_text(out, value);
    fputs("</dd>\n", out);
}

static void put_facts(FILE *out, const char *command)
{
    machine m;
    machine_read(&m);
    char text[80], date[40] = "";
    const time_t seconds = time(NULL);
    struct tm local;
    if (localtime_r(&seconds, &local)) (void)strftime(date, sizeof date, "%Y-%m-%d %H:%M", &local);
    fputs("<div class=card><dl>\n<dt>command</dt><dd><code>", out);
    put_text(out, command);
    fputs("</code></dd>\n", out);
    put_fact(out, "machine", m.processor);
    (void)snprintf(text, sizeof text, "%ld hardware threads, kernels up to %s", m.threads, tlamp_isa());
    put_fact(out, "uses", text);
    put_fact(out, "processor has", m.features);
    (void)snprintf(text, sizeof text, "tilelamp %s, built with %.50s", tlamp_version_string(), machine_compiler());
    put_fact(out, "library", text);
    put_fact(out, "date", date);
    fputs("</dl></div>\n", out);
}

static void put_comparison(FILE *out, const comparison *c)
{
    fputs("<h2>", out);
    put_text(out, c->subject.path ? c->subject.path : "Generated input");
    fputs("</h2>\n<p class=soft>", out);
    put_text(out, c->subject.source);
    fputs("</p><p><code>", out);
    put_text(out, c->subject.problem);
    fputs("</code></p>\n", out);
    put_plot(out, c);
    put_table(out, c);
    put_maps(out, c);
}

int report_write(const char *path, const comparison *comparisons, int count, const char *command, fault *f)
{
    file_writer writer;
    const int code = file_begin(&writer, path, f);
    if (code) return code;
    FILE *out = writer.stream;
    fputs("<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
          "content=\"width=device-width,initial-scale=1\"><title>TileLamp comparison</title>\n<style>\n",
          out);
    fputs(style, out);
    fputs("</style></head><body><main>\n<h1>Precision policies compared</h1>\n<p class=soft>The same attention, "
          "computed under "
          "several precision policies. Errors are against a double-precision reference; error / bound compares each "
          "with what "
          "its policy promises, and stays below 1. Times are medians of interleaved runs.</p>\n",
          out);
    put_facts(out, command);
    for (int i = 0; i < count; i++) put_comparison(out, &comparisons[i]);
    fputs("</main></body></html>\n", out);
    return file_end(&writer, f);
}
