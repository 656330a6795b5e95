/* A table with labelled rows: printed as Markdown with aligned columns, or as JSON with the numbers in full. */
#ifndef TL_TABLES_GRID_H
#define TL_TABLES_GRID_H

#include <jansson.h>
#include <stdbool.h>

enum { GRID_COLUMNS = 12, GRID_ROWS = 48, GRID_LABEL = 40, GRID_NOTES = 8 };

typedef enum { GRID_ERROR, GRID_FIXED } grid_format; /* 1.23e-04; 12.34 */

typedef struct grid {
    char title[160];
    const char *rows_are; /* what the rows' labels name */
    int num_notes;
    char notes[GRID_NOTES][240];
    int num_columns, num_rows;
    char columns[GRID_COLUMNS][GRID_LABEL];
    grid_format formats[GRID_COLUMNS];
    char labels[GRID_ROWS][GRID_LABEL];
    double cells[GRID_ROWS][GRID_COLUMNS]; /* NaN: empty */
} grid;

#if defined __GNUC__
#define TL_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define TL_PRINTF(text, first)
#endif
TL_PRINTF(3, 4) void grid_init(grid *g, const char *rows_are, const char *title, ...);
TL_PRINTF(2, 3) void grid_note(grid *g, const char *text, ...);
TL_PRINTF(3, 4) void grid_column(grid *g, grid_format format, const char *name, ...);
/* Adds an empty row and returns its cells. */
TL_PRINTF(2, 3) double *grid_row(grid *g, const char *label, ...);

void grid_print(const grid *g);
/* {"title", "notes", "columns", "rows": [{<rows_are>, "cells"}]}; NULL where memory is out. */
json_t *grid_json(const grid *g);

#endif
