#!/usr/bin/env bash
# Each law of tools/check_floors has a tree that breaks it and is named by file and line.
# Usage: check_floors_test.sh CHECK_FLOORS
set -euo pipefail
check_floors=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

fresh_tree() {
  rm -rf "${root:?}"/*
  mkdir -p "$root"/src/{base,ops,cpu,plan,app} "$root"/{tests,bench,examples}
  cat >"$root/src/CMakeLists.txt" <<'LIST'
# floor 0: words
add_subdirectory(base)
# floor 1
add_subdirectory(ops)
# floor 2
add_subdirectory(cpu)
add_subdirectory(plan)
# floor 3
add_subdirectory(app)
LIST
  echo '#include <vector>' >"$root/src/base/error.h"
  printf '#include <array>\n#include "base/error.h"\n#include "ops/op.h"\n' >"$root/src/ops/op.h"
  echo 'trireme_library(plan DEPS ops LIBS lib)' >"$root/src/plan/CMakeLists.txt"
  printf '#include "cpu/body.h"\n#include "plan/plan.h"\n' >"$root/src/app/main.cpp"
}

fail() {
  echo "FAILED: $1" >&2
  exit 1
}

# expect_error WHAT: check_floors must fail and say WHAT.
expect_error() {
  local said
  if said=$("$check_floors" "$root"); then fail "accepted a tree that should give: $1"; fi
  grep -qF -- "$1" <<<"$said" || fail "expected '$1', it said: $said"
}

fresh_tree
said=$("$check_floors" "$root") || fail "a lawful tree was refused: $said"

fresh_tree
printf '\n#include "plan/plan.h"\n' >"$root/src/ops/upward.cpp"
expect_error "src/ops/upward.cpp:2: ops/ (floor 1) includes plan/plan.h (floor 2)"

fresh_tree
echo '  #  include "cpu/body.h"' >"$root/src/plan/sideways.cpp"
expect_error "src/plan/sideways.cpp:1: only app/ may include a backend, not plan/: cpu/body.h"

fresh_tree
echo '#include <dnnl.hpp>' >"$root/src/ops/library.h"
expect_error "src/ops/library.h:1: contract folder ops/ includes the library header <dnnl.hpp>"

fresh_tree
echo 'trireme_library(ops DEPS base plan)' >"$root/src/ops/CMakeLists.txt"
expect_error "src/ops/CMakeLists.txt:1: ops/ (floor 1) links plan (floor 2)"

fresh_tree
mkdir "$root/src/common"
touch "$root/src/common/drawer.h"
expect_error "folder src/common is on no floor"

fresh_tree
printf '//%.0s\n' {1..601} >"$root/tests/long.cpp"
expect_error "tests/long.cpp:601: the file has 601 lines"

fresh_tree
{
  printf 'namespace a {\nclass B {\n  void c(int d) {\n'
  printf '    f("}");  // }%.0s\n' {1..59}
  printf '  }\n};\n}\n'
} >"$root/src/base/function.cpp"
said=$("$check_floors" "$root") || fail "a long function is a warning, not an error: $said"
grep -qF "src/base/function.cpp:3: warning: a function of 61 lines" <<<"$said" ||
  fail "the long function was not named: $said"

echo "1 passed, 0 failed"
