# cmake -DFILE=... -DMEBIBYTES=... -P CheckSize.cmake: says a file's size; too large is an error.
file(SIZE ${FILE} bytes)
math(EXPR tenths "${bytes} * 10 / 1048576")
math(EXPR whole "${tenths} / 10")
math(EXPR rest "${tenths} % 10")
if(whole GREATER_EQUAL MEBIBYTES)
  message(FATAL_ERROR "${FILE} has ${whole}.${rest} MiB, at most ${MEBIBYTES} are allowed")
endif()
message(STATUS "${FILE}: ${whole}.${rest} MiB")
