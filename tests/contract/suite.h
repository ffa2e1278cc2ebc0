// The op suite: one set of tests over the rows of backend_rows().
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "contract/backend.h"
#include "contract/call_under_test.h"
#include "contract/reference.h"
#include "contract/tolerance.h"

namespace trireme::contract {

class Ops : public testing::TestWithParam<BackendRow> {
 protected:
  Ops() : backend_(GetParam().make(2)) {}

  DType t() const { return GetParam().dtype; }
  Backend& backend() { return *backend_; }

  /// Random values that T holds exactly.
  Tensor random(int64_t rows, int64_t cols, double scale = 1.0) {
    return rounded(random_tensor(generator_, rows, cols, scale), t());
  }
  Tensor random_f32(int64_t rows, int64_t cols, double scale = 1.0) {
    return rounded(random_tensor(generator_, rows, cols, scale), DType::f32);
  }
  Ints random_ints(int64_t count, int32_t below) {
    Ints values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<int32_t>(generator_() % static_cast<uint32_t>(below)));
    }
    return values;
  }
  double limit(OpClass op, DType output) const { return tolerance(op, t(), output); }

  /// Adds output argument 0 of a call under `law`, whose previous contents are `before`.
  static int result(CallUnderTest& call, ops::Law law, const Tensor& before, DType dtype,
                    int64_t extra = 0) {
    return law == ops::Law::add ? call.update(before, dtype, extra)
                                : call.output(before.rows, before.cols, dtype, extra);
  }
  /// What the call must leave there.
  static Tensor expected(ops::Law law, const Tensor& before, const Tensor& term) {
    return law == ops::Law::add ? plus(before, term) : term;
  }

  std::mt19937 generator_{11};

 private:
  std::unique_ptr<Backend> backend_;
};

inline constexpr ops::Law kLaws[] = {ops::Law::set, ops::Law::add};

inline std::string row_name(const testing::TestParamInfo<BackendRow>& row) {
  return row.param.name;
}

}  // namespace trireme::contract
