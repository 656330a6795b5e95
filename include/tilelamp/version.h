/*
 * version.h - the one place that states TileLamp's versions; the build reads them from here.
 *
 * The product version (0.1.0) follows semantic versioning. The API version is the number in the library's
 * SONAME (libtilelamp.so.0) and symbol version (TLAMP_0): it changes only when a program that was linked
 * before would no longer work. It stays 0 until 1.0, and while it is 0 a minor release may change the API.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TILELAMP_VERSION_H
#define TILELAMP_VERSION_H

#define TLAMP_VERSION_MAJOR 0
#define TLAMP_VERSION_MINOR 1
#define TLAMP_VERSION_PATCH 0

#define TLAMP_API_VERSION 0

/* One number that orders releases: 1.2.3 is 10203. tlamp_version() returns the library's at run time. */
#define TLAMP_VERSION (TLAMP_VERSION_MAJOR * 10000 + TLAMP_VERSION_MINOR * 100 + TLAMP_VERSION_PATCH)

/* "0.1.0". tlamp_version_string() returns the library's at run time. */
#define TLAMP_VERSION_STRING TLAMP_VERSION_TEXT_(TLAMP_VERSION_MAJOR, TLAMP_VERSION_MINOR, TLAMP_VERSION_PATCH)
#define TLAMP_VERSION_TEXT_(major, minor, patch) TLAMP_VERSION_TEXT2_(major, minor, patch)
#define TLAMP_VERSION_TEXT2_(major, minor, patch) #major "." #minor "." #patch

#endif /* TILELAMP_VERSION_H */
