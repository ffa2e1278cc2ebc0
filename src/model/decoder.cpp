// Llama, Qwen2, Qwen3 and Mistral: pre-norm decoder blocks with rotary attention and SwiGLU.
#include "base/error.h"
#include "model/graph_builder.h"

namespace trireme::model {

namespace {

/// Appends parameters of one model and binds them to slots.
class Binder {
 public:
  Binder(ModelGraph& model, Unit& unit) : model_(model), unit_(unit) {}

  int add(std::string name, std::vector<int64_t> shape, Init init, Split split, bool decay) {
    model_.parameters.push_back({std::move(name), std::move(shape), init, split, decay, true});
    return static_cast<int>(model_.parameters.size()) - 1;
  }
  void bind(std::vector<int> parameters) { unit_.parameters.push_back(std::move(parameters)); }

  void matrix(const std::vector<std::string>& names, const std::vector<int64_t>& rows, int64_t cols,
              Split split) {
    std::vector<int> ids;
    for (size_t i = 0; i < names.size(); ++i) {
      ids.push_back(add(names[i] + ".weight", {rows[i], cols}, Init::normal, split, true));
    }
    bind(std::move(ids));
  }
  void bias(const std::vector<std::string>& names, const std::vector<int64_t>& sizes, Split split) {
    std::vector<int> ids;
    for (size_t i = 0; i < names.size(); ++i) {
      ids.push_back(add(names[i] + ".bias", {sizes[i]}, Init::zeros, split, false));
    }
    bind(std::move(ids));
  }
  void gain(const std::vector<std::string>& names, int64_t size) {
    std::vector<int> ids;
    for (const std::string& name : names) {
      ids.push_back(add(name + ".weight", {size}, Init::ones, Split::replicated, false));
    }
    bind(std::move(ids));
  }

 private:
  ModelGraph& model_;
  Unit& unit_;
};

UnitGraph embedding_graph(const ModelConfig& config) {
  GraphBuilder builder("embedding", config);
  const int table = builder.slot("table", Dim::vocab, Dim::hidden);
  return builder.finish(builder.leave(builder.embedding(table)));
}

UnitGraph block_graph(const ModelConfig& config) {
  GraphBuilder b("block", config);
  const int norm1 = b.slot("input_norm", Dim::one, Dim::hidden);
  const int qkv_weight = b.slot("qkv", Dim::qkv, Dim::hidden);
  const int qkv_bias = config.qkv_bias ? b.slot("qkv.bias", Dim::one, Dim::qkv) : -1;
  const int qk_gain = config.qk_norm ? b.slot("qk_norm", Dim::two, Dim::head_dim) : -1;
  const int o_weight = b.slot("o", Dim::hidden, Dim::q);
  const int o_bias = config.output_bias ? b.slot("o.bias", Dim::one, Dim::hidden) : -1;
  const int norm2 = b.slot("post_attention_norm", Dim::one, Dim::hidden);
  const int gate_up_weight = b.slot("gate_up", Dim::gate_up, Dim::hidden);
  const int gate_up_bias = config.mlp_bias ? b.slot("gate_up.bias", Dim::one, Dim::gate_up) : -1;
  const int down_weight = b.slot("down", Dim::hidden, Dim::ffn);
  const int down_bias = config.mlp_bias ? b.slot("down.bias", Dim::one, Dim::hidden) : -1;

  const int x = b.input();
  const int y = b.enter(b.rms_norm(x, norm1));
  const int projected = b.linear("qkv", y, qkv_weight, qkv_bias, Dim::qkv, Recompute::qkv);
  const int qkv = config.qk_norm ? b.qk_norm(projected, qk_gain) : projected;
  const int a = b.attention(b.rope(qkv));
  const int o = b.leave(b.linear("o", a, o_weight, o_bias, Dim::hidden, Recompute::attention));
  const int x1 = b.add("x1", x, o);
  const int y2 = b.enter(b.rms_norm(x1, norm2));
  const int gate_up =
      b.linear("gate_up", y2, gate_up_weight, gate_up_bias, Dim::gate_up, Recompute::ffn);
  const int h = b.swiglu(gate_up);
  const int down =
      b.leave(b.linear("down", h, down_weight, down_bias, Dim::hidden, Recompute::ffn));
  return b.finish(b.add("x2", x1, down));
}

UnitGraph head_graph(const ModelConfig& config) {
  GraphBuilder b("head", config);
  const int norm = b.slot("norm", Dim::one, Dim::hidden);
  const int vocab = b.slot("vocab", Dim::vocab, Dim::hidden);
  b.loss(b.enter(b.rms_norm(b.input(), norm)), vocab);
  return b.finish(-1);
}

Unit block_unit(ModelGraph& model, int64_t layer) {
  const ModelConfig& c = model.config;
  Unit unit{fmt::format("block.{}", layer), 1, {}};
  const std::string at = fmt::format("model.layers.{}.", layer);
  const std::vector<std::string> qkv = {at + "self_attn.q_proj", at + "self_attn.k_proj",
                                        at + "self_attn.v_proj"};
  const std::vector<int64_t> qkv_rows = {c.q_size(), c.kv_size(), c.kv_size()};
  const std::vector<std::string> gate_up = {at + "mlp.gate_proj", at + "mlp.up_proj"};
  const std::vector<int64_t> gate_up_rows = {c.intermediate_size, c.intermediate_size};

  Binder p(model, unit);
  p.gain({at + "input_layernorm"}, c.hidden_size);
  p.matrix(qkv, qkv_rows, c.hidden_size, Split::rows);
  if (c.qkv_bias) p.bias(qkv, qkv_rows, Split::rows);
  if (c.qk_norm) p.gain({at + "self_attn.q_norm", at + "self_attn.k_norm"}, c.head_dim);
  p.matrix({at + "self_attn.o_proj"}, {c.hidden_size}, c.q_size(), Split::cols);
  if (c.output_bias) p.bias({at + "self_attn.o_proj"}, {c.hidden_size}, Split::replicated);
  p.gain({at + "post_attention_layernorm"}, c.hidden_size);
  p.matrix(gate_up, gate_up_rows, c.hidden_size, Split::rows);
  if (c.mlp_bias) p.bias(gate_up, gate_up_rows, Split::rows);
  p.matrix({at + "mlp.down_proj"}, {c.hidden_size}, c.intermediate_size, Split::cols);
  if (c.mlp_bias) p.bias({at + "mlp.down_proj"}, {c.hidden_size}, Split::replicated);
  return unit;
}

}  // namespace

ModelGraph build_model(const ModelConfig& config) {
  ModelGraph model;
  model.config = config;
  model.dims = dims_of(config);
  model.kinds = {embedding_graph(config), block_graph(config), head_graph(config)};

  Unit embed{"embed", 0, {}};
  Binder(model, embed)
      .matrix({"model.embed_tokens"}, {config.vocab_size}, config.hidden_size, Split::rows);
  const int table = embed.parameters[0][0];
  model.units.push_back(std::move(embed));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    model.units.push_back(block_unit(model, layer));
  }
  Unit head{"head", 2, {}};
  Binder p(model, head);
  p.gain({"model.norm"}, config.hidden_size);
  if (config.tie_word_embeddings) {
    p.bind({table});
  } else {
    p.matrix({"lm_head"}, {config.vocab_size}, config.hidden_size, Split::rows);
  }
  model.units.push_back(std::move(head));
  model.validate();
  return model;
}

}  // namespace trireme::model
