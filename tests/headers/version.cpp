#include "version.c"
