# What the chosen compiler can build for devices. Sets
#   TILELAMP_HAVE_NVPTX              the tensor-core kernels can be built
#   TILELAMP_BARE_ONLY               there is no device runtime: only kernels that call none link
#   TILELAMP_TEAM_THREADS            workers of the portable path in one team
#   TILELAMP_OFFLOAD_COMPILE_FLAGS, TILELAMP_OFFLOAD_LINK_FLAGS, TILELAMP_OFFLOAD_RPATH, TILELAMP_OFFLOAD_INCLUDE
# and ends the configuration, naming the cure, where nothing can be built.

set(TILELAMP_HAVE_NVPTX OFF)
set(TILELAMP_BARE_ONLY OFF)
set(TILELAMP_TEAM_THREADS 32)
set(TILELAMP_OFFLOAD_INCLUDE "")
set(offload_dir "${CMAKE_CURRENT_BINARY_DIR}/toolchain")

if(NOT CMAKE_C_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TILELAMP_OFFLOAD: ${CMAKE_C_COMPILER} is no clang. Use a preset: offload-host, offload-nvptx or "
                        "offload-nvptx-full")
endif()
if(NOT TILELAMP_OPENMP_RUNTIME)
    message(FATAL_ERROR "TILELAMP_OFFLOAD needs OpenMP, and ${CMAKE_C_COMPILER} has none here. Install libomp-19-dev "
                        "(clang-19), or set OpenMP_C_FLAGS and OpenMP_omp_LIBRARY as the preset offload-nvptx does")
endif()

# ---- does a kernel compile and link?

set(standard_kernel [[
int main(void)
{
    int x[64];
#pragma omp target teams distribute parallel for map(from : x)
    for (int i = 0; i < 64; i++) x[i] = i;
    return x[0];
}
]])
set(bare_kernel [[
int main(void)
{
    int x = 0;
#pragma omp target teams ompx_bare num_teams(1) thread_limit(32) map(from : x)
    x = 1;
    return x - 1;
}
]])

