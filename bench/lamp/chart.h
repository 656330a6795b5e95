/* Sweeps as pictures: SVG files.
 *
 *   lamp-tradeoff.svg  error against the share of sub-blocks that was recomputed, one line per delta, at the usual b_q
 *   lamp-rows.svg      the same, one line per b_q, at the paper's delta
 *   lamp-cascade.svg   who recomputed what: sub-blocks by stage, and tiles by how many they recomputed */
#ifndef TL_LAMP_CHART_H
#define TL_LAMP_CHART_H

#include "sweep.h"

int chart_draw_all(const char *directory, const sweep *sweeps, int count, fault *f);

#endif
