// Operations on rows: embedding, normalisation, rotation, activation, addition, zero.
#include <algorithm>
#include <numeric>

#include "contract/suite.h"

namespace trireme::contract {
namespace {

constexpr int64_t kRowCounts[] = {0, 1, 3, 64, 131};
constexpr int64_t kColumnCounts[] = {1, 8, 17, 64, 509};

/// Indices of real tokens sorted by (id, position), then -1.
Ints order_of(const Ints& ids) {
  Ints order;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0) order.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)];
  });
  order.resize(ids.size(), -1);
  return order;
}

/// The table of one rank.
struct TablePart {
  int64_t rows;
  int64_t first;
  int64_t padding;
  ops::HeldVocab held() const { return {first, rows - padding}; }
  void set(ops::Attributes& attributes) const {
    attributes.first_vocab = first;
    attributes.vocab_padding = padding;
  }
};
constexpr TablePart kTables[] = {{509, 0, 0}, {9, 0, 1}, {9, 9, 0}, {9, 500, 2}, {9, 600, 9}};

TEST_P(Ops, Embedding) {
  for (const TablePart& part : kTables) {
    for (const int64_t rows : kRowCounts) {
      const Tensor table = random(part.rows, 48);
      Ints ids = random_ints(rows, 509);
      for (size_t i = 1; i < ids.size(); i += 2) ids[i] %= 20;
      for (size_t i = 0; i < ids.size(); i += 5) ids[i] = -1;
      CallUnderTest call(backend(), ops::OpKind::embedding, t());
      part.set(call.attributes());
      call.output(rows, 48, t(), 3);
      call.input(table, t());
      call.input(ids);
      call.run();
      expect_close(call.read(0), embedding(table, ids, part.held()), 0.0);
    }
  }
}

/// Runs of one id from a single token to many chunks, before, in and after the part.
TEST_P(Ops, EmbeddingWeightGrad) {
  for (const TablePart& part : kTables) {
    for (const ops::Law law : kLaws) {
      for (const int64_t rows : {0, 1, 7, 300, 1500}) {
        const Tensor before = random_f32(part.rows, 40);
        const Tensor d_out = random(rows, 40);
        Ints ids = random_ints(rows, 20);  // every id many times
        if (rows > 2) ids[1] = -1;
        if (rows > 2) ids.back() = 508;
        if (rows > 2) ids[2] = 501;
        CallUnderTest call(backend(), ops::OpKind::embedding_weight_grad, t(), law);
        part.set(call.attributes());
        result(call, law, before, DType::f32);
        call.input(d_out, t());
        call.input(ids);
        call.input(order_of(ids));
        call.run();
        const Tensor term = embedding_weight_grad(part.rows, d_out, ids, part.held());
        expect_close(call.read(0), expected(law, before, term),
                     limit(OpClass::reduction, DType::f32));
      }
    }
  }
}

TEST_P(Ops, RmsNorm) {
  for (const int64_t rows : kRowCounts) {
    for (const int64_t cols : kColumnCounts) {
      const Tensor x = random(rows, cols, 3.0);
      const Tensor gain = random(1, cols);
      CallUnderTest call(backend(), ops::OpKind::rms_norm, t());
      call.attributes().eps = 1e-5;
      call.output(rows, cols, t());
      call.output(1, rows, DType::f32);
      call.input(x, t(), 5);
      call.input(gain, t());
      call.run();
      const Normalised want = rms_norm(x, gain, 1e-5);
      expect_close(call.read(0), want.y, limit(OpClass::elementwise, t()));
      expect_close(call.read(1), want.rstd, limit(OpClass::reduction, DType::f32));
    }
  }
}

TEST_P(Ops, RmsNormInputGrad) {
  for (const ops::Law law : kLaws) {
    for (const int64_t rows : kRowCounts) {
      for (const int64_t cols : kColumnCounts) {
        const Tensor before = random(rows, cols);
        const Tensor dy = random(rows, cols);
        const Tensor x = random(rows, cols);
        const Tensor gain = random(1, cols);
        const Tensor rstd = rounded(rms_norm(x, gain, 1e-2).rstd, DType::f32);
        CallUnderTest call(backend(), ops::OpKind::rms_norm_input_grad, t(), law);
        result(call, law, before, t(), 2);
        call.input(dy, t());
        call.input(x, t());
        call.input(gain, t());
        call.input(rstd, DType::f32);
        call.run();
        expect_close(call.read(0), expected(law, before, rms_norm_input_grad(dy, x, gain, rstd)),
                     limit(OpClass::reduction, t()));
      }
    }
  }
}

