/* What the C tests share: a check that says where it failed, and the models that ship. */
#ifndef RIDGE_TESTS_CAPI_CHECK_H
#define RIDGE_TESTS_CAPI_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ridge/ridge.h"

#define CHECK(condition)                                                                                   \
  do {                                                                                                     \
    if (!(condition)) {                                                                                    \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, ridge_last_error()); \
      exit(1);                                                                                             \
    }                                                                                                      \
  } while (0)
#define OK(call) CHECK((call) == RIDGE_OK)
/* A call that must fail with this status and a message that has these words. */
#define REFUSED(call, status, words)                    \
  do {                                                  \
    CHECK((call) == (status));                          \
    CHECK(strstr(ridge_last_error(), (words)) != NULL); \
  } while (0)

#endif
