# The C example that the README shows is examples/attention.c, from its first #include on, word for word.
file(READ "${EXAMPLE}" example)
file(READ "${README}" readme)
string(FIND "${example}" "#include" start)
string(SUBSTRING "${example}" ${start} -1 example)
string(FIND "${readme}" "${example}" place)
if(place EQUAL -1)
    message(FATAL_ERROR "README.md does not show examples/attention.c as it is: copy one to the other")
endif()
