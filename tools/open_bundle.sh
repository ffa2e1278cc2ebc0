# open_bundle BUNDLE FOLDER, for the scripts that run a bundle on a machine with GPUs: prints the
# folder with the bundle's bin/. A folder is taken as it is; an archive (zst, gz, tar) is unpacked
# into FOLDER. Fails where no program is found.
open_bundle() {
  local bundle=$1 folder=$2 program
  if [[ -f $bundle ]]; then
    mkdir -p "$folder"
    if [[ $bundle == *.zst ]] && ! command -v zstd >/dev/null; then
      bundle=$(realpath "$bundle")
      (cd "$folder" && cmake -E tar xf "$bundle") >&2
    elif [[ $bundle == *.zst ]]; then
      zstd -qdc "$bundle" | tar -x -C "$folder"
    else
      tar -xf "$bundle" -C "$folder"
    fi
    bundle=$folder
  fi
  program=$(find "$bundle" -path '*/bin/trireme' 2>/dev/null | head -n 1)
  [[ -n $program ]] || {
    echo "no bin/trireme in $1: cmake --build --preset release --target bundle" >&2
    return 1
  }
  dirname "$(dirname "$program")"
}

# The GPUs that a run may use.
count_gpus() {
  if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
    tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .
  else
    nvidia-smi -L 2>/dev/null | grep -c '^GPU'
  fi
}
