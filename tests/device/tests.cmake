# Tests of a library with device code. They run on the device that OpenMP finds, and are skipped where it finds none; the
# preset offload-host has one everywhere. mandatory: a region that cannot run there ends the program.
function(tilelamp_device_test name label)
    tilelamp_test(${name} ${label} ${ARGN})
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT OMP_TARGET_OFFLOAD=mandatory OMP_WAIT_POLICY=passive)
endfunction()

set(kernels "")
if(NOT TILELAMP_HAVE_NVPTX)
    set(kernels --isa scalar) # there are no others
endif()
tilelamp_device_test(checktile_device quick checktile --device gpu --random 400 ${kernels})
tilelamp_device_test(checktile_device_full full checktile --device gpu --full ${kernels})
set_tests_properties(checktile_device_full PROPERTIES TIMEOUT 3600)

add_executable(device_numbers device/numbers.c)
target_link_libraries(device_numbers PRIVATE tilelamp_test_support)
tilelamp_device_test(device_numbers quick device_numbers)
foreach(name IN ITEMS layout memory)
    add_executable(device_${name} device/${name}.c)
    target_link_libraries(device_${name} PRIVATE tilelamp_test_support ${CMAKE_DL_LIBS})
    tilelamp_device_test(device_${name} quick device_${name})
endforeach()
set_target_properties(device_memory PROPERTIES C_VISIBILITY_PRESET default) # its omp_target_alloc is the library's
tilelamp_test(device_none quick device_numbers none)
set_property(TEST device_none APPEND PROPERTY ENVIRONMENT OMP_TARGET_OFFLOAD=disabled)

foreach(name IN LISTS conformance_tests)
    add_executable(conformance_${name} conformance/${name}.c)
    target_link_libraries(conformance_${name} PRIVATE tilelamp_test_support)
    tilelamp_device_test(conformance_${name} quick conformance_${name})
    set_property(TEST conformance_${name} APPEND PROPERTY ENVIRONMENT TILELAMP_TEST_DEVICE=gpu)
endforeach()

if(TARGET tilelamp-cli)
    tilelamp_device_test(cli_device quick "${CMAKE_CURRENT_SOURCE_DIR}/device/commands.sh" $<TARGET_FILE:tilelamp-cli>)
endif()
add_subdirectory(abi)
