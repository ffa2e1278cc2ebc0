#include "train/run_identity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "config/option.h"

namespace trireme::train {

namespace {

std::string digest_of(const data::Dataset& samples) {
  Hasher hasher;
  const auto add = [&](std::span<const int32_t> numbers) {
    hasher.update(numbers.data(), static_cast<int64_t>(numbers.size_bytes()));
  };
  add(samples.lengths());
  for (int64_t s = 0; s < samples.size(); ++s) {
    add(samples.ids(s));
    add(samples.labels(s));
  }
  return to_hex(hasher.digest());
}

}  // namespace

Json identity_of(const config::RunConfig& config, const RunData& data) {
  Json identity;
  for (const config::Option& row : config::train_options()) {
    if (row.get && row.rule.kind != config::Kind::path) {
      identity[std::string(row.name)] = row.get(config);
    }
  }
  const std::string& resume = config.resume_from_checkpoint;
  identity["resume_from_checkpoint"] = resume.empty() || resume == "true" ? resume : "a folder";
  identity[kSamplesHash] = digest_of(data.training());
  if (data.evaluates()) {
    identity["the hash of eval_path's samples"] = digest_of(data.evaluation_set());
  }
  return identity;
}

void compare_identities(checkpoint::Coordinator& ranks, const Json& mine) {
  const std::string text = dump_json(mine);
  const auto hashes = ranks.exchange(to_hex(hash128(text)));
  const auto other = std::find_if(hashes.begin(), hashes.end(),
                                  [&](const std::string& hash) { return hash != hashes[0]; });
  if (other == hashes.end()) return;
  const auto rank = static_cast<size_t>(other - hashes.begin());
  const auto texts = ranks.exchange(text);
  const Json first = parse_json(texts[0], "the settings of rank 0");
  const Json differing = parse_json(texts[rank], fmt::format("the settings of rank {}", rank));
  std::vector<std::string> differences;
  for (const auto& [name, value] : first.items()) {
    const Json theirs = differing.value(name, Json());
    if (theirs == value) continue;
    differences.push_back(
        fmt::format("{} is {}, rank 0 has {}", name, theirs.dump(), value.dump()));
  }
  if (differences.empty()) differences = {"it is another version of the program"};
  throw ConfigError(
      fmt::format("rank {} is not like rank 0: {}; start every rank with the same "
                  "command on the same files",
                  rank, fmt::join(differences, "; ")));
}

uint64_t compare_programs(checkpoint::Coordinator& ranks, const plan::Plan& plan) {
  const mesh::Coordinates& here = plan.mesh.at;
  const std::string part = fmt::format("stage {}, tensor rank {}", here.pp, here.tp);
  const auto texts = ranks.exchange(fmt::format("{}: {:016x}", part, plan.hash));
  std::map<std::string, std::pair<size_t, std::string>> first;  // by part: rank and hash
  std::string all;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const size_t colon = texts[rank].find(':');
    const std::string hash = texts[rank].substr(colon);
    const auto [at, fresh] = first.try_emplace(texts[rank].substr(0, colon), rank, hash);
    if (fresh) all += texts[rank] + "\n";
    if (hash == at->second.second) continue;
    throw ConfigError(fmt::format(
        "rank {} is not like rank {}: it planned another program for {}; start every rank with the "
        "same command on the same files",
        rank, at->second.first, at->first));
  }
  return first.size() == 1 ? plan.hash : hash64(all);
}

}  // namespace trireme::train
