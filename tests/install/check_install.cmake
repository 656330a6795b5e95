# Installs the build into a prefix, moves that prefix (an installed tree must not know where it was), and builds and runs
# the example against it: through find_package, through pkg-config (shared and --static), and through the build tree.
cmake_minimum_required(VERSION 3.25)

set(prefix "${WORK_DIR}/prefix")
set(consumer "${CMAKE_CURRENT_LIST_DIR}/consumer")

function(run what)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(NOT status EQUAL 0)
        list(JOIN ARGN " " command)
        message(FATAL_ERROR "${what} failed (${status}): ${command}\n${output}")
    endif()
    message(STATUS "${what}")
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
run("install" "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --config "${CONFIG}" --prefix "${WORK_DIR}/staged")
file(RENAME "${WORK_DIR}/staged" "${prefix}")
if(CLI)
    run("tilelamp info from the moved prefix" "${prefix}/${BINDIR}/tilelamp" info)
endif()

set(configure "${CMAKE_COMMAND}" -S "${consumer}" -G "${GENERATOR}" "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}"
    "-DCMAKE_C_COMPILER=${C_COMPILER}" "-DEXAMPLE=${EXAMPLE}")
run("find_package: configure" ${configure} -B "${WORK_DIR}/installed" "-DCMAKE_PREFIX_PATH=${prefix}")
file(STRINGS "${WORK_DIR}/installed/CMakeCache.txt" found REGEX "^tilelamp_DIR:")
string(FIND "${found}" "${prefix}/" place)
if(place EQUAL -1)
    message(FATAL_ERROR "find_package took another TileLamp: ${found}")
endif()
run("find_package: build" "${CMAKE_COMMAND}" --build "${WORK_DIR}/installed")
run("find_package: run, shared" "${WORK_DIR}/installed/attention")
run("find_package: run, static" "${WORK_DIR}/installed/attention_static")

run("build tree: configure" ${configure} -B "${WORK_DIR}/in_place" "-Dtilelamp_DIR=${BUILD_DIR}")
run("build tree: build" "${CMAKE_COMMAND}" --build "${WORK_DIR}/in_place")
run("build tree: run" "${WORK_DIR}/in_place/attention")

if(NOT PKG_CONFIG)
    message(STATUS "pkg-config is not here: its file is not tried")
    return()
endif()
set(ENV{PKG_CONFIG_PATH} "${prefix}/${LIBDIR}/pkgconfig")
foreach(kind IN ITEMS shared static)
    if(kind STREQUAL "static")
        set(static_option --static)
    else()
        set(static_option "")
    endif()
    execute_process(COMMAND "${PKG_CONFIG}" ${static_option} --cflags --libs tilelamp
        OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(flags UNIX_COMMAND "${flags}")
    if(kind STREQUAL "static") # take the archive although the shared library lies beside it
        list(TRANSFORM flags REPLACE "^-ltilelamp$" "-l:libtilelamp.a")
    endif()
    run("pkg-config, ${kind}: compile" "${C_COMPILER}" -std=c11 "${EXAMPLE}" -o "${WORK_DIR}/attention_${kind}" ${flags} -lm)
    run("pkg-config, ${kind}: run" "${CMAKE_COMMAND}" -E env "LD_LIBRARY_PATH=${prefix}/${LIBDIR}"
        "${WORK_DIR}/attention_${kind}")
endforeach()