# tilelamp_try_kernel(RESULT SOURCE COMPILE_FLAGS LINK_FLAGS): ON where it builds; ${RESULT}_OUTPUT is what was said.
function(tilelamp_try_kernel result source compile_flags link_flags)
    file(WRITE "${offload_dir}/${result}.c" "${source}")
    string(REPLACE "SHELL:" "" link_flags "${link_flags}")
    separate_arguments(openmp_flags UNIX_COMMAND "${OpenMP_C_FLAGS}")
    set(words "")
    foreach(flag IN LISTS compile_flags link_flags)
        separate_arguments(flag UNIX_COMMAND "${flag}")
        list(APPEND words ${flag})
    endforeach()
    execute_process(
        COMMAND "${CMAKE_C_COMPILER}" ${openmp_flags} ${words} "${offload_dir}/${result}.c" -o "${offload_dir}/${result}"
        RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(failed)
        set(${result} OFF PARENT_SCOPE)
    else()
        set(${result} ON PARENT_SCOPE)
    endif()
    set(${result}_OUTPUT "${output}" PARENT_SCOPE)
endfunction()

# ---- the host as a device

if(TILELAMP_OFFLOAD_TARGET STREQUAL "host")
    set(TILELAMP_TEAM_THREADS 16384) # one team has all of the threads
    set(TILELAMP_OFFLOAD_COMPILE_FLAGS -fopenmp-targets=x86_64-pc-linux-gnu)
    set(TILELAMP_OFFLOAD_LINK_FLAGS -fopenmp -fopenmp-targets=x86_64-pc-linux-gnu)
    tilelamp_try_kernel(standard_works "${standard_kernel}" "${TILELAMP_OFFLOAD_COMPILE_FLAGS}"
        "${TILELAMP_OFFLOAD_LINK_FLAGS}")
    if(NOT standard_works)
        message(FATAL_ERROR "TILELAMP_OFFLOAD_TARGET=host: ${CMAKE_C_COMPILER} builds no code for the x86_64 host device. "
                            "It needs libomp-19-dev, clang-tools-19 and lld-19:\n${standard_works_OUTPUT}")
    endif()
    cmake_path(GET OpenMP_${TILELAMP_OPENMP_RUNTIME}_LIBRARY PARENT_PATH TILELAMP_OFFLOAD_RPATH)
    message(STATUS "Offload: all directives, for the x86_64 host device (portable path)")
    return()
endif()
if(NOT TILELAMP_OFFLOAD_TARGET STREQUAL "nvptx")
    message(FATAL_ERROR "TILELAMP_OFFLOAD_TARGET=${TILELAMP_OFFLOAD_TARGET}: write nvptx or host")
endif()

# ---- NVIDIA

set(ptxas "${TILELAMP_CUDA}/bin/ptxas")
execute_process(COMMAND "${ptxas}" --version RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(failed OR NOT output MATCHES "release ([0-9]+\\.[0-9]+)")
    message(FATAL_ERROR "TILELAMP_OFFLOAD: there is no ${ptxas}. Install CUDA's compiler and say where it is: "
                        "-DTILELAMP_CUDA=DIRECTORY")
endif()
set(ptxas_version ${CMAKE_MATCH_1})
if(CMAKE_C_COMPILER_VERSION VERSION_LESS 21.1.3 AND ptxas_version VERSION_GREATER_EQUAL 13)
    message(FATAL_ERROR "TILELAMP_OFFLOAD: clang ${CMAKE_C_COMPILER_VERSION} with ptxas ${ptxas_version} makes images that "
                        "its own runtime does not see (omp_get_num_devices() is 0). Use clang >= 21.1.3 (preset "
                        "offload-nvptx), or -DTILELAMP_CUDA= a CUDA 11.8 or 12.x")
endif()

# The image's header is nvlink's, which clang takes from CUDA or, where there is none, from the path: ptxas 12 is not enough.
if(CMAKE_C_COMPILER_VERSION VERSION_LESS 21.1.3)
    find_program(nvlink nvlink PATHS "${TILELAMP_CUDA}/bin" NO_DEFAULT_PATH NO_CACHE)
    find_program(nvlink nvlink NO_CACHE)
    set(output "")
    if(nvlink)
        execute_process(COMMAND "${nvlink}" --version OUTPUT_VARIABLE output ERROR_VARIABLE output)
    endif()
    if(output MATCHES "release ([0-9]+\\.[0-9]+)" AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL 13)
        message(FATAL_ERROR "TILELAMP_OFFLOAD: clang ${CMAKE_C_COMPILER_VERSION} would link with ${nvlink}, of CUDA "
                            "${CMAKE_MATCH_1}, and its runtime would not see the image (omp_get_num_devices() is 0). Put "
                            "the nvlink of a CUDA 11.8 or 12.x into ${TILELAMP_CUDA}/bin or first into the path")
    endif()
endif()

list(JOIN TILELAMP_OFFLOAD_ARCHS "," archs)
set(device_flags --offload-arch=${archs} "--cuda-path=${TILELAMP_CUDA}")
set(library_flags "")
foreach(dir IN ITEMS ${TILELAMP_OMPTARGET_DIR} ${TILELAMP_OMP_DIR})
    list(APPEND library_flags "-L${dir}")
endforeach()

# -fopenmp-cuda-mode: locals stay in registers. Without it address-taken ones become calls of the device runtime.
# libomptarget comes before libomp, which has functions of the same names that see no device.
set(full_flags ${device_flags})
if(TILELAMP_DEVICE_RUNTIME)
    list(APPEND full_flags "--libomptarget-nvptx-bc-path=${TILELAMP_DEVICE_RUNTIME}")
endif()
tilelamp_try_kernel(standard_works "${standard_kernel}" "${full_flags};-fopenmp-cuda-mode"
    "-fopenmp;${full_flags};${library_flags};-lomptarget")
if(standard_works)
    set(TILELAMP_OFFLOAD_COMPILE_FLAGS ${full_flags} -fopenmp-cuda-mode)
    set(TILELAMP_OFFLOAD_LINK_FLAGS -fopenmp ${full_flags} ${library_flags} -lomptarget)
else()
    # Without a device runtime bare kernels link all the same: clang wants to see one, and an empty module will do.
    file(WRITE "${offload_dir}/empty.c" "typedef int empty;\n")
    file(WRITE "${offload_dir}/libompdevice.a" "!<arch>\n")
    execute_process(
        COMMAND "${CMAKE_C_COMPILER}" --target=nvptx64-nvidia-cuda -emit-llvm -c "${offload_dir}/empty.c"
                -o "${offload_dir}/empty.bc"
        RESULT_VARIABLE ignored OUTPUT_QUIET ERROR_QUIET)
    set(bare_flags ${device_flags} "--libomptarget-nvptx-bc-path=${offload_dir}/empty.bc")
    set(TILELAMP_OFFLOAD_COMPILE_FLAGS ${bare_flags} -fopenmp-cuda-mode)
    set(TILELAMP_OFFLOAD_LINK_FLAGS -fopenmp ${bare_flags} "SHELL:-Xoffload-linker -L${offload_dir}" ${library_flags}
        -lomptarget)
    tilelamp_try_kernel(bare_works "${bare_kernel}" "${TILELAMP_OFFLOAD_COMPILE_FLAGS}"
        "${TILELAMP_OFFLOAD_LINK_FLAGS}")
    if(NOT bare_works)
        message(FATAL_ERROR "TILELAMP_OFFLOAD: no kernel for ${archs} builds with ${CMAKE_C_COMPILER} and the CUDA of "
                            "${TILELAMP_CUDA}. With a device runtime:\n${standard_works_OUTPUT}\nA bare one without:\n"
                            "${bare_works_OUTPUT}")
    endif()
    set(TILELAMP_BARE_ONLY ON)
endif()
list(APPEND TILELAMP_OFFLOAD_COMPILE_FLAGS "SHELL:-Xcuda-ptxas -v")
set(TILELAMP_OFFLOAD_RPATH "${TILELAMP_OMPTARGET_DIR};${TILELAMP_OMP_DIR}")

# The tensor-core kernels need more than 48 KB of shared memory, which older runtimes never ask for.
if(CMAKE_C_COMPILER_VERSION VERSION_GREATER_EQUAL 21.1.3)
    set(TILELAMP_HAVE_NVPTX ON)
endif()

# omp.h may come with another clang, whose other headers must stay out of sight.
if(TILELAMP_OMP_HEADER)
    configure_file("${TILELAMP_OMP_HEADER}" "${offload_dir}/include/omp.h" COPYONLY)
    set(TILELAMP_OFFLOAD_INCLUDE "${offload_dir}/include")
    target_include_directories(tilelamp_internal INTERFACE "${TILELAMP_OFFLOAD_INCLUDE}")
    if(TARGET OpenMP::OpenMP_C) # of programs that are none of the library's
        set_property(TARGET OpenMP::OpenMP_C APPEND PROPERTY INTERFACE_INCLUDE_DIRECTORIES "${TILELAMP_OFFLOAD_INCLUDE}")
    endif()
endif()

set(directives "all directives")
set(paths "portable path only: tensor cores need clang >= 21.1.3")
if(TILELAMP_BARE_ONLY)
    set(directives "bare kernels")
endif()
if(TILELAMP_HAVE_NVPTX)
    set(paths "tensor cores and portable path")
endif()
message(STATUS "Offload: ${directives} for ${archs}, clang ${CMAKE_C_COMPILER_VERSION}, ptxas ${ptxas_version} (${paths})")
