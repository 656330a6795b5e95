/*
 * export.h - TLAMP_API marks the functions that the library exports; everything else in it is hidden.
 *
 * Define TLAMP_STATIC when linking libtilelamp.a (the CMake target tilelamp::static does so by itself). On
 * ELF systems it makes no difference to a caller.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TILELAMP_EXPORT_H
#define TILELAMP_EXPORT_H

#if defined(TLAMP_STATIC)
#define TLAMP_API
#elif defined(__GNUC__)
#define TLAMP_API __attribute__((visibility("default")))
#else
#define TLAMP_API
#endif

#endif /* TILELAMP_EXPORT_H */
