#include "contract/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::contract {

Tensor random_tensor(std::mt19937& generator, int64_t rows, int64_t cols, double scale) {
  std::normal_distribution<double> normal;
  Tensor tensor(rows, cols);
  for (double& v : tensor.values) v = scale * normal(generator);
  return tensor;
}

Tensor rounded(Tensor tensor, DType dtype) {
  for (double& v : tensor.values) {
    if (dtype == DType::f32) v = static_cast<double>(static_cast<float>(v));
    if (dtype == DType::bf16) {
      v = static_cast<double>(f32_from_bf16(bf16_from_f32(static_cast<float>(v))));
    }
  }
  return tensor;
}

Tensor plus(const Tensor& a, const Tensor& b) {
  Tensor sum = a;
  for (int64_t i = 0; i < sum.size(); ++i) sum.at(i) += b.at(i);
  return sum;
}

Tensor embedding(const Tensor& table, const Ints& ids, const ops::HeldVocab& held) {
  Tensor out(static_cast<int64_t>(ids.size()), table.cols);
  for (int64_t t = 0; t < out.rows; ++t) {
    for (int64_t row = 0; row < held.count; ++row) {
      if (ids[static_cast<size_t>(t)] != held.first + row) continue;
      for (int64_t c = 0; c < out.cols; ++c) out.at(t, c) = table.at(row, c);
    }
  }
  return out;
}

Tensor embedding_weight_grad(int64_t extent, const Tensor& d_out, const Ints& ids,
                             const ops::HeldVocab& held) {
  Tensor d_table(extent, d_out.cols);
  for (int64_t t = 0; t < d_out.rows; ++t) {
    for (int64_t row = 0; row < held.count; ++row) {
      if (ids[static_cast<size_t>(t)] != held.first + row) continue;
      for (int64_t c = 0; c < d_out.cols; ++c) d_table.at(row, c) += d_out.at(t, c);
    }
  }
  return d_table;
}

Normalised rms_norm(const Tensor& x, const Tensor& gain, double eps) {
  Normalised result{Tensor(x.rows, x.cols), Tensor(1, x.rows)};
  for (int64_t t = 0; t < x.rows; ++t) {
    double squares = 0;
    for (int64_t c = 0; c < x.cols; ++c) squares += x.at(t, c) * x.at(t, c);
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(x.cols) + eps);
    result.rstd.at(t) = rstd;
    for (int64_t c = 0; c < x.cols; ++c) result.y.at(t, c) = gain.at(c) * (x.at(t, c) * rstd);
  }
  return result;
}

Tensor rms_norm_input_grad(const Tensor& dy, const Tensor& x, const Tensor& gain,
                           const Tensor& rstd) {
  Tensor dx(x.rows, x.cols);
  for (int64_t t = 0; t < x.rows; ++t) {
    double mean = 0;
    for (int64_t c = 0; c < x.cols; ++c) mean += dy.at(t, c) * gain.at(c) * x.at(t, c);
    mean /= static_cast<double>(x.cols);
    const double r = rstd.at(t);
    for (int64_t c = 0; c < x.cols; ++c) {
      dx.at(t, c) = r * (dy.at(t, c) * gain.at(c) - x.at(t, c) * r * r * mean);
    }
  }
  return dx;
}

Tensor rms_norm_weight_grad(const Tensor& dy, const Tensor& x, const Tensor& rstd) {
  Tensor d_gain(1, x.cols);
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t c = 0; c < x.cols; ++c) d_gain.at(c) += dy.at(t, c) * x.at(t, c) * rstd.at(t);
  }
  return d_gain;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Tensor y(x.rows, weight.rows);
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t o = 0; o < weight.rows; ++o) {
      double sum = bias.size() > 0 ? bias.at(o) : 0.0;
      for (int64_t i = 0; i < x.cols; ++i) sum += x.at(t, i) * weight.at(o, i);
      y.at(t, o) = sum;
    }
  }
  return y;
}

Tensor linear_input_grad(const Tensor& dy, const Tensor& weight) {
  Tensor dx(dy.rows, weight.cols);
  for (int64_t t = 0; t < dy.rows; ++t) {
    for (int64_t o = 0; o < dy.cols; ++o) {
      for (int64_t i = 0; i < weight.cols; ++i) dx.at(t, i) += dy.at(t, o) * weight.at(o, i);
    }
  }
  return dx;
}