TEST_P(Ops, RmsNormWeightGrad) {
  for (const ops::Law law : kLaws) {
    for (const int64_t rows : {0, 1, 3, 64, 200}) {
      for (const int64_t cols : kColumnCounts) {
        const Tensor before = random_f32(1, cols);
        const Tensor dy = random(rows, cols);
        const Tensor x = random(rows, cols);
        const Tensor rstd = random_f32(1, rows);
        CallUnderTest call(backend(), ops::OpKind::rms_norm_weight_grad, t(), law);
        result(call, law, before, DType::f32);
        call.input(dy, t(), 1);
        call.input(x, t());
        call.input(rstd, DType::f32);
        call.run();
        expect_close(call.read(0), expected(law, before, rms_norm_weight_grad(dy, x, rstd)),
                     limit(OpClass::reduction, DType::f32));
      }
    }
  }
}

struct NormShape {
  int64_t rows, cols;
};
/// Also more rows than one pass of all blocks takes, and rows too long for registers.
constexpr NormShape kNormShapes[] = {{0, 64},  {1, 8},     {3, 40},    {5, 129},   {64, 896},
                                     {9, 509}, {1500, 40}, {700, 264}, {5, 9000}, {3, 8192}};

TEST_P(Ops, RmsNormGrad) {
  for (const ops::Law law : kLaws) {
    for (const NormShape& shape : kNormShapes) {
      for (const int64_t extra : {0, 1}) {  // of dy: an odd stride forbids packs
        const Tensor gain_before = random_f32(1, shape.cols);
        const Tensor before = random(shape.rows, shape.cols);
        const Tensor dy = random(shape.rows, shape.cols);
        const Tensor x = random(shape.rows, shape.cols);
        const Tensor gain = random(1, shape.cols);
        const Tensor rstd = rounded(rms_norm(x, gain, 1e-2).rstd, DType::f32);
        const Tensor want_gain =
            expected(law, gain_before, rms_norm_weight_grad(dy, x, rstd));
        const Tensor dx = rms_norm_input_grad(dy, x, gain, rstd);
        const auto inputs = [&](CallUnderTest& call, bool own_dy) {
          if (own_dy) call.input(dy, t(), extra);
          call.input(x, t());
          call.input(gain, t());
          call.input(rstd, DType::f32);
        };

        CallUnderTest apart(backend(), ops::OpKind::rms_norm_grad, t(), law);
        result(apart, law, gain_before, DType::f32);
        apart.output(shape.rows, shape.cols, t());
        inputs(apart, true);
        apart.input(before, t());
        apart.run();
        expect_close(apart.read(0), want_gain, limit(OpClass::reduction, DType::f32));
        const Tensor sum = expected(ops::Law::add, before, dx);
        expect_close(apart.read(1), sum, limit(OpClass::reduction, t()));

        CallUnderTest in_place(backend(), ops::OpKind::rms_norm_grad, t(), law);
        result(in_place, law, gain_before, DType::f32);
        in_place.update(before, t());
        inputs(in_place, true);
        in_place.alias(1);
        in_place.run();
        EXPECT_EQ(in_place.bytes(0), apart.bytes(0));
        EXPECT_EQ(in_place.bytes(1), apart.bytes(1));

        CallUnderTest over_dy(backend(), ops::OpKind::rms_norm_grad, t(), law);
        result(over_dy, law, gain_before, DType::f32);
        over_dy.update(dy, t(), extra);
        over_dy.alias(1);
        inputs(over_dy, false);
        over_dy.run();
        EXPECT_EQ(over_dy.bytes(0), apart.bytes(0));
        expect_close(over_dy.read(1), dx, limit(OpClass::reduction, t()));
      }
    }
  }
}

/// Where schedules cut backward in two, the halves have the bits of the whole.
TEST_P(Ops, RmsNormGradIsItsHalves) {
  for (const NormShape& shape : kNormShapes) {
    const Tensor dy = random(shape.rows, shape.cols);
    const Tensor x = random(shape.rows, shape.cols);
    const Tensor gain = random(1, shape.cols);
    const Tensor rstd = random_f32(1, shape.rows);
    CallUnderTest both(backend(), ops::OpKind::rms_norm_grad, t());
    both.output(1, shape.cols, DType::f32);
    both.output(shape.rows, shape.cols, t());
    CallUnderTest columns(backend(), ops::OpKind::rms_norm_weight_grad, t());
    columns.output(1, shape.cols, DType::f32);
    CallUnderTest rows(backend(), ops::OpKind::rms_norm_input_grad, t());
    rows.output(shape.rows, shape.cols, t());
    for (CallUnderTest* call : {&both, &columns, &rows}) {
      call->input(dy, t());
      call->input(x, t());
      if (call != &columns) call->input(gain, t());
      call->input(rstd, DType::f32);
      call->run();
    }
    EXPECT_EQ(both.bytes(0), columns.bytes(0)) << shape.rows << " x " << shape.cols;
    EXPECT_EQ(both.bytes(1), rows.bytes(0)) << shape.rows << " x " << shape.cols;
  }
}

