#!/usr/bin/env python3
"""Whether transformers reads an exported folder as the model that was trained.

    tools/check_export.py EXPORTED ROWS.jsonl [LOSS]

Loads EXPORTED (a folder that `trireme train` or `trireme checkpoint export` wrote) with
transformers, in fp32, and prints its mean loss over all trained tokens of the {"input_ids",
"labels"} rows of ROWS.jsonl: the `eval_loss` of a run with --eval_path ROWS.jsonl. With LOSS, exits
with 1 when the two differ by more than 1e-4 of it. Needs torch and transformers.
"""

import json
import math
import sys

import torch
import transformers

TOLERANCE = 1e-4


def main(folder, rows, expected=None):
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if loading[kind]:
            sys.exit(f"{folder}: {kind}: {sorted(loading[kind])}")
    model.eval()
    loss, tokens = 0.0, 0
    with torch.no_grad(), open(rows, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            ids = torch.tensor([row["input_ids"]])
            targets = torch.tensor(row.get("labels", row["input_ids"]))[1:]
            logits = model(input_ids=ids).logits[0, :-1]
            loss += torch.nn.functional.cross_entropy(
                logits.double(), targets, ignore_index=-100, reduction="sum"
            ).item()
            tokens += int((targets != -100).sum())
    mean = loss / tokens
    print(f"transformers {transformers.__version__}: loss {mean:.8f} over {tokens} tokens")
    if expected is not None and not math.isclose(mean, float(expected), rel_tol=TOLERANCE):
        sys.exit(f"expected {expected}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