Tensor linear_weight_grad(const Tensor& dy, const Tensor& x) {
  Tensor d_weight(dy.cols, x.cols);
  for (int64_t t = 0; t < dy.rows; ++t) {
    for (int64_t o = 0; o < dy.cols; ++o) {
      for (int64_t i = 0; i < x.cols; ++i) d_weight.at(o, i) += dy.at(t, o) * x.at(t, i);
    }
  }
  return d_weight;
}

Tensor linear_bias_grad(const Tensor& dy) {
  Tensor d_bias(1, dy.cols);
  for (int64_t t = 0; t < dy.rows; ++t) {
    for (int64_t o = 0; o < dy.cols; ++o) d_bias.at(o) += dy.at(t, o);
  }
  return d_bias;
}

namespace {

Tensor rotate(const Tensor& in, const Tensor& table, const Ints& positions, const Heads& heads,
              double direction) {
  Tensor out = in;
  const int64_t half = heads.head_dim / 2;
  for (int64_t t = 0; t < in.rows; ++t) {
    const int64_t position = positions[static_cast<size_t>(t)];
    for (int64_t h = 0; h < heads.heads + heads.kv_heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const int64_t a = h * heads.head_dim + i;
        const double c = table.at(position, i);
        const double s = direction * table.at(position, half + i);
        out.at(t, a) = in.at(t, a) * c - in.at(t, a + half) * s;
        out.at(t, a + half) = in.at(t, a + half) * c + in.at(t, a) * s;
      }
    }
  }
  return out;
}

Tensor columns_of(const Tensor& from, int64_t first, int64_t count) {
  Tensor columns(from.rows, count);
  for (int64_t r = 0; r < from.rows; ++r) {
    for (int64_t c = 0; c < count; ++c) columns.at(r, c) = from.at(r, first + c);
  }
  return columns;
}

void set_columns(Tensor& to, int64_t first, const Tensor& columns) {
  for (int64_t r = 0; r < to.rows; ++r) {
    for (int64_t c = 0; c < columns.cols; ++c) to.at(r, first + c) = columns.at(r, c);
  }
}

Tensor row_of(const Tensor& from, int64_t row) {
  Tensor only(1, from.cols);
  for (int64_t c = 0; c < from.cols; ++c) only.at(c) = from.at(row, c);
  return only;
}

/// body(first column, row of the gain) for the heads that qk_norm normalises.
template <typename Body>
void for_normalised(const Heads& heads, const Body& body) {
  for (int64_t h = 0; h < heads.heads + heads.kv_heads; ++h) {
    body(h * heads.head_dim, h < heads.heads ? 0 : 1);
  }
}

/// One query head's view of qkv: columns of its query, key and value.
struct HeadColumns {
  int64_t query, key, value;
  HeadColumns(const Heads& heads, int64_t head) {
    const int64_t kv_head = head / (heads.heads / heads.kv_heads);
    query = head * heads.head_dim;
    key = (heads.heads + kv_head) * heads.head_dim;
    value = (heads.heads + heads.kv_heads + kv_head) * heads.head_dim;
  }
};

/// The keys that query t of a sequence starting at `start` sees: [first, t].
int64_t first_key(int64_t start, int64_t t, int64_t window) {
  return window > 0 ? std::max(start, t - window + 1) : start;
}

/// Probabilities of keys [first, t], and the log of the sum of exponentials.
std::vector<double> softmax(const Tensor& qkv, const HeadColumns& columns, int64_t head_dim,
                            int64_t first, int64_t t, double scale, double& lse) {
  std::vector<double> p;
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t j = first; j <= t; ++j) {
    double dot = 0;
    for (int64_t d = 0; d < head_dim; ++d) {
      dot += qkv.at(t, columns.query + d) * qkv.at(j, columns.key + d);
    }
    p.push_back(dot * scale);
    max = std::max(max, dot * scale);
  }
  double sum = 0;
  for (double& v : p) sum += v = std::exp(v - max);
  for (double& v : p) v /= sum;
  lse = max + std::log(sum);
  return p;
}

/// body(head, start, t, first) for every query of every sequence.
template <typename Body>
void for_queries(const Ints& cu_seqlens, const Heads& heads, int64_t window, const Body& body) {
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    for (int64_t h = 0; h < heads.heads; ++h) {
      for (int64_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; ++t) {
        body(h, t, first_key(cu_seqlens[s], t, window));
      }
    }
  }
}

}  // namespace