constexpr Heads kNormedHeads[] = {{4, 2, 16}, {6, 2, 64}, {1, 1, 8}, {2, 1, 24}, {3, 1, 136}};

TEST_P(Ops, QkNorm) {
  for (const Heads& heads : kNormedHeads) {
    for (const int64_t rows : kRowCounts) {
      const Tensor qkv = random(rows, heads.qkv_cols(), 3.0);
      const Tensor gain = random(2, heads.head_dim);
      std::vector<std::byte> apart;
      for (const int64_t extra : {1, 8}) {  // at odd addresses, and at even ones
        CallUnderTest call(backend(), ops::OpKind::qk_norm, t());
        call.set_heads(heads);
        call.attributes().eps = 1e-5;
        call.output(rows, heads.qkv_cols(), t(), extra);
        call.input(qkv, t(), extra);
        call.input(gain, t());
        call.run();
        expect_close(call.read(0), qk_norm(qkv, gain, heads, 1e-5),
                     limit(OpClass::elementwise, t()));
        apart = call.bytes(0);
      }

      CallUnderTest in_place(backend(), ops::OpKind::qk_norm, t());
      in_place.set_heads(heads);
      in_place.attributes().eps = 1e-5;
      in_place.update(qkv, t());
      in_place.alias(0);
      in_place.input(gain, t());
      in_place.run();
      EXPECT_EQ(in_place.bytes(0), apart);
    }
  }
}

TEST_P(Ops, QkNormInputGrad) {
  for (const Heads& heads : kNormedHeads) {
    for (const int64_t rows : kRowCounts) {
      const Tensor d_y = random(rows, heads.qkv_cols());
      const Tensor qkv = random(rows, heads.qkv_cols());
      const Tensor gain = random(2, heads.head_dim);
      CallUnderTest apart(backend(), ops::OpKind::qk_norm_input_grad, t());
      apart.set_heads(heads);
      apart.attributes().eps = 1e-2;
      apart.output(rows, heads.qkv_cols(), t());
      apart.input(d_y, t(), 8);
      apart.input(qkv, t());
      apart.input(gain, t());
      apart.run();
      expect_close(apart.read(0), qk_norm_input_grad(d_y, qkv, gain, heads, 1e-2),
                   limit(OpClass::reduction, t()));

      CallUnderTest in_place(backend(), ops::OpKind::qk_norm_input_grad, t());
      in_place.set_heads(heads);
      in_place.attributes().eps = 1e-2;
      in_place.update(d_y, t());
      in_place.alias(0);
      in_place.input(qkv, t());
      in_place.input(gain, t());
      in_place.run();
      EXPECT_EQ(in_place.bytes(0), apart.bytes(0));
    }
  }
}

TEST_P(Ops, QkNormWeightGrad) {
  for (const ops::Law law : kLaws) {
    for (const Heads& heads : kNormedHeads) {
      for (const int64_t rows : {0, 1, 33, 200}) {
        const Tensor before = random_f32(2, heads.head_dim);
        const Tensor d_y = random(rows, heads.qkv_cols());
        const Tensor qkv = random(rows, heads.qkv_cols());
        CallUnderTest call(backend(), ops::OpKind::qk_norm_weight_grad, t(), law);
        call.set_heads(heads);
        call.attributes().eps = 1e-2;
        result(call, law, before, DType::f32);
        call.input(d_y, t(), 1);
        call.input(qkv, t());
        call.run();
        const Tensor term = qk_norm_weight_grad(d_y, qkv, heads, 1e-2);
        expect_close(call.read(0), expected(law, before, term),
                     limit(OpClass::reduction, DType::f32));
      }
    }
  }
}

TEST_P(Ops, Rope) {
  for (const Heads& heads : {Heads{4, 2, 16}, Heads{6, 2, 64}, Heads{1, 1, 8}, Heads{2, 1, 24}}) {
    const int64_t rows = 37;
    const Tensor qkv = random(rows, heads.qkv_cols());
    const Tensor table = random_f32(50, heads.head_dim);
    const Ints positions = random_ints(rows, 50);
    for (const bool transposed : {false, true}) {
      const auto kind = transposed ? ops::OpKind::rope_input_grad : ops::OpKind::rope;
      const Tensor want = transposed ? rope_input_grad(qkv, table, positions, heads)
                                     : rope(qkv, table, positions, heads);
      CallUnderTest apart(backend(), kind, t());
      apart.set_heads(heads);
      apart.output(rows, heads.qkv_cols(), t(), 8);
      apart.input(qkv, t());
      apart.input(table, DType::f32);
      apart.input(positions);
      apart.run();
      expect_close(apart.read(0), want, limit(OpClass::elementwise, t()));

      CallUnderTest in_place(backend(), kind, t());
      in_place.set_heads(heads);
      in_place.update(qkv, t());
      in_place.alias(0);
      in_place.input(table, DType::f32);
      in_place.input(positions);
      in_place.run();
      EXPECT_EQ(in_place.bytes(0), apart.bytes(0));
    }
  }
}

