/* The header and the library that was linked agree on the version. Also compiled as C++ (version.cpp). */
#include <tilelamp/tilelamp.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    if (tlamp_version() != TLAMP_VERSION || strcmp(tlamp_version_string(), TLAMP_VERSION_STRING) != 0) {
        printf("header %d (%s), library %d (%s)\n", (int)TLAMP_VERSION, TLAMP_VERSION_STRING, (int)tlamp_version(),
               tlamp_version_string());
        return 1;
    }
    return 0;
}