Tensor rope(const Tensor& qkv, const Tensor& table, const Ints& positions, const Heads& heads) {
  return rotate(qkv, table, positions, heads, 1.0);
}
Tensor rope_input_grad(const Tensor& d_out, const Tensor& table, const Ints& positions,
                       const Heads& heads) {
  return rotate(d_out, table, positions, heads, -1.0);
}

Tensor qk_norm(const Tensor& qkv, const Tensor& gain, const Heads& heads, double eps) {
  Tensor y = qkv;
  for_normalised(heads, [&](int64_t at, int64_t kind) {
    const Tensor head = columns_of(qkv, at, heads.head_dim);
    set_columns(y, at, rms_norm(head, row_of(gain, kind), eps).y);
  });
  return y;
}

Tensor qk_norm_input_grad(const Tensor& d_y, const Tensor& qkv, const Tensor& gain,
                          const Heads& heads, double eps) {
  Tensor d_qkv = d_y;
  for_normalised(heads, [&](int64_t at, int64_t kind) {
    const Tensor head = columns_of(qkv, at, heads.head_dim);
    const Tensor factor = row_of(gain, kind);
    const Tensor slope = columns_of(d_y, at, heads.head_dim);
    set_columns(d_qkv, at,
                rms_norm_input_grad(slope, head, factor, rms_norm(head, factor, eps).rstd));
  });
  return d_qkv;
}

Tensor qk_norm_weight_grad(const Tensor& d_y, const Tensor& qkv, const Heads& heads, double eps) {
  Tensor d_gain(2, heads.head_dim);
  for_normalised(heads, [&](int64_t at, int64_t kind) {
    const Tensor head = columns_of(qkv, at, heads.head_dim);
    const Tensor rstd = rms_norm(head, Tensor(1, heads.head_dim), eps).rstd;
    const Tensor sums = rms_norm_weight_grad(columns_of(d_y, at, heads.head_dim), head, rstd);
    for (int64_t c = 0; c < heads.head_dim; ++c) d_gain.at(kind, c) += sums.at(c);
  });
  return d_gain;
}

Attended attention(const Tensor& qkv, const Ints& cu_seqlens, const Heads& heads, int64_t window,
                   double scale) {
  Attended result{Tensor(qkv.rows, heads.out_cols()), Tensor(heads.heads, qkv.rows)};
  for_queries(cu_seqlens, heads, window, [&](int64_t h, int64_t t, int64_t first) {
    const HeadColumns columns(heads, h);
    const auto p = softmax(qkv, columns, heads.head_dim, first, t, scale, result.lse.at(h, t));
    for (int64_t j = first; j <= t; ++j) {
      for (int64_t d = 0; d < heads.head_dim; ++d) {
        result.out.at(t, columns.query + d) +=
            p[static_cast<size_t>(j - first)] * qkv.at(j, columns.value + d);
      }
    }
  });
  return result;
}

Tensor attention_input_grad(const Tensor& d_out, const Tensor& qkv, const Ints& cu_seqlens,
                            const Heads& heads, int64_t window, double scale) {
  Tensor d_qkv(qkv.rows, qkv.cols);
  for_queries(cu_seqlens, heads, window, [&](int64_t h, int64_t t, int64_t first) {
    const HeadColumns columns(heads, h);
    double lse = 0;
    const auto p = softmax(qkv, columns, heads.head_dim, first, t, scale, lse);
    std::vector<double> dp(p.size());
    double mean = 0;
    for (int64_t j = first; j <= t; ++j) {
      const auto at = static_cast<size_t>(j - first);
      for (int64_t d = 0; d < heads.head_dim; ++d) {
        dp[at] += d_out.at(t, columns.query + d) * qkv.at(j, columns.value + d);
        d_qkv.at(j, columns.value + d) += p[at] * d_out.at(t, columns.query + d);
      }
      mean += p[at] * dp[at];
    }
    for (int64_t j = first; j <= t; ++j) {
      const auto at = static_cast<size_t>(j - first);
      const double ds = p[at] * (dp[at] - mean) * scale;
      for (int64_t d = 0; d < heads.head_dim; ++d) {
        d_qkv.at(t, columns.query + d) += ds * qkv.at(j, columns.key + d);
        d_qkv.at(j, columns.key + d) += ds * qkv.at(t, columns.query + d);
      }
    }
  });
  return d_qkv;
}

Tensor swiglu(const Tensor& gate_up) {
  const int64_t ffn = gate_up.cols / 2;
  Tensor out(gate_up.rows, ffn);
  for (int64_t t = 0; t < out.rows; ++t) {
    for (int64_t i = 0; i < ffn; ++i) {
      const double g = gate_up.at(t, i);
      out.at(t, i) = g / (1.0 + std::exp(-g)) * gate_up.at(t, ffn + i);
    }
  }
  return out;
}