TEST_P(Ops, RopeOfNoRows) {
  CallUnderTest call(backend(), ops::OpKind::rope, t());
  call.set_heads({2, 1, 16});
  call.output(0, 64, t());
  call.input(Tensor(0, 64), t());
  call.input(random_f32(4, 16), DType::f32);
  call.input(Ints{});
  call.run();
}

TEST_P(Ops, Swiglu) {
  for (const int64_t rows : kRowCounts) {
    for (const int64_t ffn : {1, 8, 17, 100}) {
      const Tensor gate_up = random(rows, 2 * ffn, 4.0);
      CallUnderTest call(backend(), ops::OpKind::swiglu, t());
      call.output(rows, ffn, t());
      call.input(gate_up, t(), 6);
      call.run();
      expect_close(call.read(0), swiglu(gate_up), limit(OpClass::softmax, t()));
    }
  }
}

TEST_P(Ops, SwigluOfExtremeGates) {
  Tensor gate_up(1, 8);
  const double gates[] = {-200.0, -90.0, 90.0, 200.0};
  for (int64_t i = 0; i < 4; ++i) {
    gate_up.at(0, i) = gates[i];
    gate_up.at(0, 4 + i) = 1.0;
  }
  gate_up = rounded(gate_up, t());
  CallUnderTest call(backend(), ops::OpKind::swiglu, t());
  call.output(1, 4, t());
  call.input(gate_up, t());
  call.run();
  expect_close(call.read(0), swiglu(gate_up), limit(OpClass::softmax, t()));
}

TEST_P(Ops, SwigluInputGrad) {
  for (const int64_t rows : kRowCounts) {
    for (const int64_t ffn : {1, 8, 17, 100}) {
      const Tensor gate_up = random(rows, 2 * ffn, 4.0);
      const Tensor d_out = random(rows, ffn);
      const Tensor want = swiglu_input_grad(d_out, gate_up);
      CallUnderTest apart(backend(), ops::OpKind::swiglu_input_grad, t());
      apart.output(rows, 2 * ffn, t());
      apart.absent();
      apart.input(d_out, t());
      apart.input(gate_up, t());
      apart.run();
      expect_close(apart.read(0), want, limit(OpClass::softmax, t()));

      CallUnderTest forward(backend(), ops::OpKind::swiglu, t());
      forward.output(rows, ffn, t());
      forward.input(gate_up, t());
      forward.run();

      CallUnderTest in_place(backend(), ops::OpKind::swiglu_input_grad, t());
      in_place.update(gate_up, t());
      in_place.update(d_out, t());
      in_place.alias(1);
      in_place.alias(0);
      in_place.run();
      EXPECT_EQ(in_place.bytes(0), apart.bytes(0));
      EXPECT_EQ(in_place.bytes(1), forward.bytes(0));
    }
  }
}

TEST_P(Ops, Add) {
  for (const ops::Law law : kLaws) {
    for (const bool two : {false, true}) {
      for (const int64_t rows : kRowCounts) {
        const Tensor before = random(rows, 77);
        const Tensor a = random(rows, 77);
        const Tensor b = random(rows, 77);
        CallUnderTest call(backend(), ops::OpKind::add, t(), law);
        result(call, law, before, t(), 1);
        call.input(a, t());
        if (two) {
          call.input(b, t(), 2);
        } else {
          call.absent();
        }
        call.run();
        expect_close(call.read(0), expected(law, before, two ? plus(a, b) : a),
                     limit(OpClass::elementwise, t()));
      }
    }
  }
}

TEST_P(Ops, AddInPlaceAndFlat) {
  const Tensor a = random(1, 40001);
  const Tensor b = random(1, 40001);
  CallUnderTest call(backend(), ops::OpKind::add, t());
  call.update(a, t());
  call.alias(0);
  call.input(b, t());
  call.run();
  expect_close(call.read(0), plus(a, b), limit(OpClass::elementwise, t()));
}

TEST_P(Ops, Zero) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::i16}) {
    for (const int64_t extra : {0, 3}) {
      for (const int64_t rows : {0, 1, 5, 300}) {
        CallUnderTest call(backend(), ops::OpKind::zero, t());
        call.output(rows, 129, dtype, extra);
        call.run();
        expect_close(call.read(0), Tensor(rows, 129), 0.0);
      }
    }
  }
}

}  // namespace
}  // namespace trireme::contract
