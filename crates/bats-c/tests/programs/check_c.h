/* Checks of the test programs in C: a condition that does not hold ends the program. */

#ifndef OPENBATS_TESTS_CHECK_C_H
#define OPENBATS_TESTS_CHECK_C_H

#include <stdio.h>
#include <stdlib.h>

#include "include/c/openbats.h"

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      fprintf(stderr, "%s:%d: CHECK failed: %s (last error: %s)\n", __FILE__, __LINE__,   \
              #condition, openbats_last_error());                                         \
      abort();                                                                            \
    }                                                                                     \
  } while (0)

#endif
