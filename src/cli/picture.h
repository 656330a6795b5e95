/* A routing map as a picture file. */
#ifndef TL_CLI_PICTURE_H
#define TL_CLI_PICTURE_H

#include "fault.h"
#include "tilelamp/tilelamp.h"

/* What a group of a map is: nothing that any row sees, high precision, or INT8. */
typedef enum { CELL_ILLEGAL, CELL_HIGH, CELL_INT8 } cell;

typedef struct picture {
    const char *title;
    tlamp_geometry geometry; /* with an explicit group */
    const uint64_t *words;
    int64_t rows, groups; /* T_m, T_mask */
    int32_t words_per_row;
} picture;

cell picture_cell(const picture *p, int64_t row, int64_t group);

/* The length of the run of equal cells that starts at `group`. */
int64_t picture_run(const picture *p, int64_t row, int64_t group);

int picture_write_svg(const picture *p, const char *path, fault *f);
int picture_write_png(const picture *p, const char *path, fault *f);

#endif
