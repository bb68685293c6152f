"""Golden ids of texts in many scripts: the tokenizer of the official package with the official vocabulary.

Run in an environment with `qwen-tts==0.1.1` (requirements.txt):

    python tests/official/token_golden.py CHECKPOINTS tests/golden/speech

CHECKPOINTS is not looked at. The texts are those of the file that is there; for each, it is written anew with the ids
between the role and the end of the wrapped string, and those of an instruction. The rule for words is that of Qwen2,
which the official package replaces for local folders.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transformers import AddedToken, Qwen2TokenizerFast

TESTS = Path(__file__).parents[1]
VOCABULARY, GOLDEN = TESTS / "qwen3_tts" / "common", TESTS / "golden" / "speech" / "tokens.json"
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # the first that were added
START, END, ASSISTANT, NEWLINE = 151644, 151645, 77091, 198


def main() -> None:
    """Write tokens.json in the folder that is named last."""
    tokenizer = Qwen2TokenizerFast(str(VOCABULARY / "vocab.json"), str(VOCABULARY / "merges.txt"))
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROL])
    lines = []
    for text in (item["text"] for item in json.loads(GOLDEN.read_text(encoding="utf-8"))):
        ids = tokenizer(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
        assert (ids[:3], ids[-5:]) == ([START, ASSISTANT, NEWLINE], [END, NEWLINE, START, ASSISTANT, NEWLINE])
        instruct = tokenizer(f"<|im_start|>user\n{text}<|im_end|>\n")["input_ids"]
        lines.append(json.dumps({"text": text, "ids": ids[3:-5], "instruct": instruct}))
    (Path(sys.argv[2]) / GOLDEN.name).write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
