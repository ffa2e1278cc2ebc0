#!/usr/bin/env bash
# Installs what is missing, builds everything, runs the tests. Arguments go to ctest:
#   ./test.sh -R tokenizer        ./test.sh -L fault --repeat until-fail:5
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

tools/setup
cmake --preset release
cmake --build --preset release
tools/check_floors
# Programs of several ranks are marked SERIAL (cmake/TriremeTargets.cmake); the rest share the cores.
exec ctest --test-dir build/release --output-on-failure --no-tests=error --parallel "$(nproc)" "$@"
