# symbols.txt names exactly the functions that the header marks TLAMP_API.
file(STRINGS "${SYMBOLS}" expected REGEX "^tlamp_")
file(READ "${HEADER}" text)
string(REGEX REPLACE "/[*]([^*]|[*]+[^*/])*[*]+/" "" text "${text}")
string(REGEX MATCHALL "TLAMP_API[^;()]+[(]" declarations "${text}")
list(TRANSFORM declarations REPLACE ".*(tlamp_[a-z0-9_]+) *[(]$" "\\1" OUTPUT_VARIABLE declared)
list(SORT declared)
set(missing ${declared})
list(REMOVE_ITEM missing ${expected})
set(gone ${expected})
list(REMOVE_ITEM gone ${declared})
if(missing OR gone)
    message(FATAL_ERROR "tests/abi/symbols.txt and tilelamp.h differ.\n"
        "  only in the header:   ${missing}\n  only in symbols.txt:  ${gone}\n"
        "A new function: add it to symbols.txt. One that is gone: raise TLAMP_API_VERSION (from 1.0 on).")
endif()
list(LENGTH declared count)
message(STATUS "${count} functions")