Tensor swiglu_input_grad(const Tensor& d_out, const Tensor& gate_up) {
  const int64_t ffn = d_out.cols;
  Tensor d_gate_up(gate_up.rows, gate_up.cols);
  for (int64_t t = 0; t < d_out.rows; ++t) {
    for (int64_t i = 0; i < ffn; ++i) {
      const double g = gate_up.at(t, i);
      const double s = 1.0 / (1.0 + std::exp(-g));
      d_gate_up.at(t, i) = d_out.at(t, i) * gate_up.at(t, ffn + i) * (s + g * s * (1.0 - s));
      d_gate_up.at(t, ffn + i) = d_out.at(t, i) * g * s;
    }
  }
  return d_gate_up;
}

Tensor xent_stats(const Tensor& logits, const Ints& targets, const ops::HeldVocab& held) {
  Tensor stats(logits.rows, 3);
  for (int64_t t = 0; t < logits.rows; ++t) {
    stats.at(t, 1) = 1.0;
    const int64_t target = targets[static_cast<size_t>(t)];
    if (target == -100) continue;
    double max = std::numeric_limits<float>::lowest();
    for (int64_t c = 0; c < held.count; ++c) max = std::max(max, logits.at(t, c));
    double sum = 0;
    for (int64_t c = 0; c < held.count; ++c) sum += std::exp(logits.at(t, c) - max);
    stats.at(t, 0) = max;
    stats.at(t, 1) = sum;
    const int64_t column = target - held.first;
    if (column >= 0 && column < held.count) stats.at(t, 2) = logits.at(t, column);
  }
  return stats;
}

Tensor xent_combine(const Tensor& parts, const Ints& targets) {
  const auto tokens = static_cast<int64_t>(targets.size());
  Tensor stats(tokens, 3);
  for (int64_t t = 0; t < tokens; ++t) {
    stats.at(t, 1) = 1.0;
    if (targets[static_cast<size_t>(t)] == -100) continue;
    double max = parts.at(t, 0);
    for (int64_t p = t; p < parts.rows; p += tokens) max = std::max(max, parts.at(p, 0));
    stats.at(t, 0) = max;
    stats.at(t, 1) = 0.0;
    for (int64_t p = t; p < parts.rows; p += tokens) {
      stats.at(t, 1) += parts.at(p, 1) * std::exp(parts.at(p, 0) - max);
      stats.at(t, 2) += parts.at(p, 2);
    }
  }
  return stats;
}

Tensor xent_loss(const Tensor& stats, const Ints& targets) {
  Tensor sums(1, 2);
  for (int64_t t = 0; t < stats.rows; ++t) {
    if (targets[static_cast<size_t>(t)] == -100) continue;
    sums.at(0) += std::log(stats.at(t, 1)) + stats.at(t, 0) - stats.at(t, 2);
    sums.at(1) += 1.0;
  }
  return sums;
}

Tensor xent_grad(const Tensor& logits, const Tensor& stats, const Ints& targets,
                 const ops::HeldVocab& held) {
  Tensor d_logits(logits.rows, logits.cols);
  for (int64_t t = 0; t < logits.rows; ++t) {
    const int64_t target = targets[static_cast<size_t>(t)];
    if (target == -100) continue;
    for (int64_t c = 0; c < held.count; ++c) {
      d_logits.at(t, c) = std::exp(logits.at(t, c) - stats.at(t, 0)) / stats.at(t, 1) -
                          (c + held.first == target ? 1.0 : 0.0);
    }
  }
  return d_logits;
}

AdamState adamw(AdamState state, const Tensor& grad, const AdamSettings& s) {
  for (int64_t i = 0; i < grad.size(); ++i) {
    const double g = grad.at(i) * s.grad_scale;
    state.m.at(i) = s.beta1 * state.m.at(i) + (1.0 - s.beta1) * g;
    state.v.at(i) = s.beta2 * state.v.at(i) + (1.0 - s.beta2) * g * g;
    state.master.at(i) *= 1.0 - s.learning_rate * s.weight_decay;
    state.master.at(i) -=
        s.learning_rate * (state.m.at(i) / s.bias1) / (std::sqrt(state.v.at(i) / s.bias2) + s.eps);
  }
  return state;
}

}  // namespace trireme::contract
