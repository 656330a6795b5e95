/* Packing of V by panels, for a product that has defined
 *   int32_t tl_pack_values_from(x, values, key, out, dtype)  packs 16 keys without those in `out` (a bit for each); returns a
 *                                                            bit for each one whose packed form holds a NaN or Inf
 * so that it is expanded once for each dtype. */

/* Nothing is kept for a task alone. */
TL_INLINE void tl_values_lay_out_task(tl_values *v, const tl_shape *shape, int64_t rows, tl_arena *a)
{
    (void)v;
    (void)shape;
    (void)rows;
    (void)a;
}

static int32_t tl_pack_values(const tl_operands *x, const tl_values *v, int64_t key, int32_t out)
{
    switch (x->cpu.call->v.dtype) {
    case TL_F32: return tl_pack_values_from(x, v, key, out, TL_F32);
    case TL_F16: return tl_pack_values_from(x, v, key, out, TL_F16);
    case TL_BF16: return tl_pack_values_from(x, v, key, out, TL_BF16);
    default: return tl_pack_values_from(x, v, key, out, TL_I8);
    }
}

/* Keys whose V is not finite are marked and packed as 0. */
static void tl_pack_value_panels(const tl_operands *x, const tl_values *v, int64_t begin, int64_t end)
{
    for (int64_t key = begin; key < end; key += TL_PANEL) {
        const int32_t out = tl_pack_values(x, v, key, 0);
        if (out) (void)tl_pack_values(x, v, key, out);
        v->nonfinite[(key - x->first) / TL_PANEL] = (uint16_t)out;
    }
}
