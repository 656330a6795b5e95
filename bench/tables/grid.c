#include "grid.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define FORMAT_INTO(text, format)                                                                                      \
    do {                                                                                                               \
        va_list args;                                                                                                  \
        va_start(args, format);                                                                                        \
        (void)vsnprintf(text, sizeof(text), format, args);                                                             \
        va_end(args);                                                                                                  \
    } while (0)

void grid_init(grid *g, const char *rows_are, const char *title, ...)
{
    memset(g, 0, sizeof *g);
    g->rows_are = rows_are;
    FORMAT_INTO(g->title, title);
}

void grid_note(grid *g, const char *text, ...)
{
    FORMAT_INTO(g->notes[g->num_notes], text);
    g->num_notes++;
}

void grid_column(grid *g, grid_format format, const char *name, ...)
{
    FORMAT_INTO(g->columns[g->num_columns], name);
    g->formats[g->num_columns++] = format;
}

double *grid_row(grid *g, const char *label, ...)
{
    FORMAT_INTO(g->labels[g->num_rows], label);
    double *cells = g->cells[g->num_rows++];
    for (int c = 0; c < GRID_COLUMNS; c++) cells[c] = (double)NAN;
    return cells;
}

/* ------------------------------------------------------------------------------------------------ Markdown */

typedef struct cell {
    char text[24];
} cell;

static cell show(double x, grid_format format)
{
    cell c = {""};
    if (isnan(x)) return c;
    (void)snprintf(c.text, sizeof c.text, format == GRID_ERROR ? "%.2e" : "%.2f", x);
    return c;
}

static int wider(int width, const char *text) { return (int)strlen(text) > width ? (int)strlen(text) : width; }

static int label_width(const grid *g)
{
    int width = wider(0, g->rows_are);
    for (int r = 0; r < g->num_rows; r++) width = wider(width, g->labels[r]);
    return width;
}

static int column_width(const grid *g, int column)
{
    int width = wider(0, g->columns[column]);
    for (int r = 0; r < g->num_rows; r++) width = wider(width, show(g->cells[r][column], g->formats[column]).text);
    return width;
}

static void print_rule(const grid *g, int first)
{
    printf("|:%.*s|", first + 1, "----------------------------------------");
    for (int c = 0; c < g->num_columns; c++)
        printf("%.*s:|", column_width(g, c) + 1, "----------------------------------------");
    putchar('\n');
}

void grid_print(const grid *g)
{
    const int first = label_width(g);
    printf("%s\n\n", g->title);
    printf("| %-*s |", first, g->rows_are);
    for (int c = 0; c < g->num_columns; c++) printf(" %*s |", column_width(g, c), g->columns[c]);
    putchar('\n');
    print_rule(g, first);
    for (int r = 0; r < g->num_rows; r++) {
        printf("| %-*s |", first, g->labels[r]);
        for (int c = 0; c < g->num_columns; c++)
            printf(" %*s |", column_width(g, c), show(g->cells[r][c], g->formats[c]).text);
        putchar('\n');
    }
    for (int n = 0; n < g->num_notes; n++) printf("%s- %s\n", n ? "" : "\n", g->notes[n]);
    putchar('\n');
    (void)fflush(stdout);
}

/* ------------------------------------------------------------------------------------------------ JSON */

static json_t *row_json(const grid *g, int row)
{
    json_t *object = json_object(), *cells = json_array();
    for (int c = 0; c < g->num_columns; c++) {
        const double x = g->cells[row][c];
        (void)json_array_append_new(cells, isfinite(x) ? json_real(x) : json_null());
    }
    (void)json_object_set_new(object, g->rows_are, json_string(g->labels[row]));
    (void)json_object_set_new(object, "cells", cells);
    return object;
}

json_t *grid_json(const grid *g)
{
    json_t *notes = json_array(), *columns = json_array(), *rows = json_array();
    for (int n = 0; n < g->num_notes; n++) (void)json_array_append_new(notes, json_string(g->notes[n]));
    for (int c = 0; c < g->num_columns; c++) (void)json_array_append_new(columns, json_string(g->columns[c]));
    for (int r = 0; r < g->num_rows; r++) (void)json_array_append_new(rows, row_json(g, r));
    return json_pack("{s:s, s:o, s:o, s:o}", "title", g->title, "notes", notes, "columns", columns, "rows", rows);
}
