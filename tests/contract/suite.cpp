#include "contract/suite.h"

namespace trireme::contract {

INSTANTIATE_TEST_SUITE_P(Backends, Ops, testing::ValuesIn(backend_rows()), row_name);

}  // namespace trireme::contract
